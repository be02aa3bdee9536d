"""Norms of diffusion transformers (adaLN: norm(x) * (1 + scale) + shift, with a gate on the residual branch) and of heads.

For x [B, S, D], scale, shift and gate have the shape [B, D], or the shape of x. All arithmetic is f32, and results are rounded
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node
from opfacade.recipes._draft import Draft
from opfacade.recipes._folding import FoldDraft, as_float
from opfacade.recipes._pointwise import floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.folds.layer_norms import centered, one_dtype, scaled

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Scalar


NOTE = "not in torch: norm(x) * (1 + scale) + shift; scale and shift have shape [B, D] or the shape of input"


def _beside(draft: Draft, name: str, given: object) -> Node:
    """An operand with one value per element, or per batch entry and channel: [B, D] for x [B, ..., D]."""
    shape = draft.shape
    if isinstance(given, Shaped) and given.shape == shape:
        return draft.element(name, given)
    if not isinstance(given, Shaped) or len(shape) < 2 or given.shape != (shape[0], shape[-1]):
        refuse(name, f"a tensor of shape {shape}, or of its first and last size", given)
    return draft.along(name, given, (0, len(shape) - 1))


def _normed(draft: FoldDraft, x: Node, norm: str, eps: Scalar) -> Node:
    if norm == "layer":
        return centered(draft, x, eps)[0]
    if norm != "rms":
        refuse("norm", "layer or rms", norm)
    squares = draft.join("sum", x * x) / as_float(draft.count(), x)
    return x * w.rsqrt(squares + draft.number("eps", eps, x.type))


def _modulated(draft: FoldDraft, x: Node, given: dict[str, Any], norm: str, eps: Scalar) -> Node:
    weighted = scaled(draft, _normed(draft, x, norm, eps), draft.folded, given)
    return weighted * (1.0 + _beside(draft, "scale", given["scale"])) + _beside(draft, "shift", given["shift"])


def _rows(input: Shaped) -> FoldDraft:
    if not input.rank:
        refuse("input", "at least one axis", input.shape)
    return FoldDraft(input.shape, (input.rank - 1,))


@recipe("modulated_norm", NOTE)
def modulated_norm(
    input: Shaped,
    scale: Shaped,
    shift: Shaped,
    weight: Shaped | None = None,
    bias: Shaped | None = None,
    norm: str = "layer",
    eps: float = 1e-6,
) -> FoldDescriptor:
    """norm: layer or rms, over the last axis."""
    dtype = one_dtype(input=input, scale=scale, shift=shift, weight=weight, bias=bias)
    draft = _rows(input)
    x = floats(draft.element("input", input))
    given = {"scale": scale, "shift": shift, "weight": weight, "bias": bias}
    return draft.elements(_modulated(draft, x, given, norm, eps), dtype=dtype)


@recipe("gated_add", "not in torch: residual + gate * input; gate has shape [B, D] or the shape of input")
def gated_add(input: Shaped, residual: Shaped, gate: Shaped) -> MapDescriptor:
    dtype = one_dtype(input=input, residual=residual, gate=gate)
    draft = Draft(input.shape)
    if residual.shape != input.shape:
        refuse("residual", f"a tensor of {input.shape}", residual.shape)
    x, before = floats(draft.element("input", input)), draft.element("residual", residual)
    return draft.map(before + _beside(draft, "gate", gate) * x, dtype=dtype)


@recipe("gated_add_norm", f"{NOTE}, where x is residual + gate * input before rounding; out1 is this sum, rounded")
def gated_add_norm(
    input: Shaped, residual: Shaped, gate: Shaped, scale: Shaped, shift: Shaped, weight: Shaped | None = None,
    bias: Shaped | None = None,
    norm: str = "layer", eps: float = 1e-6,
) -> FoldDescriptor:  # fmt: skip
    """The operations between two blocks of a transformer. out0: the input of the next block; out1: the residual stream."""
    dtype = one_dtype(input=input, residual=residual, gate=gate, scale=scale, shift=shift, weight=weight, bias=bias)
    draft = _rows(input)
    if residual.shape != input.shape:
        refuse("residual", f"a tensor of {input.shape}", residual.shape)
    x, before = floats(draft.element("input", input)), draft.element("residual", residual)
    stream = before + _beside(draft, "gate", gate) * x
    given = {"scale": scale, "shift": shift, "weight": weight, "bias": bias}
    return draft.elements(_modulated(draft, stream, given, norm, eps), stream, dtype=dtype)


@recipe("head_norm", "not in torch: the norm of q or k over the last axis of [..., heads, head_dim]")
def head_norm(input: Shaped, weight: Any = None, norm: str = "rms", offset: float = 0.0, eps: float = 1e-6) -> FoldDescriptor:
    """weight: [head_dim], or [heads, head_dim] if each head has its own. offset: a number added to weight; some models use
    1."""
    dtype = one_dtype(input=input, weight=weight)
    draft = _rows(input)
    x = _normed(draft, floats(draft.element("input", input)), norm, eps)
    if weight is None:
        return draft.elements(x, dtype=dtype)
    last = tuple(range(input.rank))[-weight.rank :] if isinstance(weight, Shaped) and 1 <= weight.rank <= 2 else ()
    if not last or weight.shape != input.shape[-weight.rank :]:
        refuse("weight", f"a tensor whose shape is the last one or two sizes of {input.shape}", weight)
    factor = draft.along("weight", weight, last)
    return draft.elements(x * (factor + draft.number("offset", offset, x.type) if offset else factor), dtype=dtype)
