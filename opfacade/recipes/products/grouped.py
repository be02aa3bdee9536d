"""grouped_mm: products of groups of rows, or of groups along k, whose ends are in a tensor; also products of pairs of
matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, refuse
from opfacade.recipes.products._product import Product, one_dtype, result_of

if TYPE_CHECKING:
    from opfacade.recipes._tensors import AnyDType


@recipe("grouped_mm", "operands: x, weight and indptr, which is 0 followed by offs; no group and no row need be aligned")
def grouped_mm(
    mat_a: Shaped, mat_b: Shaped, *, offs: Shaped | None = None, bias: object = None, out_dtype: AnyDType | None = None
) -> GroupedMatmulDescriptor | MatmulDescriptor:
    """torch.nn.functional.grouped_mm. offs: int32 [groups], the end of each group.

    mat_a [rows, k] with mat_b [groups, k, n]: groups of rows. mat_a [rows, k] with mat_b [k, n]: groups of k, result [groups,
    rows, n]. Both with three axes, without offs: as bmm. mat_b may be a transposed view: then use weight_layout="nk"."""
    if bias is not None:
        refuse("bias", "None; GroupedMatmulDescriptor has a bias for each group, [groups, n]", bias)
    dtype = one_dtype({"mat_a": mat_a, "mat_b": mat_b})
    wanted = result_of(dtype, out_dtype)
    if mat_a.rank not in (2, 3) or mat_b.rank not in (2, 3) or mat_a.shape[-1] != mat_b.shape[-2]:
        refuse("mat_b", f"[k, n] or [groups, k, n] for mat_a of shape {mat_a.shape}", mat_b.shape)
    if mat_a.rank == 3:
        return _pairs(mat_a, mat_b, offs).descriptor(dtype, wanted)
    groups = _groups(offs)
    if mat_b.rank == 3 and mat_b.shape[0] != groups:
        refuse("mat_b", f"{groups} matrices, one for each entry of offs", mat_b.shape)
    return GroupedMatmulDescriptor(
        groups=groups, total_num_rows=mat_a.shape[0], n=mat_b.shape[-1], k=mat_a.shape[1], dtype=dtype, out_dtype=wanted,
        layout="ragged" if mat_b.rank == 3 else "k", weight_layout="kn",
    )  # fmt: skip


def _groups(offs: Shaped | None) -> int:
    if offs is None or offs.rank != 1 or offs.dtype != "i32" or not offs.shape[0]:
        refuse("offs", "int32 [groups], the ends of groups", None if offs is None else (offs.dtype, offs.shape))
    return offs.shape[0]


def _pairs(mat_a: Shaped, mat_b: Shaped, offs: Shaped | None) -> Product:
    if mat_b.rank != 3:
        hint = "grouped_mm(mat_b.T, mat_a.transpose(1, 2), offs=offs) is its transpose, with groups of rows."
        refuse("mat_a", "[rows, k], because groups of columns are not contiguous", mat_a.shape, hint)
    if offs is not None:
        refuse("offs", "None for matrices in pairs", offs.shape)
    if mat_a.shape[0] != mat_b.shape[0]:
        refuse("mat_b", f"{mat_a.shape[0]} matrices, as mat_a has", mat_b.shape)
    batch, rows, n = mat_a.shape[:1], mat_a.shape[1], mat_b.shape[2]
    return Product(batch, rows, n, mat_a.shape[2], (*batch, rows, n))
