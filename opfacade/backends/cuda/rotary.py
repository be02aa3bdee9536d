"""Rotation and qkv_prepare on CUDA: a warp processes several heads of a row, which share the row's angles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.candidate import Reason
from opfacade.core.guarantee import EXACT, Condition, ErrorModel, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans.rotary import QkvPrepareDescriptor, RotaryDescriptor

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_PROMISE = PrecisionGuarantee(
    math_precision="f32_rounded_once",
    accumulator="none",
    deterministic=True,
    bit_stable_on_same_hardware=True,
    batch_invariant="composition",
    error_model=ErrorModel(id=EXACT),
    evidence=(
        "tests/families/rotary/test_rotary_kernel.py::test_it_has_the_bits_of_the_reference",
        "tests/families/rotary/test_rotary_kernel.py::test_strides_and_batches_do_not_matter",
    ),
)


_PREPARED = PrecisionGuarantee(
    math_precision="f32",
    accumulator="f32",
    deterministic=True,
    bit_stable_on_same_hardware=True,
    batch_invariant="composition",
    error_model=ErrorModel(id="qkv-f32"),
    conditions=(Condition(id="own_slots", text="no two new rows share a slot"),),
    evidence=(
        "tests/families/rotary/test_qkv_prepare.py::test_the_kernel_keeps_its_bound",
        "tests/families/rotary/test_qkv_prepare.py::test_a_row_alone_has_the_bits_that_it_has_in_a_batch",
    ),
)


def _facts(descriptor: RotaryDescriptor) -> dict[str, bool | int | str]:
    facts: dict[str, bool | int | str] = {"head_dim": descriptor.head_dim, "rotary_dim": descriptor.rotary_dim}
    facts |= {"pairs": "interleaved" if descriptor.interleaved else "half", "k": descriptor.num_kv_heads > 0}
    facts |= {"rotary_offset": descriptor.rotary_offset} if descriptor.rotary_offset else {}
    facts |= _section_fact(descriptor)
    return facts | {name: True for name in ("inverse", "in_place", "num_valid") if getattr(descriptor, name)}


def _section_fact(descriptor: RotaryDescriptor | QkvPrepareDescriptor) -> dict[str, bool | int | str]:
    if descriptor.sections is None:
        return {}
    return {"sections": "_".join([descriptor.section_order, *map(str, descriptor.sections)])}


def _section_constants(descriptor: RotaryDescriptor | QkvPrepareDescriptor) -> dict[str, Any]:
    """Constants of csrc/rotary/_sections.cu.jinja."""
    sections = descriptor.sections or ()
    stops = tuple(accumulate(sections))[:-1]
    return {"sections": sections, "section_order": descriptor.section_order, "stops": stops}


def _constants(descriptor: RotaryDescriptor) -> dict[str, Any]:
    names = (
        "head_dim",
        "rotary_dim",
        "rotary_offset",
        "interleaved",
        "inverse",
        "dtype",
        "table_dtype",
        "positions",
        "in_place",
    )
    found = {name: getattr(descriptor, name) for name in (*names, "num_valid")}
    return found | _section_constants(descriptor) | {"has_k": descriptor.num_kv_heads > 0}


def _dtypes(descriptor: RotaryDescriptor | QkvPrepareDescriptor) -> tuple[tuple[str, str], ...]:
    return (("positions", descriptor.positions), ("table", descriptor.table_dtype), ("x", descriptor.dtype))


class _Rotary(CudaKernel[RotaryDescriptor]):
    """The template gets lists, which a SKU cannot contain."""

    def facts(self, descriptor: RotaryDescriptor) -> support.SpecPairs:
        return support.pairs(**_facts(descriptor))

    def jit_spec(self, descriptor: RotaryDescriptor, target: Target) -> JitSpec:
        return support.spec_of(
            "rotary/rotary", support.pairs(**_constants(descriptor) | {"dependent": target.sm_version >= 90}), target
        )


_ROTARY = _Rotary(
    descriptor=RotaryDescriptor,
    template="rotary/rotary",
    impl="warp_heads",
    constants=_facts,
    dtypes=_dtypes,
    guarantee=_PROMISE,
)


def _lacks(descriptor: QkvPrepareDescriptor, target: Target) -> Iterator[Reason]:
    if descriptor.paged_kv.dtype in FP8:
        yield from support.fp8_reasons(target, f"rows that are cast to {descriptor.paged_kv.dtype}")


def _prepare_facts(descriptor: QkvPrepareDescriptor) -> dict[str, bool | int | str]:
    facts: dict[str, bool | int | str] = {"head_dim": descriptor.paged_kv.head_dim, "rotary_dim": descriptor.rotary_dim}
    facts |= {"pairs": "interleaved" if descriptor.interleaved else "half", "norm": descriptor.norm}
    facts |= {"rotary_offset": descriptor.rotary_offset} if descriptor.rotary_offset else {}
    facts |= {"kv_scale": descriptor.kv_scale} if descriptor.kv_scale != "none" else {}
    facts |= {name: True for name in ("in_place", "num_valid") if getattr(descriptor, name)}
    return facts | _section_fact(descriptor) | support.page_facts(descriptor.paged_kv, descriptor.page_table)


def _prepare_constants(descriptor: QkvPrepareDescriptor) -> dict[str, Any]:
    names = ("rotary_dim", "rotary_offset", "interleaved", "dtype", "table_dtype", "positions", "norm", "kv_scale", "in_place")
    found = {name: getattr(descriptor, name) for name in (*names, "num_valid")} | _section_constants(descriptor)
    cache = descriptor.paged_kv
    found |= {
        "cache_dtype": cache.dtype,
        "head_dim": cache.head_dim,
        "weight_dtype": descriptor.weight_dtype or descriptor.dtype,
    }
    return found | support.page_facts(cache, descriptor.page_table)


def _prepare_dtypes(descriptor: QkvPrepareDescriptor) -> tuple[tuple[str, str], ...]:
    pairs = [("kv", descriptor.paged_kv.dtype), *_dtypes(descriptor)]
    pairs += [("weight", descriptor.weight_dtype or descriptor.dtype)] if descriptor.norm != "none" else []
    return tuple(sorted(pairs))


class _QkvPrepare(CudaKernel[QkvPrepareDescriptor]):
    """As _Rotary."""

    def facts(self, descriptor: QkvPrepareDescriptor) -> support.SpecPairs:
        return support.pairs(**_prepare_facts(descriptor))

    def jit_spec(self, descriptor: QkvPrepareDescriptor, target: Target) -> JitSpec:
        return support.spec_of("rotary/qkv_prepare", support.pairs(**_prepare_constants(descriptor)), target)


_QKV_PREPARE = _QkvPrepare(
    descriptor=QkvPrepareDescriptor,
    template="rotary/qkv_prepare",
    impl="warp_heads",
    accepts=_lacks,
    size_free=True,
    constants=_prepare_facts,
    dtypes=_prepare_dtypes,
    guarantee=_PREPARED,
    scalars=lambda descriptor: (descriptor.paged_kv.token_axis, descriptor.eps),
    is_empty=lambda descriptor: descriptor.total_num_rows == 0,
)

CANDIDATES = (_ROTARY.candidate, _QKV_PREPARE.candidate)
