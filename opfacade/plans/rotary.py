"""Rotary position embedding of q and k with a table of cosines and sines, and norm, rotation and append in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.in_place import in_place
from opfacade.core.model import F32_MAX, Count, Real, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, index_spec, is_finite, num_valid_spec, valid_count
from opfacade.core.request_tables import RequestTables
from opfacade.plan import Plan
from opfacade.plans._attention.paging import (
    FP8,
    SCALES,
    KvScale,
    PagedKvCacheDescriptor,
    check_scale,
    check_token_bound,
    index_bound,
    on_pages,
    page_table_operands,
    page_tables,
    scale_operands,
    wrong_scale,
)
from opfacade.plans._rotary.fields import Narrow, Sectioned, angle_operands, check_rotation
from opfacade.plans._rotary.program import rotated_element
from opfacade.plans._rotary.qkv_prepare_args import QkvPrepareArgs
from opfacade.plans._rotary.table import Kind, rotary_frequencies, rotary_table
from opfacade.programs.expression import Node

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = [
    "Kind",
    "PagedKvCacheDescriptor",
    "QkvPrepareArgs",
    "QkvPrepareDescriptor",
    "QkvPreparePlan",
    "RotaryArgs",
    "RotaryDescriptor",
    "RotaryPlan",
    "rotary_frequencies",
    "rotary_table",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryArgs(Args):
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "q": "[total_num_rows, num_qo_heads, head_dim]; overwritten with in_place",
        "k": "[total_num_rows, num_kv_heads, head_dim]; overwritten with in_place; absent without kv heads",
        "q_out": "written: like q; absent with in_place",
        "k_out": "written: like k; absent with in_place, and without kv heads",
        "positions": "[total_num_rows], or [sections, total_num_rows]: rows of cos_sin_cache; negative positions are skipped",
        "cos_sin_cache": "[max_positions, rotary_dim]: rotary_dim / 2 cosines and then rotary_dim / 2 sines per position",
        "num_valid": "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`",
    })  # fmt: skip
    q: Tensor
    k: Tensor | None = None
    q_out: Tensor | None = None
    k_out: Tensor | None = None
    positions: Tensor
    cos_sin_cache: Tensor
    num_valid: Tensor | None = None


class RotaryDescriptor(Sectioned, Descriptor[RotaryArgs]):
    """Rotate pairs of elements of each head of q and k by the angles of the row's position.

    The elements rotary_offset to rotary_offset + rotary_dim of a head are rotated, in pairs (i, i + rotary_dim / 2), or with
    interleaved in pairs (2i, 2i + 1). (x, y) becomes (x cos - y sin, y cos + x sin); inverse rotates by the negative angle.
    Each step is rounded to f32, and the result is rounded once, so the bits are the same on every device.
    cos_sin_cache [max_positions, rotary_dim] has rotary_dim / 2 cosines and then as many sines per position; `rotary_table`
    creates one. A position after the end of the table uses the last row, and is reported at level indices. A row with a
    negative position (padding) is neither rotated nor written.
    sections: the number of pairs in each group, rotary_dim / 2 in total; each group has separate positions, so positions is
    [groups, rows]. section_order: "blocks": the first sections[0] pairs are group 0, and so on; "interleaved": pair i is in
    group g = i % groups if i < groups * sections[g], otherwise in group 0.
    in_place: q and k are overwritten; otherwise all elements of q_out and k_out are written. Rows and heads may have any
    strides. Raises DescriptorError.
    """

    op: Literal["rotary"] = Field(default="rotary", description="The operator.")
    category: ClassVar[str] = "rotary"
    element_types: ClassVar[frozenset[str]] = frozenset({"positions"})
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "num_qo_heads"})
    total_num_rows: Count = Field(description="Rows of q and k.")
    num_qo_heads: Size = Field(description="Heads of q.")
    num_kv_heads: Count = Field(description="Heads of k; 0: no k.")
    head_dim: Size = Field(description="Elements of a head.")
    rotary_offset: Count = Field(default=0, description="Number of elements of a head before the rotated elements.")
    interleaved: bool = Field(default=False, description="Whether a pair consists of neighbouring elements.")
    inverse: bool = Field(default=False, description="Whether heads are rotated by the negative angle.")
    dtype: Narrow = Field(description="Element type of q and k.")
    table_dtype: Narrow = Field(default="f32", description="Element type of cos_sin_cache.")
    positions: Literal["i32", "i64"] = Field(default="i64", description="Element type of positions.")
    in_place: bool = Field(default=True, description="Whether q and k are overwritten.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    @model_validator(mode="after")
    def _fits(self) -> RotaryDescriptor:
        check_rotation(self, self.head_dim)
        return self

    def program(self) -> dict[str, Node]:
        """{"out": an element of a head}, a program over [rows, heads, head_dim] of the inputs x, positions and table, each read
        at computed positions."""
        return {"out": rotated_element(self)}

    def operands(self) -> dict[str, TensorSpec]:
        rows, dim, valid = Dim("total_num_rows", self.total_num_rows), Dim("head_dim", self.head_dim), ""
        valid = "num_valid" if self.num_valid else ""
        heads = {"q": Dim("num_qo_heads", self.num_qo_heads)}
        heads |= {"k": Dim("num_kv_heads", self.num_kv_heads)} if self.num_kv_heads else {}
        size = ITEMSIZE[self.dtype]
        given = {name: TensorSpec((rows, of, dim), self.dtype, alignment=size, valid_rows=valid) for name, of in heads.items()}
        out = {f"{name}_out": spec._replace(role="out", replaces=name if self.in_place else "") for name, spec in given.items()}
        found = given | out | angle_operands(self, rows, valid)
        found |= {"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {}
        return in_place(found) if self.in_place else found

    def written(self, args: Args) -> dict[str, Tensor]:
        """The results of a call, as q and k."""
        names = ("q", "k") if self.num_kv_heads else ("q",)
        return {name: getattr(args, name if self.in_place else f"{name}_out") for name in names}


class RotaryPlan(Plan[RotaryArgs]):
    """Rotary position embedding of q and k."""


class QkvPrepareDescriptor(Sectioned, Descriptor[QkvPrepareArgs]):
    """All steps between the projection of q, k and v and attention: norm of q and k heads, rotation, append to a paged cache.

    norm: "rms" divides a head by sqrt(mean square + eps) and multiplies by a weight; "rms_one_plus" multiplies by 1 + weight.
    The rotation is that of RotaryDescriptor. q is written to q_out, or with in_place to q. k and v are written to their pages,
    divided by k_scale and v_scale if kv_scale is set, and rounded once; an fp8 cache saturates. k and v are not changed.
    page_table: "csr" and "block" as in PagedKvAppendDescriptor: lengths include the new rows, which are the last rows of their
    requests; rows that belong to no request are skipped. "slots": page * page_size + token for each row; -1: the row is not
    stored. A row with a negative position is skipped, and so are rows from num_valid on. Raises DescriptorError.
    """

    op: Literal["qkv_prepare"] = Field(default="qkv_prepare", description="The operator.")
    category: ClassVar[str] = "rotary"
    element_types: ClassVar[frozenset[str]] = frozenset({"positions"})
    error_models: ClassVar[tuple[str, ...]] = ("exact", "qkv-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"batch_size", "total_num_rows", "num_qo_heads", "max_kv_indices"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"eps"})
    later: ClassVar[frozenset[str]] = frozenset({"num_valid"})
    total_num_rows: Count = Field(description="Rows of q, k and v.")
    num_qo_heads: Size = Field(description="Heads of q.")
    paged_kv: PagedKvCacheDescriptor = Field(description="The pools of K and V.")
    page_table: Literal["csr", "block", "slots"] = Field(
        default="slots",
        description='"csr" and "block": tables of requests, whose lengths include the new rows; "slots": one slot per row.',
    )
    batch_size: Count = Field(default=0, description="Requests of the batch; with slots, no operand depends on it.")
    max_kv_indices: Count | None = Field(
        default=None, description="Largest number of pages of all requests; None: num_total_pages."
    )
    dtype: Narrow = Field(description="Element type of q, k and v.")
    norm: Literal["none", "rms", "rms_one_plus"] = Field(default="rms", description="The norm of each head of q and k.")
    eps: Annotated[Real, Field(ge=0, le=F32_MAX)] = Field(default=1e-6, description="Number added to the mean square.")
    weight_dtype: Narrow | None = Field(default=None, description="Element type of the weights; None: as q.")
    rotary_offset: Count = Field(default=0, description="Number of elements of a head before the rotated elements.")
    interleaved: bool = Field(default=False, description="Whether a pair consists of neighbouring elements.")
    table_dtype: Narrow = Field(default="f32", description="Element type of cos_sin_cache.")
    positions: Literal["i32", "i64"] = Field(default="i64", description="Element type of positions.")
    kv_scale: KvScale = Field(default="none", description='"tensor" or "head": K and V are divided by k_scale and v_scale.')
    in_place: bool = Field(default=False, description="Whether q is overwritten.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    @model_validator(mode="after")
    def _fits(self) -> QkvPrepareDescriptor:
        check_rotation(self, self.paged_kv.head_dim)
        check_token_bound(self.paged_kv, self.max_kv_indices)
        check_scale(self.kv_scale, self.paged_kv.dtype)
        if self.paged_kv.dtype not in (self.dtype, *FP8):
            raise contradiction("paged_kv.dtype", f"{self.dtype}, the dtype of q, or {' or '.join(FP8)}", self.paged_kv.dtype)
        if self.norm == "none" and self.weight_dtype is not None:
            raise contradiction("weight_dtype", "None without a norm", self.weight_dtype)
        return self

    @property
    def request_token_bound(self) -> int:
        """The largest number of tokens of a request."""
        return index_bound(self.paged_kv, self.max_kv_indices) * self.paged_kv.page_size

    def request_tables(self) -> RequestTables | None:
        if self.page_table == "slots":
            return None
        return replace(page_tables(self), rows="append_indptr", total_rows=self.total_num_rows, appends=True)

    def on_pages(self, pages: int) -> Self:
        return on_pages(self, pages)

    def wrong_values(self, name: str, args: Any) -> tuple[Tensor, str] | None:
        """Elements of the cache and the angle table that are not read may have any value, and so may rows that are skipped."""
        if name in SCALES:
            return wrong_scale(getattr(args, name))
        if name not in ("q", "k", "v"):
            return super().wrong_values(name, args) if name.endswith("weight") else None
        wrong = ~is_finite(getattr(args, name))
        wrong[(args.positions.reshape(self.groups, -1) < 0).any(0)] = False
        if args.append_indptr is not None:
            wrong[int(args.append_indptr[-1]) :] = False
        if args.num_valid is not None:
            wrong[valid_count(args.num_valid, self.total_num_rows) :] = False
        return wrong, "finite values"

    def operands(self) -> dict[str, TensorSpec]:
        cache, rows, size = self.paged_kv, Dim("total_num_rows", self.total_num_rows), ITEMSIZE[self.dtype]
        dim, valid = Dim("head_dim", cache.head_dim), "num_valid" if self.num_valid else ""
        q = TensorSpec((rows, Dim("num_qo_heads", self.num_qo_heads), dim), self.dtype, alignment=size, valid_rows=valid)
        kv = q._replace(shape=(rows, Dim("num_kv_heads", cache.num_kv_heads), dim))
        found = {"q": q, "k": kv, "v": kv}
        if self.norm != "none":
            of = self.weight_dtype or self.dtype
            found |= dict.fromkeys(
                ("q_weight", "k_weight"), TensorSpec((dim,), of, layout="contiguous", alignment=ITEMSIZE[of])
            )
        found["q_out"] = q._replace(role="out", replaces="q" if self.in_place else "")
        pool = cache.pool_spec("inout")
        found |= angle_operands(self, rows, valid) | {"k_data": pool, "v_data": pool} | self._destinations(rows, valid)
        found |= scale_operands(self.kv_scale, cache.num_kv_heads)
        found |= {"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {}
        return in_place(found) if self.in_place else found

    def _destinations(self, rows: Dim, valid: str) -> dict[str, TensorSpec]:
        if self.page_table == "slots":
            slots = self.paged_kv.num_total_pages * self.paged_kv.page_size
            return {"slots": index_spec(rows, values=(-1, slots), valid_rows=valid, dtype="i64")}
        table = page_table_operands(self.page_table, self.batch_size)
        return {"append_indptr": index_spec(Dim("batch_size+1", self.batch_size + 1))} | table


class QkvPreparePlan(Plan[QkvPrepareArgs]):
    """Norm, rotation and append of q, k and v."""


EXAMPLES = (
    RotaryDescriptor(total_num_rows=64, num_qo_heads=8, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="bf16"),
    RotaryDescriptor(
        total_num_rows=7, num_qo_heads=3, num_kv_heads=1, head_dim=65, rotary_dim=32, rotary_offset=5, dtype="f32",
        interleaved=True, positions="i32", in_place=False,
    ),
    RotaryDescriptor(
        total_num_rows=13, num_qo_heads=5, num_kv_heads=0, head_dim=192, rotary_dim=64, rotary_offset=128, dtype="bf16",
        table_dtype="bf16", interleaved=True, inverse=True, num_valid=True,
    ),
    RotaryDescriptor(
        total_num_rows=9, num_qo_heads=4, num_kv_heads=2, head_dim=128, rotary_dim=128, dtype="f16", sections=(16, 24, 24),
        in_place=False,
    ),
    QkvPrepareDescriptor(
        total_num_rows=40, num_qo_heads=8, rotary_dim=128, dtype="bf16",
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=16, page_size=16, num_kv_heads=2, head_dim=128, dtype="bf16", layout="HND"
        ),
    ),
    QkvPrepareDescriptor(
        total_num_rows=7, num_qo_heads=3, rotary_dim=24, rotary_offset=8, dtype="f16", norm="none", interleaved=True,
        positions="i32", page_table="csr", batch_size=2, in_place=True, kv_scale="head",
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=9, page_size=3, num_kv_heads=1, head_dim=65, dtype="f8_e4m3", layout="NHD"
        ),
    ),
    QkvPrepareDescriptor(
        total_num_rows=30, num_qo_heads=4, rotary_dim=64, dtype="bf16", norm="rms_one_plus", weight_dtype="f32",
        page_table="block", batch_size=3,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=16, page_size=8, num_kv_heads=2, head_dim=96, dtype="bf16", layout="HND"
        ),
    ),
    QkvPrepareDescriptor(
        total_num_rows=24, num_qo_heads=4, rotary_dim=64, dtype="bf16", in_place=True, num_valid=True,
        paged_kv=PagedKvCacheDescriptor(
            num_total_pages=8, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="HND"
        ),
    ),
)  # fmt: skip
