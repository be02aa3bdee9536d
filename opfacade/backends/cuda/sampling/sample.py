"""CUDA sampling: a stream over the logits without filters; a row held by a cluster with filters or a report."""

from __future__ import annotations

from typing import Any, TypeAlias

from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.split import RowKernel, ctas_of, ctas_of_stream, held_bytes
from opfacade.core.model import INT32_MAX
from opfacade.core.target import Target
from opfacade.plans.sampling import SampleDescriptor

Facts: TypeAlias = dict[str, bool | int | str]
_FIELDS = (
    "top_k", "top_p", "min_p", "temperature", "penalties", "bias", "bitmask", "indices", "report", "probs_out", "num_valid",
)  # fmt: skip
_HELD = ("top_k", "report", "probs_out")  # a cluster holds the row
_FILTERS, _ADJUSTMENTS = ("top_p", "min_p"), ("penalties", "bias", "soft_cap")  # which hold it together
BESIDE_LOGITS = 16 * 1024 + 8 * (768 + 2048)  # kFilterShared


def set_facts(descriptor: Any, fields: tuple[str, ...]) -> Facts:
    """Fields that are set: what is off is absent."""
    found = {name: getattr(descriptor, name) for name in fields}
    facts: Facts = {name: value for name, value in found.items() if value not in (False, "none")}
    return facts | {"dtype": descriptor.dtype}


def _facts(descriptor: SampleDescriptor) -> Facts:
    facts = set_facts(descriptor, _FIELDS)
    if descriptor.soft_cap:
        facts["soft_cap"] = True
    if descriptor.top_k and descriptor.top_p:
        facts["order"] = descriptor.order
    return facts


def _is_held(descriptor: SampleDescriptor) -> bool:
    """sample.cu.jinja has the same rule."""

    def has(names: tuple[str, ...]) -> bool:
        return any(getattr(descriptor, name) not in (False, "none", 0.0) for name in names)

    return has(_HELD) or (has(_FILTERS) and has(_ADJUSTMENTS))


def _numbers(descriptor: SampleDescriptor, target: Target) -> tuple[Any, ...]:
    limit = INT32_MAX if descriptor.max_top_k is None else descriptor.max_top_k
    ctas = ctas_of(descriptor.vocab, target)
    if not _is_held(descriptor):
        ctas = ctas_of_stream(ctas, descriptor.total_num_rows, target)
    return descriptor.stream, limit, descriptor.soft_cap, ctas, held_bytes(target, BESIDE_LOGITS)


SAMPLE = RowKernel(
    descriptor=SampleDescriptor,
    template="sampling/sample",
    impl="race",
    revision=2,
    constants=_facts,
    dtypes=lambda descriptor: (("logits", descriptor.dtype),),
    in_dtypes=("dtype",),
    guarantee=promised("test_emulated.py", "test_sampling_gpu.py"),
    numbers=_numbers,
)
