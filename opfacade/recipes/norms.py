"""Norms of layers, groups, instances and batches. All of it in f32 (f64 of f64), rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, apply, coord
from opfacade.recipes._draft import Draft, zero
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, refuse, sizes

SPLITS = "operands have the axes that it splits: [N, groups, C / groups, ...]; weight and bias [groups, C / groups]"
STATISTICS = "with training; running_mean and running_var are never updated; out1 is the mean, out2 one over the root"
EPSILON = {"f64": 2.0**-52}  # of others that of f32, in which they are computed


def centered(draft: FoldDraft, x: Node, eps: Any) -> tuple[Node, Node, Node]:
    """The deviation from the mean over the root of the variance, the mean, and one over the root."""
    count = as_float(draft.count(), floats(x))
    mean = draft.join("sum", x) / count
    apart = x - mean
    scale = w.rsqrt(draft.join("sum", apart * apart) / count + draft.number("eps", eps, x.type))
    return apart * scale, mean, scale


def scaled(draft: Draft, x: Node, axes: Sequence[int], given: dict[str, Any]) -> Node:
    """Times weight, plus bias, which have some axes."""
    shape = tuple(draft.shape[axis] for axis in axes)
    for name in ("weight", "bias"):
        tensor = given.get(name)
        if tensor is not None:
            if not isinstance(tensor, Shaped) or tensor.numel != math.prod(shape):
                refuse(name, f"a tensor of the extents {shape}", tensor)
            part = draft.along(name, Shaped(shape, tensor.dtype), axes)
            x = x * part if name == "weight" else x + part
    return x


def one_dtype(**tensors: Any) -> DType:
    return common({name: one for name, one in tensors.items() if isinstance(one, Shaped)})


def _last(input: Shaped, normalized_shape: Any) -> FoldDraft:
    shape = sizes("normalized_shape", normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        refuse("normalized_shape", f"the last of the extents {input.shape}", normalized_shape)
    return FoldDraft(input.shape, range(input.rank - len(shape), input.rank))


@recipe("nn.functional.layer_norm")
def layer_norm(
    input: Shaped, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> FoldDescriptor:  # fmt: skip
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _last(input, normalized_shape)
    x = centered(draft, draft.element("input", input), eps)[0]
    return draft.elements(scaled(draft, x, draft.folded, {"weight": weight, "bias": bias}), dtype=dtype)


@recipe("native_layer_norm", "out1 is the mean, out2 one over the root of the variance: both lack the axes of 1")
def native_layer_norm(input: Shaped, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> FoldDescriptor:
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _last(input, normalized_shape)
    x, *of_row = centered(draft, draft.element("input", input), eps)
    return draft.elements(scaled(draft, x, draft.folded, {"weight": weight, "bias": bias}), dtype=dtype, rows=of_row)


@recipe("nn.functional.rms_norm")
def rms_norm(input: Shaped, normalized_shape: Any, weight: Any = None, eps: Any = None) -> FoldDescriptor:
    """eps: without one 2^-23, of f64 2^-52."""
    dtype = one_dtype(input=input, weight=weight)
    draft = _last(input, normalized_shape)
    x = floats(draft.element("input", input))
    squares = draft.join("sum", x * x) / as_float(draft.count(), x)
    least = draft.number("eps", EPSILON.get(dtype, 2.0**-23) if eps is None else eps, x.type)
    return draft.elements(scaled(draft, x * w.rsqrt(squares + least), draft.folded, {"weight": weight}), dtype=dtype)


def _grouped(input: Shaped, groups: int, shape: Shape) -> FoldDraft:
    """shape: [N, C, ...]."""
    if len(shape) < 2 or not isinstance(groups, int) or groups < 1 or shape[1] % groups:
        refuse("num_groups", "a divisor of axis 1 of [N, C, ...]", (groups, input.shape))
    return FoldDraft((shape[0], groups, shape[1] // groups, *shape[2:]), range(2, len(shape) + 1))


@recipe("nn.functional.group_norm", SPLITS)
def group_norm(input: Shaped, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> FoldDescriptor:
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    draft = _grouped(input, num_groups, input.shape)
    x = centered(draft, draft.element("input", Shaped(draft.shape, dtype)), eps)[0]
    return draft.elements(scaled(draft, x, (1, 2), {"weight": weight, "bias": bias}), dtype=dtype)


@recipe("native_group_norm", f"{SPLITS}; out1 is the mean, out2 one over the root of the variance")
def native_group_norm(
    input: Shaped, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: Any
) -> FoldDescriptor:  # fmt: skip
    dtype = one_dtype(input=input, weight=weight, bias=bias)
    if N * C * HxW != input.numel:
        refuse("N", f"N * C * HxW = {input.numel}", (N, C, HxW))
    draft = _grouped(input, group, (N, C, HxW))
    x, *of_row = centered(draft, draft.element("input", Shaped(draft.shape, dtype)), eps)
    return draft.elements(scaled(draft, x, (1, 2), {"weight": weight, "bias": bias}), dtype=dtype, rows=of_row)


@recipe("nn.functional.instance_norm", "running_mean and running_var are read without use_input_stats, and never updated")
def instance_norm(
    input: Shaped, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: Any = 0.1, eps: Any = 1e-5,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return _known(input, {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}, eps)
    return _channels(input, range(2, input.rank), {"weight": weight, "bias": bias}, eps)


@recipe("nn.functional.batch_norm", "running_mean and running_var are never updated; without training a map")
def batch_norm(
    input: Shaped, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: Any = 1e-5,
) -> Any:  # fmt: skip
    if not training:
        return _known(input, {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}, eps)
    return _channels(input, _beside_channels(input), {"weight": weight, "bias": bias}, eps)


@recipe("native_batch_norm", STATISTICS)
def native_batch_norm(
    input: Shaped, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any
) -> FoldDescriptor:
    if not training:
        refuse("training", "True", training, "Take recipes.batch_norm, which has the result alone.")
    return _channels(input, _beside_channels(input), {"weight": weight, "bias": bias}, eps, with_statistics=True)


@recipe("_native_batch_norm_legit", STATISTICS)
def native_batch_norm_legit(input: Shaped, weight: Any, bias: Any, *rest: Any) -> FoldDescriptor:
    """rest: running_mean and running_var or neither, then training, momentum, eps."""
    given = rest if len(rest) == 5 else (None, None, *rest)
    if len(given) != 5:
        refuse("rest", "training, momentum and eps, behind running_mean and running_var or neither", len(rest))
    found: FoldDescriptor = native_batch_norm.make(input, weight, bias, *given)
    return found


def _beside_channels(input: Shaped) -> list[int]:
    return [axis for axis in range(input.rank) if axis != 1]


def _channels(
    input: Shaped, folded: Sequence[int], given: dict[str, Any], eps: Any, with_statistics: bool = False
) -> FoldDescriptor:
    """Statistics of the call, and a weight for each channel."""
    dtype = one_dtype(input=input, **given)
    if input.rank < 2 or not folded:
        refuse("input", "[N, C] or [N, C, ...]; of instances at least [N, C, L]", input.shape)
    draft = FoldDraft(input.shape, folded)
    x, *of_channel = centered(draft, draft.element("input", input), eps)
    return draft.elements(scaled(draft, x, (1,), given), dtype=dtype, rows=of_channel if with_statistics else ())


def _known(input: Shaped, given: dict[str, Any], eps: Any) -> Any:
    """Statistics that are given: a map."""
    dtype = one_dtype(input=input, **given)
    if input.rank < 2:
        refuse("input", "[N, C] or [N, C, ...]", input.shape)
    draft, channels = Draft(input.shape), []
    x = floats(draft.element("input", input))
    for name in ("running_mean", "running_var"):
        if not isinstance(given[name], Shaped) or given[name].shape != (input.shape[1],):
            refuse(name, f"a tensor of [{input.shape[1]}]", given[name])
        channels.append(draft.along(name, given[name], (1,)))
    x = (x - channels[0]) * w.rsqrt(channels[1] + draft.number("eps", eps, x.type))
    return draft.map(scaled(draft, x, (1,), given), dtype=dtype)


@recipe("nn.functional.local_response_norm")
def local_response_norm(input: Shaped, size: int, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0) -> FoldDescriptor:
    """x / (k + alpha * mean of squares of `size` neighbouring channels) ^ beta; beside the first and the last channel is 0."""
    if input.rank < 3 or size < 1:
        refuse("input", "[N, C, ...] of at least 3 axes, and a size of at least 1", (input.shape, size))
    draft = FoldDraft((*input.shape, size), (input.rank,))
    source, here = draft.source("input", input), draft.here(range(input.rank))
    near = [*here[:1], here[1] + coord(input.rank) - draft.number("before", size // 2, "i64"), *here[2:]]
    x = floats(source.at(near, zero(input.type)))
    numbers = {name: draft.number(name, value, x.type) for name, value in (("alpha", alpha), ("beta", beta), ("k", k))}
    mean = draft.join("sum", x * x) / apply(x.type, draft.count())
    found = source.at(here) / w.pow(numbers["k"] + numbers["alpha"] * mean, numbers["beta"])
    return draft.rows(found, dtype=input.dtype)
