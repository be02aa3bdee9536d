"""Softmaxes along an axis. A row that contains only -inf gives NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DType
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, constant
from opfacade.recipes._draft import zero
from opfacade.recipes._folding import FoldDraft, cast
from opfacade.recipes._pointwise import common, floats
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axis_of, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Dims


def along(input: Shaped, dim: Any, argument: str = "dim") -> FoldDraft:
    """A fold along one axis, which must be given."""
    return FoldDraft(input.shape, [axis_of(argument, dim, input.rank)] if input.rank else _none(argument, dim))


def _none(argument: str, dim: Dims) -> list[int]:
    axis_of(argument, dim, 0)
    return []


def share(draft: FoldDraft, x: Node) -> Node:
    most, total = (draft.join("expsum", x, part) for part in ("max", "sum"))
    return w.exp(x - most) / total


def log_share(draft: FoldDraft, x: Node) -> Node:
    most, total = (draft.join("expsum", x, part) for part in ("max", "sum"))
    return x - most - w.log(total)


def _along(function: Any, negated: bool = False) -> Any:
    def make(input: Shaped, dim: int, dtype: AnyDType | None = None) -> FoldDescriptor:
        draft, x, wanted = _begun(input, dim, dtype, negated)
        return draft.elements(function(draft, x), dtype=wanted)

    return make


def _begun(input: Shaped, dim: Dims, dtype: AnyDType | None, negated: bool = False) -> tuple[FoldDraft, Node, DType]:
    draft = along(input, dim)
    x = draft.element("input", input)
    x, wanted = cast(-x if negated else x, input.dtype, dtype)
    return draft, floats(x), wanted


recipe("softmax nn.functional.softmax", "dim is needed")(_along(share))
recipe("log_softmax nn.functional.log_softmax", "dim is needed")(_along(log_share))
recipe("nn.functional.softmin", "dim is needed")(_along(share, negated=True))


@recipe("_safe_softmax ~torch.ops.aten._safe_softmax.default")
def safe_softmax(input: Shaped, dim: int, dtype: AnyDType | None = None) -> FoldDescriptor:
    """A row that contains only -inf gives 0."""
    draft, x, wanted = _begun(input, dim, dtype)
    nothing = w.eq(draft.join("expsum", x, "max"), constant("-inf", x.type))
    return draft.elements(w.select(nothing, zero(x.type), share(draft, x)), dtype=wanted)


@recipe("_softmax_backward_data")
def softmax_backward(grad_output: Shaped, output: Shaped, dim: int, input_dtype: Any = None) -> FoldDescriptor:
    """The gradient of the input, computed from the gradient of the output and the output."""
    dtype = common({"grad_output": grad_output, "output": output})
    if output.shape != grad_output.shape:
        refuse("output", f"the shape of grad_output, {grad_output.shape}", output.shape)
    draft = along(output, dim)
    grad, y = draft.element("grad_output", grad_output), draft.element("output", output)
    _, wanted = cast(y, dtype, input_dtype)
    term = floats(grad) * y
    return draft.elements(term - y * draft.join("sum", term), dtype=wanted)
