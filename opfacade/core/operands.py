"""TensorSpec: requirements on one operand of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.strides import Layout, StrideRule

if TYPE_CHECKING:
    import torch

    from opfacade.core.tensor_rules import Rules

Role = Literal["in", "out", "inout", "index"]


class Dim(NamedTuple):
    """One dimension: its name in messages, and its size; None if the caller chooses the size."""

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

    values: (first, stop) of an integer operand: each value is at least `first` and below `stop`; validation reads the values.
    below: an operand whose axis 0 the values index, so they are also below its size, which the caller chooses. finite, least,
    marked_by and rising are checked at validation level full. finite: refuses NaN and infinities in the rows that are read.
    least: refuses values below it. marked_by: an operand with the shape without the last axis; rows that it marks by -inf are
    not read and may hold any values. rising: refuses an index entry below its predecessor.
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
    "strided" has any stride. Written operands have positive strides and no overlapping elements. alignment: of the first byte
    in bytes, a power of two. broadcast: for an operand that is only read, the axes that may be expanded (stride 0); None: all
    that the layout permits. step: strides are multiples of this number of bytes, except the stride 1 of rows. multiple: (outer,
    inner), two axes; the stride of the outer one is a multiple of that of the inner one. TMA needs step and multiple.
    valid_rows: the operand, i32 [1], that holds the number of valid entries of axis `valid_axis`; the entries after these are
    neither read nor written.
    replaces: the input of the same shape and dtype that `in_place` overwrites instead of this output.
    paged: (pages, tokens), the two axes of a pool operand, which has an entry for each token of each page. Only tokens of
    requests are read or written. exchanged: the hint if the token axis and a neighbouring axis are exchanged.
    rules: further rules, of a family.
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
    rules: Rules | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the operand may be on another device than the call."""
        return self.rules is not None and self.rules.elsewhere

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; dimensions that the caller chooses count as 0."""
        return numel(self) * ITEMSIZE[self.dtype]

    @property
    def written(self) -> bool:
        return self.role in ("out", "inout")

    @property
    def strides(self) -> StrideRule:
        """The stride rule of this operand."""
        axes = tuple(range(len(self.shape))) if self.broadcast is None else self.broadcast
        expandable = () if self.written or self.layout == "contiguous" else axes
        return StrideRule(self.layout, self.written, expandable, self.step, self.multiple)


def has_rules(operands: Mapping[str, TensorSpec]) -> bool:
    """Whether the host library does not know all rules of a call."""
    return any(spec.rules is not None for spec in operands.values())


def index_spec(
    *shape: Dim, values: tuple[int, int] | None = None, valid_rows: str = "", dtype: Literal["i32", "i64"] = "i32"
) -> TensorSpec:
    """An index tensor: contiguous, int32 by default."""
    return TensorSpec(shape, dtype, "index", "contiguous", ITEMSIZE[dtype], valid_rows=valid_rows, contents=Contents(values))


def num_valid_spec(rows: int) -> TensorSpec:
    """The count of valid rows, on the device: int32 [1], 0 to `rows`. Other operands name it in `valid_rows`."""
    return index_spec(Dim("1", 1), values=(0, rows + 1))


def valid_count(num_valid: torch.Tensor, rows: int) -> int:
    """The number of valid rows of `rows`, read on the host: 0 for an invalid count, as in every kernel."""
    count = int(num_valid[0])
    return count if 0 <= count <= rows else 0


def counted_by(spec: TensorSpec, axis: int | None, counter: str) -> TensorSpec:
    """The spec with `counter` as the count of valid entries of `axis`; unchanged if it has no such axis."""
    return spec if axis is None else spec._replace(valid_rows=counter, valid_axis=axis)


def split_rows(spec: TensorSpec, tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the first `count` entries of the axis that `valid_rows` counts, and of the others."""
    axis = spec.valid_axis
    return tensor.narrow(axis, 0, count), tensor.narrow(axis, count, tensor.shape[axis] - count)


def room(tensor: torch.Tensor) -> int:
    """Bytes of storage from the first element on; fewer than the view needs if the storage was resized."""
    return int(max(0, tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()))


def bytes_of(value: object) -> int:
    """Bytes of the elements of any tensor, including a sparse one, which has no nbytes; 0 for any other value."""
    import torch

    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def is_finite(tensor: torch.Tensor) -> torch.Tensor:
    """torch.isfinite that also works for 8-bit floats."""
    return (tensor.float() if tensor.itemsize == 1 else tensor).isfinite()


def numel(spec: TensorSpec, free: int = 0) -> int:
    """Number of elements of an operand; dimensions that the caller chooses count as `free`."""
    return math.prod(d.size if d.size is not None else free for d in spec.shape)


def nbytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.nbytes for spec in specs)
