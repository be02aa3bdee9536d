"""A tensor argument of a recipe: a shape and a dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeGuard

from opfacade.base.short_repr import shown
from opfacade.core.dtypes import DTYPES, DType
from opfacade.errors import from_issues
from opfacade.issue import Issue
from opfacade.programs.types import Type, widened

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Dims: TypeAlias = "int | Sequence[int] | None"  # one axis, several, or all
Scalar: TypeAlias = "bool | int | float"  # a Python number
AnyDType: TypeAlias = "DType | torch.dtype"  # a name, or a torch dtype
_NAMES = {facts.torch: name for name, facts in DTYPES.items()}
NUMBER = (int, float)
TENSOR = "a tensor or a Shaped"


class Like(Protocol):
    """Any object with a shape and a dtype: a `Shaped`, or a torch tensor on any device, including `meta`."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


class Shaped(NamedTuple):
    """The shape and dtype of a tensor. dtype: a name in `opfacade.core.dtypes.DTYPES`, such as "bf16"."""

    shape: Shape
    dtype: DType

    @property
    def type(self) -> Type:
        """The type in which the elements are loaded and computed."""
        return widened(self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        found = 1
        for size in self.shape:
            found *= size
        return found


def shaped(*shape: int, dtype: DType) -> Shaped:
    """`shaped(4, 8, dtype="bf16")`. Raises DescriptorError if a size is not a non-negative integer, or if the dtype is
    unknown."""
    try:
        return Shaped(_extents("shape", shape), dtype_of(dtype))
    except Refusal as refusal:
        raise refusal.of("shaped") from None


def _extents(argument: str, given: Any) -> Shape:
    try:
        found = tuple(index(size) for size in given)
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        refuse(argument, "non-negative integers, one for each axis", given)
    return found


def refuse(argument: str, expected: str, got: object, hint: str = "") -> NoReturn:
    """Raises DescriptorError; the called recipe adds its name."""
    raise Refusal(argument, expected, got, hint)


class Refusal(Exception):
    """An invalid argument; the recipe's name is added later."""

    def __init__(self, argument: str, expected: str, got: object, hint: str = "") -> None:
        super().__init__(argument)
        self.issue = Issue("OPF-D050", argument, expected, _text(got), hint, kind="DescriptorError")

    def of(self, recipe: str) -> Exception:
        return from_issues(f"recipes.{recipe}", "descriptor", [self.issue])


def _text(got: object) -> str:
    try:
        return str(got)[:200]
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return shown(got)


def is_like(given: object) -> TypeGuard[Like]:
    return hasattr(given, "shape") and hasattr(given, "dtype")


def dtype_of(given: object, argument: str = "dtype") -> DType:
    """The name of a dtype, which may also be given as a torch dtype."""
    name = str(given).removeprefix("torch.")
    found: Any = name if name in DTYPES else _NAMES.get(name)
    if found is None:
        refuse(argument, f"one of {', '.join(DTYPES)}", given)
    dtype: DType = found
    return dtype


def seen(argument: str, given: object) -> Shaped:
    """The shape and dtype of a tensor argument."""
    if not is_like(given):
        refuse(argument, TENSOR, type(given).__name__)
    return Shaped(_extents(argument, given.shape), dtype_of(given.dtype, argument))


def sizes(argument: str, given: object) -> Shape:
    """A tuple of integers."""
    if isinstance(given, int):
        return (given,)
    if not isinstance(given, (list, tuple)) or not all(isinstance(size, int) for size in given):
        refuse(argument, "a list of integers", given)
    return tuple(int(size) for size in given)


def axis_of(argument: str, axis: object, rank: int) -> int:
    """A non-negative axis; a negative axis counts from the end."""
    least = max(rank, 1)
    if not isinstance(axis, int) or isinstance(axis, bool) or not -least <= axis < least:
        refuse(argument, f"an axis, {-least} .. {least - 1}", axis)
    return axis % least


def axes_of(argument: str, axes: object, rank: int) -> Shape:
    """Non-negative axes without duplicates."""
    found = tuple(axis_of(argument, axis, rank) for axis in sizes(argument, axes))
    if len(set(found)) < len(found):
        refuse(argument, "each axis once", axes)
    return found


def broadcast(shapes: Iterable[Sequence[int]]) -> Shape:
    """The shape to which all shapes broadcast, aligned at the last axis."""
    known = [tuple(shape) for shape in shapes]
    rank = max(map(len, known), default=0)
    found = [1] * rank
    for shape in known:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and found[axis] not in (1, size):
                refuse("tensors", "shapes that broadcast", " and ".join(str(one) for one in known))
            found[axis] = size if size != 1 else found[axis]
    return tuple(found)
