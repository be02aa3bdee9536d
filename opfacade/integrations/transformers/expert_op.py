"""The experts of a layer as a torch op, which selects a plan for the sizes of each call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from opfacade import Plan, Target
from opfacade.core.dtypes import FloatDType
from opfacade.integrations.tensors import dtype_of
from opfacade.integrations.transformers.releases import WAY
from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor

KEPT = 1024  # cached descriptors: the number of rows varies, but a model has few other sizes
# Fields of a layer, by the form of its gate. In the name of a form, the activation follows a slash.
FORMS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "halves": {}, "none": {"gated": False}, "pairs": {"halves": "interleaved", "beta": 1.0},
})  # fmt: skip
_Numbers = tuple[float | None, float | None]
_Dtypes = tuple[FloatDType, FloatDType | None]


@lru_cache(maxsize=KEPT)
def experts_descriptor(
    rows: tuple[int, int], sizes: tuple[int, int, int], dtypes: _Dtypes, form: str, numbers: _Numbers, transposed: bool
) -> FusedMoeDescriptor:
    """rows: the number of rows, and of choices per row. sizes: experts, hidden and width. dtypes: of x, and of biases (None
    without biases)."""
    gate, _, activation = form.partition("/")
    return FusedMoeDescriptor(
        total_num_rows=rows[0], top_k=rows[1], experts=sizes[0], hidden=sizes[1], width=sizes[2], dtype=dtypes[0],
        bias=dtypes[1] is not None, bias_dtype=dtypes[1], limit=numbers[0], alpha=numbers[1],
        activation=activation or "silu", weight_layout="kn" if transposed else "nk", **FORMS[gate],
    )  # fmt: skip


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None,
    form: str, limit: float | None, alpha: float | None, transposed: bool,
) -> Tensor:  # fmt: skip
    """x [rows, hidden]; ids i32 and weights f32 [rows, k], where id -1 means no expert; up and down [experts, n, k], or if
    transposed [experts, k, n]; biases [experts, n]. form: a key of FORMS; the form for pairs has no activation."""
    width, out = down.shape[1 if transposed else 2], torch.empty_like(x, memory_format=torch.contiguous_format)
    dtypes = (dtype_of(WAY, "hidden_states", x), None if up_bias is None else dtype_of(WAY, "up_bias", up_bias))
    sizes = (up.shape[0], x.shape[1], width)
    descriptor = experts_descriptor((x.shape[0], ids.shape[1]), sizes, dtypes, form, (limit, alpha), transposed)
    biases = {} if up_bias is None else {"up_bias": up_bias, "down_bias": down_bias}
    args = FusedMoeArgs(x=x, ids=ids.contiguous(), weights=weights.contiguous(), up=up, down=down, out=out, **biases)  # type: ignore[arg-type]
    plan: Plan[FusedMoeArgs] = Plan.select(descriptor, target=Target.cpu() if x.device.type == "cpu" else None)
    plan.run(args)
    return out


def _shape(x: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_LIBRARY: Any = torch.library.Library("opfacade_transformers", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "experts(Tensor x, Tensor ids, Tensor weights, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, str form, "
    "float? limit, float? alpha, bool transposed) -> Tensor"
)
for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("experts", experts, _device)
torch.library.register_fake("opfacade_transformers::experts", _shape, lib=_LIBRARY)
