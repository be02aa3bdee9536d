"""Operands of grouped products, and the elements that belong to groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.operands import Dim, TensorSpec, index_spec
from opfacade.plans._folds.ragged import ranges_of
from opfacade.plans._matmul.checks import EIGHT_BIT_RESULTS, OUT_SCALE
from opfacade.plans._matmul.fields import CallTensors
from opfacade.plans._matmul.scaling import BLOCK, Scaling
from opfacade.plans._weights.form import WeightForm
from opfacade.plans._weights.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

Dims = tuple[Dim, ...]


class GroupedFields(Protocol):
    """The fields of GroupedMatmulDescriptor that decide its operands."""

    @property
    def groups(self) -> int: ...
    @property
    def total_num_rows(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def result(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def x_layout(self) -> str: ...
    @property
    def weight_layout(self) -> str: ...
    @property
    def scaling(self) -> Scaling | None: ...
    @property
    def weight_format(self) -> Weight | None: ...
    @property
    def bias(self) -> bool: ...
    @property
    def bias_dtype(self) -> str | None: ...
    @property
    def gated(self) -> bool: ...
    @property
    def add(self) -> bool: ...
    @property
    def accumulate(self) -> bool: ...
    @property
    def gather(self) -> bool: ...
    @property
    def rows_of_x(self) -> int: ...


class GroupedCall(CallTensors, Protocol):
    """CallTensors, and the tensors of only grouped products."""

    @property
    def weight_zero(self) -> Tensor | None: ...
    @property
    def weight_global(self) -> Tensor | None: ...
    @property
    def out_scale(self) -> Tensor | None: ...
    @property
    def counts(self) -> Tensor: ...
    @property
    def indptr(self) -> Tensor: ...
    @property
    def x_rows(self) -> Tensor: ...


def operands(problem: GroupedFields) -> dict[str, TensorSpec]:
    groups = Dim("groups", problem.groups)
    own = () if problem.layout == "k" else (groups,)  # group axis of weight
    n, k = Dim("2*n", 2 * problem.n) if problem.gated else Dim("n", problem.n), Dim("k", problem.k)
    room = (Dim("total_num_rows", problem.total_num_rows),)
    rows = room if problem.layout == "ragged" else (groups, *room)
    taken = _rows_of_x(problem, rows, room)
    found = {
        "x": _spec((*taken, k) if problem.x_layout == "mk" else (k, *taken), problem.dtype),
        "weight": _spec((*own, n, k) if problem.weight_layout == "nk" else (*own, k, n), problem.dtype),
    }
    if problem.weight_format is not None:
        found |= WeightForm(problem.weight_format, (groups,), n, problem.k, factors=(groups,)).tensors("weight")
    if problem.bias:
        dtype = problem.bias_dtype or problem.result
        found["bias"] = TensorSpec((groups, n), dtype, "in", "contiguous", ITEMSIZE[dtype])
    out = _spec((*rows, Dim("n", problem.n)), problem.result)
    if problem.add:
        found["add"] = out
    found["out"] = out._replace(role="inout" if problem.accumulate else "out")
    if problem.scaling is not None:
        found["x_scale"] = _scale(_x_scale(problem, problem.scaling, taken), problem.scaling.x_scale_dtype)
    if problem.scaling is not None and problem.weight_format is None:  # a weight_format has its own scales
        found["weight_scale"] = _scale((*own, *_weight_scale(problem, problem.scaling, n)), problem.scaling.weight_scale_dtype)
    if problem.result in EIGHT_BIT_RESULTS:
        found["out_scale"] = OUT_SCALE
    return found | _tables(problem, rows)


def _rows_of_x(problem: GroupedFields, rows: Dims, room: Dims) -> Dims:
    """Axes of x before k."""
    if problem.gather:
        return (Dim("num_x_rows", problem.rows_of_x),)
    return room if problem.layout == "k" else rows


def _tables(problem: GroupedFields, rows: Dims) -> dict[str, TensorSpec]:
    """The operands that assign rows to groups."""
    found, total = {}, problem.k if problem.layout == "k" else problem.total_num_rows
    if problem.layout == "masked":
        found["counts"] = index_spec(Dim("groups", problem.groups), values=(0, total + 1))
    else:
        entries = index_spec(Dim("groups+1", problem.groups + 1), values=(0, total + 1))
        found["indptr"] = entries._replace(contents=entries.contents._replace(rising=True))
    if problem.gather:
        found["x_rows"] = index_spec(*rows, values=(0, problem.rows_of_x))
    return found


def _spec(dims: Dims, dtype: str) -> TensorSpec:
    return TensorSpec(dims, dtype, "in", "rows", ITEMSIZE[dtype])


def _scale(dims: Dims, dtype: str) -> TensorSpec:
    return TensorSpec(dims, dtype, "in", "strided", ITEMSIZE[dtype])


def _x_scale(problem: GroupedFields, scaling: Scaling, taken: Dims) -> Dims:
    if scaling.kind == "tensor":
        return (Dim("1", 1),)
    if scaling.kind == "token":
        return taken
    *lead, rows = taken
    parts = Dim("parts of k", -(-problem.k // scaling.part))
    if scaling.x_scale_layout == "column_padded4":
        size = rows.size or 0
        rows = Dim(f"{rows.name} up to 4", size + -size % 4)
    return (*lead, rows, parts) if scaling.x_scale_layout == "row" else (*lead, parts, rows)


def _weight_scale(problem: GroupedFields, scaling: Scaling, n: Dim) -> Dims:
    """Axes of the scales of one group's weight."""
    if scaling.of_weight == "tensor":
        return (Dim("ranges", 1 + len(scaling.weight_starts)),)
    if scaling.of_weight == "token":
        return (n,)
    if scaling.kind == "mx32":
        return n, Dim("parts of k", -(-problem.k // scaling.part))
    of_n, of_k = scaling.block_offset
    blocks = -(-((n.size or 0) + of_n) // BLOCK), -(-(problem.k + of_k) // BLOCK)
    return Dim("blocks of n", blocks[0]), Dim("blocks of k", blocks[1])


def ranges(problem: GroupedFields, args: GroupedCall) -> list[tuple[int, int]]:
    """(first, stop) of each group: rows (with layout masked, rows of its part), or elements with layout k."""
    if problem.layout == "masked":
        counts: list[int] = args.counts.tolist()
        return [(0, count if 0 <= count <= problem.total_num_rows else 0) for count in counts]
    return ranges_of(args.indptr, problem.k if problem.layout == "k" else problem.total_num_rows)


def inside(problem: GroupedFields, args: GroupedCall) -> Tensor:
    """True for each row (with layout k: element) of a group: [total_num_rows], masked [groups, total_num_rows], or [k]."""
    import torch

    total = problem.k if problem.layout == "k" else problem.total_num_rows
    shape = (problem.groups, total) if problem.layout == "masked" else (total,)
    found = torch.zeros(shape, dtype=torch.bool, device=args.x.device)
    for group, (first, stop) in enumerate(ranges(problem, args)):
        (found[group] if problem.layout == "masked" else found)[first:stop] = True
    return found


def read(problem: GroupedFields, args: GroupedCall, name: str) -> Tensor | None:
    """A mask of the elements that a call reads, which broadcasts to an operand; None: all."""
    own = inside(problem, args)
    if problem.layout == "k":
        axes = {"x": problem.x_layout == "mk", "weight": problem.weight_layout == "nk"}
        return None if name not in axes else own if axes[name] else own[:, None]
    if name in ("add", "out"):
        return own[..., None]
    scaling = problem.scaling
    if name == "x" or (name == "x_scale" and scaling is not None and scaling.kind != "tensor"):
        return _of_x(scaling, _taken(problem, args, own) if problem.gather else own, name)
    return None


def _taken(problem: GroupedFields, args: GroupedCall, own: Tensor) -> Tensor:
    """True for each row of x that a row of a group is computed from."""
    import torch

    ids = args.x_rows[own].long()
    found = torch.zeros(problem.rows_of_x, dtype=torch.bool, device=own.device)
    found[ids[(ids >= 0) & (ids < problem.rows_of_x)]] = True
    return found


def _of_x(scaling: Scaling | None, rows: Tensor, name: str) -> Tensor:
    """A mask of rows of x, shaped to broadcast to x or to its scales."""
    from torch.nn.functional import pad

    if name == "x" or scaling is None:
        return rows[..., None]
    if scaling.kind == "token":
        return rows
    if scaling.x_scale_layout == "row":
        return rows[..., None]
    more = -rows.shape[-1] % 4 if scaling.x_scale_layout == "column_padded4" else 0
    return pad(rows, (0, more))[..., None, :]
