"""scaled_mm: a product of fp8 with the scales of both matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.plans.matmul import MatmulDescriptor, Scaling
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.products._product import FLOATS, Product, one_dtype, result_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType


EIGHT = ("f8_e4m3", "f8_e5m2")
BLOCK = 128


@recipe("scaled_mm torch._scaled_mm", "operands: x, weight (mat2.T), x_scale, weight_scale (scale_b.T), and bias")
def scaled_mm(
    input: Shaped,
    mat2: Shaped,
    scale_a: Shaped,
    scale_b: Shaped,
    bias: Shaped | None = None,
    scale_result: object = None,
    out_dtype: AnyDType | None = None,
    use_fast_accum: bool = False,
) -> MatmulDescriptor:
    """mat2: [k, n] in column-major order, which fp8 products require. use_fast_accum is ignored: sums never use the less
    accurate accumulation.

    Scales are f32: a single number of any rank; [rows, 1] and [1, n]; or [rows, ceil(k / 128)] and [ceil(k / 128), ceil(n /
    128)]."""
    dtype = one_dtype({"input": input, "mat2": mat2}, EIGHT)
    if input.rank != 2 or mat2.rank != 2 or input.shape[1] != mat2.shape[0]:
        refuse("mat2", "a matrix with as many rows as the matrix input has columns", (input.shape, mat2.shape))
    if scale_result is not None:
        refuse("scale_result", "None, because 8-bit results are not supported", scale_result)
    if out_dtype is None:
        refuse("out_dtype", "f16, bf16 or f32, because 8-bit results are not supported", "None, which means fp8")
    wanted = result_of("f32", out_dtype)
    product = Product((), input.shape[0], mat2.shape[1], input.shape[1], (input.shape[0], mat2.shape[1]), ("mk", "nk"))
    return product.descriptor(dtype, wanted, scaling=_scaling(product, scale_a, scale_b), **_bias(bias, product.n))


def _bias(given: object, n: int) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Shaped) or given.shape != (n,) or given.dtype not in FLOATS[:3]:
        refuse("bias", f"f16, bf16 or f32 of shape ({n},)", given)
    return {"bias": True, "bias_dtype": given.dtype}


def _scaling(product: Product, scale_a: Shaped, scale_b: Shaped) -> Scaling:
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != "f32":
            refuse(
                name, "f32", scale.dtype, "For scales of 32 elements, use MatmulDescriptor, which stores them in another order."
            )
    rows, n, parts = product.rows, product.n, -(-product.k // BLOCK)
    kinds = [_kind("scale_a", scale_a, (rows, 1)), _kind("scale_b", scale_b, (1, n))]
    if None not in kinds:
        return Scaling(kind=kinds[0], weight_kind=kinds[1])
    for name, scale, shape in (("scale_a", scale_a, (rows, parts)), ("scale_b", scale_b, (parts, -(-n // BLOCK)))):
        if scale.shape != shape:
            refuse(name, f"one scale, one per row or column, or for blocks of 128 the shape {shape}", scale.shape)
    return Scaling(kind="block")


def _kind(name: str, scale: Shaped, shape: tuple[int, int]) -> Any:
    """Whether there is one scale, or one for each row or column; None: neither."""
    if scale.numel == 1 and scale.rank < 3:
        return "tensor"
    return "token" if scale.shape == shape else None
