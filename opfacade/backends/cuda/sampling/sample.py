"""CUDA sampling: a stream over the logits without filters; a row held by a cluster with filters or a report.

Both take rows that p alone cuts, with equal tokens: sizes decide which is faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from opfacade.backends.cuda import support
from opfacade.backends.cuda.sampling.guarantee import promised
from opfacade.backends.cuda.sampling.split import (
    COUNTS,
    THREADS,
    RowKernel,
    Split,
    ctas_of,
    ctas_of_stream,
    held_bytes,
    kept_split,
)
from opfacade.core.candidate import Candidate, Launcher
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.model import INT32_MAX
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.sampling import SampleDescriptor

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

Facts: TypeAlias = dict[str, bool | int | str]
_FIELDS = (
    "top_k", "top_p", "min_p", "temperature", "penalties", "bias", "bitmask", "indices", "report", "probs_out", "num_valid",
)  # fmt: skip
_OUTPUTS = ("report", "probs_out")  # which concern other candidates than the winner
_HELD = ("top_k", *_OUTPUTS)  # a cluster holds the row
_FILTERS, _ADJUSTMENTS = ("top_p", "min_p"), ("penalties", "bias", "soft_cap")  # which hold it together
# Short rows that p alone cuts are drawn faster from shared memory where they are few, because a front takes barriers.
_FEW_ROWS, _SHORT_ROW = 16, 16384
_FOUR_FIT = 4096  # logits of a row, of which an SM has room for four
BESIDE_LOGITS = 16 * 1024 + 8 * (768 + 2048)  # kFilterShared


class WithDtype(Protocol):
    @property
    def dtype(self) -> str: ...


def set_facts(descriptor: WithDtype, fields: tuple[str, ...]) -> Facts:
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


def _has(descriptor: SampleDescriptor, names: tuple[str, ...]) -> bool:
    return any(getattr(descriptor, name) not in (False, "none", 0.0) for name in names)


def _holds_p(descriptor: SampleDescriptor) -> bool:
    """Whether a row that p alone cuts is held, though it could be streamed."""
    held = _has(descriptor, _HELD) or _has(descriptor, _ADJUSTMENTS)
    alone = descriptor.top_p and not descriptor.min_p and not held
    return alone and descriptor.vocab < _SHORT_ROW and descriptor.total_num_rows < _FEW_ROWS


def path_of(descriptor: SampleDescriptor) -> str:
    """How a row is drawn: both templates get it as `path`, and no other place decides it.

    stream: one pass over the logits. kept_stream: the same, and a second pass judges the winner. short_k: CTAs of a cluster
    sort short lists of candidates, of several rows at a time. held: a cluster has the row in shared memory.
    """
    if not _has(descriptor, (*_FILTERS, *_HELD)):
        return "stream"
    if not (_has(descriptor, (*_HELD, *_ADJUSTMENTS)) or _holds_p(descriptor)):
        return "kept_stream"
    joint = descriptor.top_p and descriptor.order == "joint"
    return "short_k" if descriptor.top_k and not (joint or _has(descriptor, _OUTPUTS)) else "held"


def _numbers(descriptor: SampleDescriptor, target: Target) -> tuple[Any, ...]:
    limit = INT32_MAX if descriptor.max_top_k is None else descriptor.max_top_k
    path, ctas = path_of(descriptor), ctas_of(descriptor.vocab, target)
    if path == "stream":
        ctas = ctas_of_stream(ctas, descriptor.total_num_rows, target)
    elif path == "kept_stream":
        ctas = _kept_split(descriptor, target).ctas
    return descriptor.stream, limit, descriptor.soft_cap, ctas, held_bytes(target, BESIDE_LOGITS)


def _kept_split(descriptor: SampleDescriptor, target: Target) -> Split:
    return kept_split(descriptor.vocab, descriptor.total_num_rows, target)


def threads_of(descriptor: SampleDescriptor, target: Target) -> int:
    """Threads of a CTA. Sizes choose them where a row is streamed for its front, and for short rows with a k that are more than
    are drawn at once: of half the threads, an SM has twice as many."""
    path = path_of(descriptor)
    if path == "kept_stream":
        return _kept_split(descriptor, target).threads
    many = descriptor.total_num_rows > 2 * target.sm_count
    return THREADS // 2 if path == "short_k" and many and descriptor.vocab <= _FOUR_FIT else THREADS


def ctas_per_sm_of(descriptor: SampleDescriptor, target: Target) -> int:
    """CTAs of the kernel that share an SM: two of 512 threads, if the registers of one leave room for another."""
    alone = not _has(descriptor, (*_OUTPUTS, *_ADJUSTMENTS)) or path_of(descriptor) == "stream"
    of_threads = 2 if alone and not (descriptor.penalties and descriptor.bias == "dense") else 1
    return of_threads * THREADS // threads_of(descriptor, target)


class SampleKernel(RowKernel):
    """Its templates have path and CTAs per SM besides the facts of the SKU, which follow from the same fields."""

    def jit_spec(self, descriptor: SampleDescriptor, target: Target) -> JitSpec:
        decided: Facts = {"path": path_of(descriptor), "ctas_per_sm": ctas_per_sm_of(descriptor, target)}
        facts = support.pairs(**dict(self.facts(descriptor)), **decided)
        return support.spec_of("sampling/sample", facts, target)


_BY_FIELDS = SampleKernel(
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


def _with(**facts: int) -> SampleKernel:
    """The kernel with facts of its own."""
    return replace(_BY_FIELDS, constants=lambda descriptor: _facts(descriptor) | facts)


_HOLDING_P, _BY_THREADS = _with(on_chip=True), {threads: _with(threads=threads) for threads in COUNTS if threads != THREADS}
_SKUS = {id(kernel): cached_by_specialization(kernel.sku) for kernel in (_BY_FIELDS, _HOLDING_P, *_BY_THREADS.values())}


def _kernel(descriptor: SampleDescriptor, target: Target) -> SampleKernel:
    return _HOLDING_P if _holds_p(descriptor) else _BY_THREADS.get(threads_of(descriptor, target), _BY_FIELDS)


def _sku(descriptor: SampleDescriptor, target: Target) -> KernelSku:
    found: KernelSku = _SKUS[id(_kernel(descriptor, target))](descriptor, target)
    return found


def _jit_spec(descriptor: SampleDescriptor, target: Target) -> JitSpec:
    return _kernel(descriptor, target).jit_spec(descriptor, target)


def _launcher(descriptor: SampleDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    return _kernel(descriptor, target).launcher(descriptor, target, sku, allow_build)


SAMPLE: Candidate = replace(_BY_FIELDS.candidate, sku=_sku, jit_spec=_jit_spec, launcher=_launcher)
