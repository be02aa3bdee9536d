"""CUDA sampling: a stream over the logits without filters; a row held by a cluster with filters or a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.candidate import Launcher
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.model import INT32_MAX
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.sampling import SampleDescriptor

_HERE = "tests/families/sampling"
_GUARANTEE = PrecisionGuarantee(
    math_precision="f32",
    accumulator="u64",
    deterministic=True,
    bit_stable_on_same_hardware=True,
    batch_invariant="composition",
    error_model=ErrorModel(
        id="race-f32", constants=(("exp2", 2.0**-22), ("key", 2.0**-17), ("roundoff", 2.0**-24), ("tanh", 2.0**-21))
    ),
    evidence=(
        f"{_HERE}/test_emulated.py::test_a_row_has_its_bits_in_any_batch",
        f"{_HERE}/test_emulated.py::test_no_number_of_ctas_changes_a_bit",
        f"{_HERE}/test_sampling_gpu.py::test_runs_repeat_bitwise",
        f"{_HERE}/test_sampling_gpu.py::test_a_row_has_its_bits_in_any_batch",
    ),
)
_FIELDS = (
    "top_k", "top_p", "min_p", "temperature", "penalties", "bias", "bitmask", "indices", "report", "probs_out", "num_valid",
)  # fmt: skip
_MIN_SLICE, _MAX_CTAS = 4096, 8
_BESIDE_LOGITS = 17 * 1024  # bytes of a CTA's shared memory, some reserved by the driver


def ctas_of(vocab: int, target: Target) -> int:
    """CTAs of a row, a power of two: clusters exist from sm_90 on."""
    most = _MAX_CTAS if target.sm_version >= 90 else 1
    return next(ctas for ctas in (8, 4, 2, 1) if ctas <= most and (ctas == 1 or vocab >= ctas * _MIN_SLICE))


def held_bytes(target: Target) -> int:
    """Shared memory of a CTA that logits may fill."""
    return max(0, target.max_shared_memory - _BESIDE_LOGITS)


def _facts(descriptor: SampleDescriptor) -> dict[str, bool | int | str]:
    """Fields that are set: what is off is absent."""
    found = {name: getattr(descriptor, name) for name in _FIELDS}
    facts: dict[str, bool | int | str] = {name: value for name, value in found.items() if value not in (False, "none")}
    facts["dtype"] = descriptor.dtype
    if descriptor.soft_cap:
        facts["soft_cap"] = True
    if descriptor.top_k and descriptor.top_p:
        facts["order"] = descriptor.order
    return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKernel(CudaKernel):
    """Its scalars depend on the target: how many CTAs a row has, and what they can hold."""

    def launcher(self, descriptor: Any, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        from opfacade.backends.cuda import support

        if self.is_empty(descriptor):
            return support.nothing_to_do
        limit = INT32_MAX if descriptor.max_top_k is None else descriptor.max_top_k
        split = (ctas_of(descriptor.vocab, target), held_bytes(target))
        scalars = (descriptor.stream, limit, descriptor.soft_cap, *split)
        return support.launcher(self.jit_spec(descriptor, target), descriptor, sku, allow_build, False, scalars)


SAMPLE = SampleKernel(
    descriptor=SampleDescriptor,
    template="sampling/sample",
    impl="race",
    constants=_facts,
    dtypes=lambda descriptor: (("logits", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=_GUARANTEE,
)
