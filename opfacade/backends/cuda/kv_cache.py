"""CUDA paged append: a copy of bits, so that one kernel serves every dtype of a size."""

from __future__ import annotations

from typing import Any

from opfacade.backends.cuda import support
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
    reasons += support.choice_reason("OPF-S002", "new_dtype", descriptor.row_dtype, (descriptor.paged_kv.dtype,))
    reasons += support.choice_reason("OPF-S007", "kv_scale", descriptor.kv_scale, ("none",))
    reasons += support.choice_reason("OPF-S009", "rope", descriptor.rope, ("none",))
    return reasons


def _facts(descriptor: PagedKvAppendDescriptor) -> support.SpecPairs:
    cache = descriptor.paged_kv
    return support.pairs(
        elem_bytes=ITEMSIZE[cache.dtype],
        head_dim=cache.head_dim,
        **support.page_facts(cache.page_size, descriptor.page_table),
    )


def _spec(descriptor: PagedKvAppendDescriptor, target: Target) -> Any:
    return support.spec_of("kv_cache/paged_kv_append", _facts(descriptor), target)


def _sku(descriptor: PagedKvAppendDescriptor, target: Target) -> KernelSku:
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="cuda",
        arch=target.arch,
        impl="copy_rows",
        revision=1,
        dtypes=(("kv", f"b{8 * ITEMSIZE[descriptor.paged_kv.dtype]}"),),
        layout="strided",
        spec=tuple((name, value) for name, value in _facts(descriptor) if name != "elem_bytes"),
        precision_guarantee=PrecisionGuarantee(
            math_precision="copy",
            accumulator="none",
            deterministic=True,
            bit_stable_on_same_hardware=True,
            error_model=ErrorModel(id="exact"),
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
