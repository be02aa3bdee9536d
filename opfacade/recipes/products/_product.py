"""Sizes and dtypes of a matrix product, as in its descriptor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from opfacade.core.dtypes import DType
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.recipes._pointwise import HINT
from opfacade.recipes._tensors import Shape, Shaped, broadcast, dtype_of, refuse

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType


FLOATS = ("f16", "bf16", "f32", "f64")
RESULTS = get_args(get_args(MatmulDescriptor.model_fields["out_dtype"].annotation)[0])
OPERANDS = "operands: x [rows, k], weight [k, n] and add [rows, n]"


@dataclass(frozen=True)
class Product:
    """The product of [batch, rows, k] and [batch, k, n]. shape: the shape of torch's result.

    layouts: the layouts of x and of weight.
    """

    batch: Shape
    rows: int
    n: int
    k: int
    shape: Shape
    layouts: tuple[Any, Any] = ("mk", "kn")

    def descriptor(self, dtype: AnyDType, out_dtype: AnyDType | None = None, **fields: object) -> MatmulDescriptor:
        return MatmulDescriptor(
            total_num_rows=self.rows,
            n=self.n,
            k=self.k,
            batch=_counted(self.batch),
            dtype=dtype,
            out_dtype=out_dtype,
            x_layout=self.layouts[0],
            weight_layout=self.layouts[1],
            **fields,
        )


def _counted(batch: Shape) -> int:
    """The number of products in the batch; zero products are refused."""
    found = Shaped(batch, "f32").numel
    return found if found else refuse("input", "at least one matrix", batch)


def one_dtype(tensors: dict[str, Shaped], dtypes: tuple[str, ...] = FLOATS) -> DType:
    """The common dtype of all factors."""
    name, first = next(iter(tensors.items()))
    for other, one in tensors.items():
        if one.dtype not in dtypes:
            refuse(other, f"{', '.join(dtypes)}", one.dtype, HINT)
        if one.dtype != first.dtype:
            refuse(other, f"{first.dtype}, the dtype of {name}", one.dtype, HINT)
    return first.dtype


def result_of(dtype: DType, wanted: AnyDType | None) -> DType:
    """The dtype of the result: `wanted`, or by default the dtype of the factors. A f64 result needs f64 factors."""
    found = dtype if wanted is None else dtype_of(wanted, "out_dtype")
    if found not in RESULTS or (found == "f64") != (dtype == "f64") or found == "i32":
        refuse("out_dtype", "f64" if dtype == "f64" else "f16, bf16 or f32", found)
    return found


def behind(product: Product, input: Shaped, dtype: DType, numbers: dict[str, Any]) -> dict[str, Any]:
    """The fields of alpha * product + beta * input. If beta is 0, input is not read, as in torch, so its NaNs do not matter."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            refuse(name, "a number", number)
    if input.dtype != dtype:
        refuse("input", f"{dtype}, the dtype of the result", input.dtype, HINT)
    if broadcast([input.shape, product.shape]) != product.shape:
        refuse("input", f"a shape that expands to {product.shape}", input.shape)
    return {"alpha": numbers["alpha"]} | ({"add": True, "beta": numbers["beta"]} if numbers["beta"] else {})
