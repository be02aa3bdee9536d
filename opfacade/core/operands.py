"""TensorSpec: requirements on one operand of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.strides import Layout, StrideRule

if TYPE_CHECKING:
    import torch

Role = Literal["in", "out", "inout", "index"]
Lists = Mapping[str, Sequence[str]]  # of args fields that take a list of tensors: the operands that these become


class Dim(NamedTuple):
    """One dimension: the name a message uses, and its size; None where the caller decides."""

    name: str
    size: int | None = None

    def __str__(self) -> str:
        return self.name if self.size is None or self.name == str(self.size) else f"{self.name}={self.size}"


def dims_of(sizes: object, *names: str) -> tuple[Dim, ...]:
    """Dimensions whose sizes are fields of these names. "rows+1" is one more than the field `rows`."""
    parts = [(name, *name.partition("+")[::2]) for name in names]
    return tuple(Dim(name, getattr(sizes, field) + int(more or 0)) for name, field, more in parts)


class Contents(NamedTuple):
    """The values that an operand may have.

    values: (first, stop) of an operand of integers: each value is at least `first` and below `stop`; validation reads them.
    below: an operand of which each value names an entry of axis 0: values are also below its size, which the caller decides.
    finite, least, marked_by, rising: what validation level full refuses. finite: NaN and infinities, in the rows that are read;
    least: also values below it; marked_by: an operand of the shape without the last axis, whose -inf marks rows of any values,
    which are not read. rising: of an index operand, an entry below the one before.
    """

    values: tuple[int, int] | None = None
    below: str = ""
    finite: bool = True
    least: float | None = None
    marked_by: str = ""
    rising: bool = False


class TensorSpec(NamedTuple):
    """Shape, dtype and role of one operand: its form, and the values that it may have.

    layout: "rows" has a contiguous last dimension, and the others have any stride; "contiguous" is contiguous as a whole;
    "strided" has any stride. Strides of what is written are positive and its elements do not overlap.
    alignment: of the first byte, a power of two.
    broadcast: the axes of an operand that is only read which may be expanded (stride 0); None is all that the layout permits.
    step: strides are multiples of so many bytes, the stride 1 of rows excepted. multiple: (outer, inner), two axes; the stride
    of the outer one is a multiple of that of the inner one. TMA needs both.
    valid_rows: the operand, i32 [1], that counts the valid entries of axis `valid_axis`; those at and past it are neither read
    nor written.
    replaces: the input of the same shape and dtype that `in_place` overwrites instead of this output.
    paged: (pages, tokens), the axes of an operand that has an entry for each token of a pool of pages. Only tokens of requests
    are read or written. exchanged: the hint for one whose axis of tokens and a neighbour of it are exchanged.
    """

    shape: tuple[Dim, ...]
    dtype: str
    role: Role = "in"
    layout: Layout = "rows"
    alignment: int = 16
    broadcast: tuple[int, ...] | None = None
    step: int = 1
    multiple: tuple[int, int] | None = None
    valid_rows: str = ""
    replaces: str = ""
    paged: tuple[int, int] | None = None
    exchanged: str = ""
    valid_axis: int = 0
    contents: Contents = Contents()

    @property
    def written(self) -> bool:
        return self.role in ("out", "inout")

    @property
    def strides(self) -> StrideRule:
        """The rule for its strides."""
        axes = tuple(range(len(self.shape))) if self.broadcast is None else self.broadcast
        expandable = () if self.written or self.layout == "contiguous" else axes
        return StrideRule(self.layout, self.written, expandable, self.step, self.multiple)


def index_spec(
    *shape: Dim, values: tuple[int, int] | None = None, valid_rows: str = "", dtype: Literal["i32", "i64"] = "i32"
) -> TensorSpec:
    """An index tensor: contiguous, int32 as a rule."""
    return TensorSpec(shape, dtype, "index", "contiguous", ITEMSIZE[dtype], valid_rows=valid_rows, contents=Contents(values))


def num_valid_spec(rows: int) -> TensorSpec:
    """The count of valid rows, which is on the device: int32 [1], 0 to `rows`. Others name it as their `valid_rows`."""
    return index_spec(Dim("1", 1), values=(0, rows + 1))


def valid_count(num_valid: torch.Tensor, rows: int) -> int:
    """How many of `rows` such an operand leaves valid, read on the host: none where it is wrong, as in every kernel."""
    count = int(num_valid[0])
    return count if 0 <= count <= rows else 0


def counted_by(spec: TensorSpec, axis: int | None, counter: str) -> TensorSpec:
    """The operand whose entries of `axis` the operand `counter` counts; as it is where there is no such axis."""
    return spec if axis is None else spec._replace(valid_rows=counter, valid_axis=axis)


def split_rows(spec: TensorSpec, tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the first `count` entries of the axis that `valid_rows` counts, and of the others."""
    axis = spec.valid_axis
    return tensor.narrow(axis, 0, count), tensor.narrow(axis, count, tensor.shape[axis] - count)


def room(tensor: torch.Tensor) -> int:
    """Bytes of storage from the first element on: a storage can shrink under a view of it."""
    return int(max(0, tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()))


def bytes_of(value: object) -> int:
    """Bytes of the elements of any tensor, also of a sparse one, which has no nbytes; 0 of anything else."""
    import torch

    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Element by element; torch has no isfinite for 8-bit floats."""
    return (tensor.float() if tensor.itemsize == 1 else tensor).isfinite()


def numel(spec: TensorSpec, free: int = 0) -> int:
    """Elements of an operand; free dimensions count `free`."""
    return math.prod(d.size if d.size is not None else free for d in spec.shape)


def nbytes(specs: Sequence[TensorSpec]) -> int:
    return sum(numel(spec) * ITEMSIZE[spec.dtype] for spec in specs)
