"""CUDA paged append: a bit copy, with one kernel for all dtypes of a size, or an append of rotated or quantised rows."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, repeatable
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import Condition, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.kv_cache import PagedKvAppendDescriptor

_EVIDENCE = ("tests/families/kv_cache/test_kv_cache_gpu.py::test_runs_repeat_bitwise", *REPEATS)
_OWN_SLOTS = Condition(id="own_slots", text="no two new rows share a slot")


def _lacks(descriptor: PagedKvAppendDescriptor, target: Target) -> Iterator[Reason]:
    if descriptor.quantises:
        yield from support.fp8_reasons(target, f"rows that are cast to {descriptor.paged_kv.dtype}")


def _facts(descriptor: PagedKvAppendDescriptor) -> dict[str, bool | int | str]:
    cache = descriptor.paged_kv
    facts: dict[str, bool | int | str] = {"elem_bytes": ITEMSIZE[cache.dtype], "head_dim": cache.head_dim}
    if not descriptor.copies:
        facts |= {"dtype": cache.dtype, "new_dtype": descriptor.row_dtype, "kv_scale": descriptor.kv_scale}
        facts |= {"rope": descriptor.rope, "rotated": descriptor.rotated}
    if descriptor.rope_dtype != "f32":
        facts["rope_dtype"] = descriptor.rope_dtype
    return facts | support.page_facts(cache, descriptor.page_table)


def _dtypes(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """The copy distinguishes element sizes only."""
    if descriptor.copies:
        return (("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),)
    return (("kv", descriptor.paged_kv.dtype), ("new", descriptor.row_dtype))


def _guarantee(descriptor: PagedKvAppendDescriptor, target: Target) -> PrecisionGuarantee:
    math, model = ("copy", "exact") if descriptor.copies else ("f32_rounded_once", "append-f32")
    return repeatable(math, "none", model, _EVIDENCE, conditions=(_OWN_SLOTS,))


_APPEND = CudaKernel(
    descriptor=PagedKvAppendDescriptor,
    template=lambda d: "kv_cache/paged_kv_append" if d.copies else "kv_cache/paged_kv_append_computed",
    impl=lambda d: "copy_rows" if d.copies else "computed_rows",
    name="copy_rows",
    accepts=_lacks,
    size_free=True,
    constants=_facts,
    dtypes=_dtypes,
    in_dtypes=("elem_bytes", "dtype", "new_dtype"),
    guarantee=_guarantee,
    scalars=lambda d: (d.paged_kv.token_axis,),
    is_empty=lambda d: d.total_num_rows == 0 or d.batch_size == 0,
)

CANDIDATES = (_APPEND.candidate,)
