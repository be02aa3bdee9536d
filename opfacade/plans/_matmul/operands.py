"""Shapes, dtypes and roles of the tensors of a product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.operands import Dim, TensorSpec, counted_by, num_valid_spec
from opfacade.plans._matmul.checks import EIGHT_BIT_RESULTS, OUT_SCALE
from opfacade.plans._matmul.scaling import BLOCK, Scaling
from opfacade.plans._weights.form import WeightForm

if TYPE_CHECKING:
    from opfacade.plans._matmul.fields import DenseFields


def operands(problem: DenseFields) -> dict[str, TensorSpec]:
    rows, k = Dim("total_num_rows", problem.total_num_rows), Dim("k", problem.k)
    out_n = Dim("n", problem.n)
    n = Dim("2*n", 2 * problem.n) if problem.gated else out_n
    found = {
        "x": _rows(problem, (rows, k) if problem.x_layout == "mk" else (k, rows), problem.dtype),
    }
    if problem.weight_format is not None:
        found |= WeightForm(problem.weight_format, _batched(problem, ()), n, problem.k).tensors("weight")
    else:
        found["weight"] = _rows(problem, (n, k) if problem.weight_layout == "nk" else (k, n), problem.dtype)
    out = _rows(problem, (rows, out_n), problem.result)
    if problem.bias:
        dtype = problem.bias_dtype or problem.result
        found["bias"] = TensorSpec((n,), dtype, "in", "contiguous", ITEMSIZE[dtype])
    if problem.add:
        found["add"] = out
    found["out"] = out._replace(role="inout" if problem.accumulate else "out")
    if problem.scaling is not None:
        found |= _scales(problem, problem.scaling, rows, n)
    if problem.result in EIGHT_BIT_RESULTS:
        found["out_scale"] = OUT_SCALE
    if not problem.num_valid:
        return found
    counted = {name: counted_by(spec, _rows_axis(spec), "num_valid") for name, spec in found.items()}
    return counted | {"num_valid": num_valid_spec(problem.total_num_rows)}


def _rows(problem: DenseFields, dims: tuple[Dim, ...], dtype: str) -> TensorSpec:
    return TensorSpec(_batched(problem, dims), dtype, "in", "rows", ITEMSIZE[dtype])


def _batched(problem: DenseFields, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return dims if problem.batch == 1 else (Dim("batch", problem.batch), *dims)


def _rows_axis(spec: TensorSpec) -> int | None:
    """The axis of the rows of x, or of their number rounded up."""
    return next((axis for axis, dim in enumerate(spec.shape) if dim.name.startswith("total_num_rows")), None)


def _scales(problem: DenseFields, scaling: Scaling, rows: Dim, n: Dim) -> dict[str, TensorSpec]:
    shapes = {"x_scale": _x_scale(problem, scaling, rows)}
    if problem.weight_format is None:  # a weight_format has its own scales
        shapes["weight_scale"] = _weight_scale(problem, scaling, n)
    dtypes: dict[str, str] = {"x_scale": scaling.x_scale_dtype, "weight_scale": scaling.weight_scale_dtype}
    if scaling.x_zero:
        shapes |= {"x_zero": shapes["x_scale"], "weight_sum": _batched(problem, (n,))}
        dtypes |= {"x_zero": "i32", "weight_sum": "i32"}
    return {name: TensorSpec(shape, dtypes[name], "in", "strided", ITEMSIZE[dtypes[name]]) for name, shape in shapes.items()}


def _x_scale(problem: DenseFields, scaling: Scaling, rows: Dim) -> tuple[Dim, ...]:
    if scaling.kind == "tensor":
        return (Dim("1", 1),)
    if scaling.kind == "token":
        return _batched(problem, (rows,))
    parts = Dim("parts of k", -(-problem.k // scaling.part))
    if scaling.x_scale_layout == "column_padded4":
        rows = Dim("total_num_rows up to 4", problem.total_num_rows + -problem.total_num_rows % 4)
    return _batched(problem, (rows, parts) if scaling.x_scale_layout == "row" else (parts, rows))


def _weight_scale(problem: DenseFields, scaling: Scaling, n: Dim) -> tuple[Dim, ...]:
    if scaling.of_weight == "tensor":
        return (Dim("ranges", 1 + len(scaling.weight_starts)),)
    if scaling.of_weight == "token":
        return _batched(problem, (n,))
    of_n, of_k = scaling.block_offset
    if scaling.kind == "mx32":
        return _batched(problem, (n, Dim("parts of k", -(-problem.k // scaling.part))))
    blocks = (-(-((n.size or 0) + of_n) // BLOCK), -(-(problem.k + of_k) // BLOCK))
    return _batched(problem, (Dim("blocks of n", blocks[0]), Dim("blocks of k", blocks[1])))
