"""Matrix products: mm, bmm, matmul with broadcast batches, linear, and products plus a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.matmul import MatmulDescriptor
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shape, Shaped, broadcast, refuse
from opfacade.recipes.products._product import OPERANDS, Product, behind, one_dtype, result_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType, Scalar


SUMS = f"{OPERANDS}; add is the broadcast input"


def _matrices(names: tuple[str, str], input: Shaped, other: Shaped, rank: int = 2) -> Product:
    """rank: 2 for matrices, 3 for batches of matrices."""
    for name, one in zip(names, (input, other), strict=True):
        if one.rank != rank:
            refuse(name, "a matrix" if rank == 2 else "matrices, [batch, rows, columns]", one.shape)
    if input.shape[:-2] != other.shape[:-2] or input.shape[-1] != other.shape[-2]:
        refuse(names[1], f"{'[batch, ' if rank > 2 else '['}k, n] for an input of shape {input.shape}", other.shape)
    rows, n = input.shape[-2], other.shape[-1]
    return Product(input.shape[:-2], rows, n, input.shape[-1], (*input.shape[:-2], rows, n))


def _plain(names: tuple[str, str], input: Shaped, other: Shaped, out_dtype: AnyDType | None, rank: int) -> MatmulDescriptor:
    dtype = one_dtype({names[0]: input, names[1]: other})
    return _matrices(names, input, other, rank).descriptor(dtype, result_of(dtype, out_dtype))


def _added(
    names: tuple[str, str], tensors: tuple[Shaped, Shaped, Shaped], out_dtype: AnyDType | None, rank: int, **numbers: object
) -> Any:
    input, one, other = tensors
    dtype = one_dtype({names[0]: one, names[1]: other})
    product, wanted = _matrices(names, one, other, rank), result_of(dtype, out_dtype)
    return product.descriptor(dtype, wanted, **behind(product, input, wanted, numbers))


@recipe("mm", f"{OPERANDS}; if mat2 is a transposed view, use `linear`")
def mm(input: Shaped, mat2: Shaped, out_dtype: AnyDType | None = None) -> MatmulDescriptor:
    return _plain(("input", "mat2"), input, mat2, out_dtype, 2)


@recipe("bmm", f"{OPERANDS}, each with a leading batch axis if the batch size is not 1")
def bmm(input: Shaped, mat2: Shaped, out_dtype: AnyDType | None = None) -> MatmulDescriptor:
    return _plain(("input", "mat2"), input, mat2, out_dtype, 3)


@recipe("addmm", SUMS)
def addmm(
    input: Shaped, mat1: Shaped, mat2: Shaped, out_dtype: AnyDType | None = None, *, beta: Scalar = 1, alpha: Scalar = 1
) -> MatmulDescriptor:  # fmt: skip
    made: MatmulDescriptor = _added(("mat1", "mat2"), (input, mat1, mat2), out_dtype, 2, beta=beta, alpha=alpha)
    return made


@recipe("baddbmm", f"{SUMS}; each has a leading batch axis if the batch size is not 1")
def baddbmm(
    input: Shaped, batch1: Shaped, batch2: Shaped, out_dtype: AnyDType | None = None, *, beta: Scalar = 1, alpha: Scalar = 1
) -> MatmulDescriptor:  # fmt: skip
    made: MatmulDescriptor = _added(("batch1", "batch2"), (input, batch1, batch2), out_dtype, 3, beta=beta, alpha=alpha)
    return made


@recipe("nn.functional.linear", "operands: x, weight and bias; all axes of x except the last are combined into rows")
def linear(input: Shaped, weight: Shaped, bias: Shaped | None = None) -> MatmulDescriptor:
    """input [..., k], weight [n, k] or [k], bias [n] or one element."""
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    if bias is not None and not isinstance(bias, Shaped):
        refuse("bias", "a tensor", bias)
    dtype, columns = one_dtype(given), weight.shape[:-1]
    if not input.rank or weight.rank not in (1, 2) or input.shape[-1] != weight.shape[-1]:
        refuse("weight", f"[n, k] or [k] for an input of shape {input.shape}", weight.shape)
    if bias is not None and bias.shape != columns:
        refuse("bias", f"shape {columns}", bias.shape)
    rows, n = Shaped(input.shape[:-1], dtype).numel, Shaped(columns, dtype).numel
    product = Product((), rows, n, input.shape[-1], (*input.shape[:-1], *columns), ("mk", "nk"))
    return product.descriptor(dtype, bias=bias is not None)


def _general(input: Shaped, other: Shaped) -> Product:
    """The rules of torch.matmul: a vector becomes one row or one column (a row of weight). If one factor is a single matrix,
    the rows of all matrices of the other become rows of one matrix. Otherwise batch axes are broadcast."""
    if not input.rank or not other.rank:
        refuse("other" if input.rank else "input", "a tensor with at least one axis", ())
    k, of_other = input.shape[-1], other.shape[-1] if other.rank == 1 else other.shape[-2]
    if k != of_other:
        refuse("other", f"{k} rows, the number of columns of input", other.shape)
    rows: Shape = input.shape[-2:-1]
    columns: Shape = () if other.rank == 1 else other.shape[-1:]
    layouts = ("mk", "nk" if other.rank == 1 else "kn")
    if other.rank < 3:
        shape = (*input.shape[:-1], *columns)
        return Product((), Shaped(input.shape[:-1], "f32").numel, (*columns, 1)[0], k, shape, layouts)
    batch = broadcast([input.shape[:-2], other.shape[:-2]])
    return Product(batch, (*rows, 1)[0], columns[0], k, (*batch, *rows, *columns), layouts)


@recipe("matmul", f"{OPERANDS}; the batch axes of other are broadcast to those of input and combined into one axis")
def matmul(input: Shaped, other: Shaped) -> MatmulDescriptor:
    return _general(input, other).descriptor(one_dtype({"input": input, "other": other}))


@recipe("__rmatmul__", "matmul(other, input)")
def rmatmul(input: Shaped, other: Shaped) -> MatmulDescriptor:
    return matmul.make(other, input)


@recipe("mv", "operands: x [rows, k], weight [1, k] and out [rows, 1]")
def mv(input: Shaped, vec: Shaped) -> MatmulDescriptor:
    if input.rank != 2 or vec.rank != 1:
        refuse("vec" if input.rank == 2 else "input", "a matrix and a vector", (input.shape, vec.shape))
    dtype = one_dtype({"input": input, "vec": vec})
    if input.shape[1] != vec.shape[0]:
        refuse("vec", f"{input.shape[1]} elements, the number of columns of input", vec.shape)
    return _general(input, vec).descriptor(dtype)
