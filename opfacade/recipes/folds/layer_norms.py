"""Layer norm, RMS norm and group norm, computed in f32 (f64 for f64) and rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node
from opfacade.recipes._draft import Draft
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, refuse, sizes

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


SPLITS = "operands have split axes: input [N, groups, C / groups, ...], weight and bias [groups, C / groups]"
EPSILON = {"f64": 2.0**-52}  # other dtypes use f32's, because they are computed in f32


def centered(draft: FoldDraft, x: Node, eps: Any) -> tuple[Node, Node, Node]:
    """The normalised element, the mean, and the reciprocal standard deviation."""
    count = as_float(draft.count(), floats(x))
    mean = draft.join("sum", x) / count
    apart = x - mean
    scale = w.rsqrt(draft.join("sum", apart * apart) / count + draft.number("eps", eps, x.type))
    return apart * scale, mean, scale


def scaled(draft: Draft, x: Node, axes: Sequence[int], given: dict[str, Any]) -> Node:
    """Multiplies by weight and adds bias, which have the given axes."""
    shape = tuple(draft.shape[axis] for axis in axes)
    for name in ("weight", "bias"):
        tensor = given.get(name)
        if tensor is not None:
            if not isinstance(tensor, Shaped) or tensor.numel != math.prod(shape):
                refuse(name, f"a tensor of shape {shape}", tensor)
            part = draft.along(name, Shaped(shape, tensor.dtype), axes)
            x = x * part if name == "weight" else x + part
    return x


def one_dtype(**tensors: object) -> DType:
    return common({name: one for name, one in tensors.items() if isinstance(one, Shaped)})


def _last(input: Shaped, normalized_shape: Any, **given: object) -> FoldDraft:
    shape = sizes("normalized_shape", normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        refuse("normalized_shape", f"the last sizes of {input.shape}", normalized_shape)
    for name, one in given.items():
        if isinstance(one, Shaped) and one.shape != shape:
            refuse(name, f"a tensor of shape {shape}, the normalized_shape", one.shape)
    return FoldDraft(input.shape, range(input.rank - len(shape), input.rank))


@recipe("nn.functional.layer_norm")
def layer_norm(
    input: Shaped, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Scalar = 1e-5
) -> FoldDescriptor:  # fmt: skip
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _last(input, normalized_shape, weight=weight, bias=bias)
    x = centered(draft, draft.element("input", input), eps)[0]
    return draft.elements(scaled(draft, x, draft.folded, {"weight": weight, "bias": bias}), dtype=dtype)


@recipe("native_layer_norm", "out1 is the mean, out2 the reciprocal standard deviation, both without the reduced axes")
def native_layer_norm(input: Shaped, normalized_shape: Any, weight: Any, bias: Any, eps: Scalar) -> FoldDescriptor:
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _last(input, normalized_shape, weight=weight, bias=bias)
    x, *of_row = centered(draft, draft.element("input", input), eps)
    return draft.elements(scaled(draft, x, draft.folded, {"weight": weight, "bias": bias}), dtype=dtype, rows=of_row)


@recipe("nn.functional.rms_norm")
def rms_norm(input: Shaped, normalized_shape: Any, weight: Any = None, eps: Any = None) -> FoldDescriptor:
    """eps: by default 2^-23, or 2^-52 for f64."""
    dtype = one_dtype(input=input, weight=weight)
    draft = _last(input, normalized_shape, weight=weight)
    x = floats(draft.element("input", input))
    squares = draft.join("sum", x * x) / as_float(draft.count(), x)
    least = draft.number("eps", EPSILON.get(dtype, 2.0**-23) if eps is None else eps, x.type)
    return draft.elements(scaled(draft, x * w.rsqrt(squares + least), draft.folded, {"weight": weight}), dtype=dtype)


def _grouped(input: Shaped, groups: int, shape: Shape) -> FoldDraft:
    """shape: [N, C, ...]."""
    if len(shape) < 2 or not isinstance(groups, int) or groups < 1 or shape[1] % groups:
        refuse("num_groups", "a divisor of C, for an input [N, C, ...]", (groups, input.shape))
    return FoldDraft((shape[0], groups, shape[1] // groups, *shape[2:]), range(2, len(shape) + 1))


@recipe("nn.functional.group_norm", SPLITS)
def group_norm(input: Shaped, num_groups: int, weight: Any = None, bias: Any = None, eps: Scalar = 1e-5) -> FoldDescriptor:
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _grouped(input, num_groups, input.shape)
    x = centered(draft, draft.element("input", Shaped(draft.shape, dtype)), eps)[0]
    return draft.elements(scaled(draft, x, (1, 2), {"weight": weight, "bias": bias}), dtype=dtype)


@recipe("native_group_norm", f"{SPLITS}; out1 is the mean, out2 the reciprocal standard deviation")
def native_group_norm(
    input: Shaped, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: Scalar
) -> FoldDescriptor:  # fmt: skip
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    if N * C * HxW != input.numel:
        refuse("N", f"N * C * HxW = {input.numel}", (N, C, HxW))
    draft = _grouped(input, group, (N, C, HxW))
    x, *of_row = centered(draft, draft.element("input", Shaped(draft.shape, dtype)), eps)
    return draft.elements(scaled(draft, x, (1, 2), {"weight": weight, "bias": bias}), dtype=dtype, rows=of_row)
