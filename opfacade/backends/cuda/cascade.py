"""CUDA merge of attention states."""

from __future__ import annotations

from typing import Any

from opfacade.backends.cuda import support
from opfacade.descriptor import once_a_kind
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.sku import ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target

_EVIDENCE = (
    "tests/cascade/test_cascade_gpu.py::test_runs_repeat_bitwise",
    "tests/test_determinism.py::test_runs_repeat_bitwise_on_a_busy_gpu",
    "tests/test_determinism.py::test_processes_repeat_bitwise",
)


def _declines(descriptor: MergeStatesDescriptor, target: Target) -> list[Reason]:
    reasons = [*support.arch_reasons(target)]
    reasons += support.choice_reason("OPF-S002", "dtype", descriptor.dtype, ("f16", "bf16", "f32"))
    return reasons


def _facts(descriptor: MergeStatesDescriptor) -> support.SpecPairs:
    forms = {"in_place": True} if descriptor.in_place else {}
    listed = {} if descriptor.states == "stacked" else {"states": descriptor.states}
    return support.pairs(dtype=descriptor.dtype, head_dim=descriptor.head_dim, **forms, **listed)


def _spec(descriptor: MergeStatesDescriptor, target: Target) -> Any:
    return support.spec_of("cascade/merge_states", _facts(descriptor), target)


@once_a_kind
def _sku(descriptor: MergeStatesDescriptor, target: Target) -> KernelSku:
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="cuda",
        arch=target.arch,
        impl="warp_rows",
        revision=1,
        dtypes=(("o", descriptor.dtype),),
        layout="strided",
        spec=tuple((name, value) for name, value in _facts(descriptor) if name != "dtype"),
        precision_guarantee=PrecisionGuarantee(
            math_precision="f32",
            accumulator="f32",
            deterministic=True,
            bit_stable_on_same_hardware=True,
            error_model=ErrorModel(id="merge-f32"),
            evidence=_EVIDENCE,
        ),
    )


def _no_workspace(descriptor: MergeStatesDescriptor, target: Target) -> int:
    return 0


def _launcher(descriptor: MergeStatesDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    if descriptor.total_num_rows == 0:
        return support.nothing_to_do
    return support.launcher(_spec(descriptor, target), descriptor, sku, allow_build, False, ())


CANDIDATES = (Candidate("cuda", "warp_rows", MergeStatesDescriptor, _declines, _sku, _no_workspace, _launcher, _spec),)
