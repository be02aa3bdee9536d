"""CUDA paged append: a copy of bits, so that one kernel serves every dtype of a size; or rows that change on their way."""

from __future__ import annotations

from typing import Any

from opfacade.backends.cuda import support
from opfacade.descriptor import once_a_kind
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.sku import ITEMSIZE, ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target

_EVIDENCE = (
    "tests/kv_cache/test_kv_cache_gpu.py::test_runs_repeat_bitwise",
    "tests/test_determinism.py::test_runs_repeat_bitwise_on_a_busy_gpu",
    "tests/test_determinism.py::test_processes_repeat_bitwise",
)


def _declines(descriptor: PagedKvAppendDescriptor, target: Target) -> list[Reason]:
    reasons = [*support.arch_reasons(target)]
    if descriptor.quantises:
        reasons += support.fp8_reasons(target, f"rows that are cast to {descriptor.paged_kv.dtype}")
    return reasons


def _facts(descriptor: PagedKvAppendDescriptor) -> support.SpecPairs:
    cache = descriptor.paged_kv
    facts: dict[str, bool | int | str] = {"elem_bytes": ITEMSIZE[cache.dtype], "head_dim": cache.head_dim}
    if not descriptor.copies:
        facts |= {"dtype": cache.dtype, "new_dtype": descriptor.row_dtype, "kv_scale": descriptor.kv_scale}
        facts |= {"rope": descriptor.rope, "rotated": descriptor.rotated}
    if descriptor.rope_dtype != "f32":
        facts["rope_dtype"] = descriptor.rope_dtype
    return support.pairs(**facts, **support.page_facts(cache.page_size, descriptor.page_table))


def _spec(descriptor: PagedKvAppendDescriptor, target: Target) -> Any:
    name = "paged_kv_append" if descriptor.copies else "paged_kv_append_computed"
    return support.spec_of(f"kv_cache/{name}", _facts(descriptor), target)


def _dtypes(descriptor: PagedKvAppendDescriptor) -> tuple[tuple[str, str], ...]:
    """A copy knows only sizes."""
    if descriptor.copies:
        return (("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),)
    return (("kv", descriptor.paged_kv.dtype), ("new", descriptor.row_dtype))


@once_a_kind
def _sku(descriptor: PagedKvAppendDescriptor, target: Target) -> KernelSku:
    copies = descriptor.copies
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="cuda",
        arch=target.arch,
        impl="copy_rows" if copies else "computed_rows",
        revision=1,
        dtypes=_dtypes(descriptor),
        layout="strided",
        spec=tuple((name, value) for name, value in _facts(descriptor) if name not in ("elem_bytes", "dtype", "new_dtype")),
        precision_guarantee=PrecisionGuarantee(
            math_precision="copy" if copies else "f32, one rounding",
            accumulator="none",
            deterministic=True,
            bit_stable_on_same_hardware=True,
            error_model=ErrorModel(id="exact" if copies else "append-f32"),
            conditions=("no two new rows share a slot",),
            evidence=_EVIDENCE,
        ),
    )


def _no_workspace(descriptor: PagedKvAppendDescriptor, target: Target) -> int:
    return 0


def _launcher(descriptor: PagedKvAppendDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    if descriptor.total_num_rows == 0 or descriptor.batch_size == 0:
        return support.nothing_to_do
    scalars = (descriptor.paged_kv.token_axis,)
    return support.launcher(_spec(descriptor, target), descriptor, sku, allow_build, False, scalars)


CANDIDATES = (Candidate("cuda", "copy_rows", PagedKvAppendDescriptor, _declines, _sku, _no_workspace, _launcher, _spec),)
