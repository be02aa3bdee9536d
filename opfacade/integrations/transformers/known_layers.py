"""The modules of transformers whose arithmetic is known, and methods that compute the same by plans.

A module is recognised by its code, which transformers copies from a few original classes. A method falls back to transformers'
code if gradients are required, if the module is in training mode, or if no plan supports its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from opfacade.integrations.tensors import takes
from opfacade.integrations.transformers import layer_ops
from opfacade.integrations.transformers.layer_ops import Rounding
from opfacade.integrations.transformers.same_code import globals_of, rebound, same_code, same_method

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import FusedMlp, HalvesOfExperts, Mlp, PairsOfExperts, RmsNorm

Kind = Literal["norm", "activation", "rotary", "linear"]
# Activations by the class name of their module in torch or transformers.
ACTIVATIONS: Mapping[str, str] = MappingProxyType({
    "SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh", "GELUActivation": "gelu",
    "ReLUSquaredActivation": "relu2",
})  # fmt: skip
_ROTARY = "rotary"  # part of the name of every function that rotates


class Method(NamedTuple):
    """A method that replaces a method of a module."""

    kind: Kind
    name: str
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The reason why a module keeps its own code."""

    kind: Kind
    reason: str


class _Originals(NamedTuple):
    """The original classes and functions, of which all others are copies."""

    norms: Mapping[type, Rounding]
    mlp: type
    fused_mlp: type
    pairs: Any
    halves: Callable[..., Any] | None
    rotations: tuple[Any, ...]


@lru_cache(maxsize=1)
def _originals() -> _Originals:
    from transformers.integrations import moe
    from transformers.models.gemma2 import modeling_gemma2 as gemma2
    from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.phi3 import modeling_phi3 as phi3

    norms: dict[type, Rounding] = {
        llama.LlamaRMSNorm: "llama", gemma2.Gemma2RMSNorm: "gemma", gpt_oss.GptOssRMSNorm: "gpt_oss",
    }  # fmt: skip
    rotations = (llama.apply_rotary_pos_emb, gpt_oss.apply_rotary_pos_emb)
    return _Originals(
        norms, llama.LlamaMLP, phi3.Phi3MLP, gpt_oss.GptOssExperts, getattr(moe, "_default_apply_gate", None), rotations
    )


def found_in(module: nn.Module) -> Method | Unknown | None:
    """The method for a module, or the reason why there is none; None for a module that is not a norm, gated activation or
    rotation."""
    kind = type(module)
    if kind.__name__.endswith("Norm"):
        return _norm(module)
    if hasattr(module, "_apply_gate"):
        return _experts(module)
    if kind.__name__.endswith("MLP") and hasattr(module, "down_proj"):
        return _mlp(module)
    return _attention(module) if globals_of(kind.forward, _ROTARY) else None


def _norm(module: nn.Module) -> Method | Unknown:
    for kind, rounding in _originals().norms.items():
        if same_method(type(module), kind, "forward"):
            return Method("norm", "forward", _NORMS[rounding])
    return Unknown("norm", "its forward is none of the RMS norms that are known")


def _mlp(module: nn.Module) -> Method | Unknown:
    originals = _originals()
    for kind, field, function in ((originals.mlp, "act_fn", _two), (originals.fused_mlp, "activation_fn", _fused)):
        if same_method(type(module), kind, "forward"):
            return _activated(module, field, Method("activation", "forward", function))
    return Unknown("activation", "its forward is none of the gated MLPs that are known")


def _experts(module: torch.nn.Module) -> Method | Unknown:
    found = gate_of(type(module))
    if found == "pairs":
        return Method("activation", "_apply_gate", _gate_of_pairs)
    if found == "halves":
        return _activated(module, "act_fn", Method("activation", "_apply_gate", _gate_of_halves))
    return Unknown("activation", "its _apply_gate is none of those that are known")


def gate_of(kind: type) -> Literal["pairs", "halves"] | None:
    """ "pairs" if a class of experts combines interleaved pairs (as in gpt-oss), "halves" if it combines halves of a row; None
    otherwise."""
    own = getattr(kind, "_apply_gate", None)
    if same_code(own, _originals().pairs._apply_gate):
        return "pairs"
    return "halves" if same_code(own, _originals().halves) else None


def _activated(module: nn.Module, field: str, method: Method) -> Method | Unknown:
    name = type(getattr(module, field)).__name__
    if name in ACTIVATIONS:
        return method
    return Unknown("activation", f"its {field} {name} is none of {', '.join(ACTIVATIONS)}")


def _attention(module: nn.Module) -> Method | Unknown:
    forward: Any = type(module).forward
    reached = globals_of(forward, _ROTARY)
    for name, function in reached.items():
        if not any(same_code(function, known) for known in _originals().rotations):
            return Unknown("rotary", f"its {name} is none of the rotations that are known")
    layer = int(getattr(module, "layer_idx", None) or 0)
    own = {name: _rotation(function, layer) for name, function in reached.items()}
    return Method("rotary", "forward", _unless_training(rebound(forward, own)))


def _unless_training(evaluated: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.Module, *args: object, **kwargs: object) -> Any:
        return type(self).forward(self, *args, **kwargs) if self.training else evaluated(self, *args, **kwargs)

    return forward


def serves(module: torch.nn.Module, *tensors: Tensor) -> bool:
    """Whether a plan supports a call: no gradients, and tensors with the same device and a supported dtype."""
    if module.training or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return False
    first = tensors[0]
    return all(takes(x) and x.dtype == first.dtype and x.device == first.device for x in tensors)


def _norm_of(rounding: Rounding, eps: str) -> Callable[..., Any]:
    def forward(self: RmsNorm, hidden_states: Tensor) -> Any:
        x, weight = hidden_states, self.weight
        wide = rounding == "llama" and torch.promote_types(weight.dtype, x.dtype) != x.dtype  # the result is wider than x
        if wide or not takes(weight) or (torch.is_grad_enabled() and weight.requires_grad) or not serves(self, x):
            return type(self).forward(self, x)
        if x.ndim == 4 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous():  # heads before rows
            return call("norm", x.transpose(1, 2), weight, getattr(self, eps), rounding).transpose(1, 2)
        return call("norm", x, weight, getattr(self, eps), rounding)

    return forward


_NORMS: Mapping[Rounding, Callable[..., Any]] = MappingProxyType({
    "llama": _norm_of("llama", "variance_epsilon"), "gemma": _norm_of("gemma", "eps"),
    "gpt_oss": _norm_of("gpt_oss", "variance_epsilon"),
})  # fmt: skip


def _two(self: Mlp, x: Tensor) -> Any:
    """down(act(gate(x)) * up(x))."""
    gate, up = self.gate_proj(x), self.up_proj(x)
    if serves(self, gate, up):
        return self.down_proj(call("product", gate, up, ACTIVATIONS[type(self.act_fn).__name__]))
    return self.down_proj(self.act_fn(gate) * up)


def _fused(self: FusedMlp, hidden_states: Tensor) -> Any:
    both = self.gate_up_proj(hidden_states)
    if serves(self, both):
        name = ACTIVATIONS[type(self.activation_fn).__name__]
        return self.down_proj(call("gated", both, name, None, None))
    gate, up = both.chunk(2, dim=-1)
    return self.down_proj(up * self.activation_fn(gate))


def _gate_of_pairs(self: PairsOfExperts, gate_up: Tensor) -> Any:
    if serves(self, gate_up):
        return call("gated", gate_up, "swiglu_oai", self.limit, self.alpha)
    return type(self)._apply_gate(self, gate_up)


def _gate_of_halves(self: HalvesOfExperts, gate_up_out: Tensor) -> Any:
    if serves(self, gate_up_out):
        return call("gated", gate_up_out, ACTIVATIONS[type(self.act_fn).__name__], None, None)
    return type(self)._apply_gate(self, gate_up_out)


def _rotation(own: Callable[..., Any], layer: int) -> Callable[..., Any]:
    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, cos, sin))
        known = all(takes(x) for x in (q, k, cos)) and q.dtype == k.dtype and cos.dtype == sin.dtype
        known = known and torch.promote_types(q.dtype, cos.dtype) == q.dtype  # else the result is wider than q
        fits = unsqueeze_dim == 1 and q.ndim == 4 and cos.ndim == 3 and q.shape[-1] in (cos.shape[-1], 2 * cos.shape[-1])
        if wanted or not known or not fits:
            return own(q, k, cos, sin, unsqueeze_dim)
        return call("rotary", q, k, cos, sin, layer)

    return apply_rotary_pos_emb


def call(name: str, *given: object) -> Any:
    """The op itself while a graph is traced, otherwise its function."""
    if torch.compiler.is_compiling():
        return getattr(torch.ops.opfacade_transformers, name)(*given)
    return getattr(layer_ops, name)(*given)
