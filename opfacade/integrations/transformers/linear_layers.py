"""nn.Linear by plans for matrix products, if a kernel supports them or the caller's preference names the reference.

The reference does not count as a kernel: on GPU and CPU, it computes a linear layer only on request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from opfacade import Preference
from opfacade.integrations.tensors import described, takes
from opfacade.integrations.transformers import layer_ops
from opfacade.integrations.transformers.known_layers import Method, Unknown, call, serves

KERNELS = Preference(forbid=("reference",))
HINT = 'products=Preference(backend="reference") takes it'


def found_in(module: nn.Module, products: Preference | None) -> Method | Unknown | None:
    """The method for a linear layer, or the reason why there is none; None for any other module, including subclasses with
    their own forward."""
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return None
    prefer, weight = products or KERNELS, module.weight
    if not takes(weight):
        return Unknown("linear", f"its weight is {described(weight)}")
    one = layer_ops.linear_descriptor(1, (weight.shape[0], weight.shape[1]), weight.dtype, module.bias is not None)
    if layer_ops.taken(one, prefer, weight.device.type):
        return Method("linear", "forward", _by(prefer))
    return Unknown("linear", f"no candidate of a product of {weight.dtype} on {weight.device.type}: {HINT}")


def _by(prefer: Preference) -> Callable[..., Any]:
    text = prefer.model_dump_json()

    def forward(self: nn.Linear, input: Tensor) -> Any:
        tensors = (input, self.weight) if self.bias is None else (input, self.weight, self.bias)
        if input.ndim < 1 or torch.is_autocast_enabled(input.device.type) or not serves(self, *tensors):
            return type(self).forward(self, input)
        return call("linear", input, self.weight, self.bias, text)

    return forward
