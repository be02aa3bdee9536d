"""The largest and smallest elements along axes, and their indices. NaN counts as both the largest and the smallest; of equal
elements, the index of the first is returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node
from opfacade.recipes._folding import FoldDraft, begun
from opfacade.recipes._recipe import RECIPES, recipe
from opfacade.recipes._tensors import Shaped, axis_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims


def extreme(draft: FoldDraft, x: Node, word: str) -> Node:
    """word: max or min; for bools, any or all."""
    if x.type == "bool":
        draft.refuse_empty(word, draft.folded)
        return draft.join("any" if word == "max" else "all", x)
    return draft.join(word, x)


def placed(draft: FoldDraft, x: Node, word: str) -> tuple[Node, Node]:
    """The largest or smallest element and its index."""
    number = w.u8(x) if x.type == "bool" else x
    found, place = (draft.join(f"arg{word}", number, part) for part in ("value", "index"))
    return (w.bool(found) if x.type == "bool" else found), place


def _amount(word: str) -> Any:
    def make(input: Shaped, dim: Dims = None, keepdim: bool = False) -> FoldDescriptor:
        draft = begun(input, dim)
        return draft.rows(extreme(draft, draft.element("input", input), word), dtype=input.dtype, keepdim=keepdim)

    return make


def _place(word: str) -> Any:
    def make(input: Shaped, dim: Dims = None, keepdim: bool = False) -> FoldDescriptor:
        """Without dim, the index in the flattened tensor."""
        draft = begun(input, None if dim is None else axis_of("dim", dim, input.rank))
        return draft.rows(placed(draft, draft.element("input", input), word)[1], keepdim=keepdim)

    return make


def _either(word: str) -> Any:
    def make(input: Shaped, dim: Dims = None, keepdim: bool = False, other: object = None) -> Any:
        """The largest or smallest of all elements; with dim, along this axis, with the indices as out1; or elementwise of two
        tensors."""
        second = dim if isinstance(dim, Shaped) else other
        if isinstance(second, Shaped):
            return RECIPES[f"{word}imum"].make(input, second)
        if dim is None:
            return _amount(word)(input, keepdim=keepdim)
        draft = begun(input, axis_of("dim", dim, input.rank))
        return draft.rows(*placed(draft, draft.element("input", input), word), dtype=input.dtype, keepdim=keepdim)

    return make


for _word in ("max", "min"):
    recipe(f"a{_word}")(_amount(_word))
    recipe(f"arg{_word}", "i64")(_place(_word))
    recipe(_word, "with dim out0 is the value, out1 the place; of two tensors a map")(_either(_word))


@recipe("aminmax", "out0 is the smallest element, out1 the largest")
def aminmax(input: Shaped, dim: Dims = None, keepdim: bool = False) -> FoldDescriptor:
    draft = begun(input, dim)
    x = draft.element("input", input)
    found = [extreme(draft, x, word) for word in ("min", "max")]
    return draft.rows(*found, dtype=input.dtype, keepdim=keepdim)
