"""CUDA sampling: one pass over the logits without filters; with filters or a report, a cluster keeps the row in shared memory.

Both support rows with only a top_p filter and give equal tokens; sizes determine which is faster.
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
_OUTPUTS = ("report", "probs_out")  # outputs that depend on candidates other than the winner
_HELD = ("top_k", *_OUTPUTS)  # a cluster holds the row
_FILTERS, _ADJUSTMENTS = ("top_p", "min_p"), ("penalties", "bias", "soft_cap")  # which hold it together
# A few short rows with only top_p are drawn faster from shared memory, because the streamed path needs more barriers.
_FEW_ROWS, _SHORT_ROW = 16, 16384
_FOUR_FIT = 4096  # maximum logits of a row for which four rows fit in an SM
BESIDE_LOGITS = 16 * 1024 + 8 * (768 + 2048)  # kFilterShared


class WithDtype(Protocol):
    @property
    def dtype(self) -> str: ...


def set_facts(descriptor: WithDtype, fields: tuple[str, ...]) -> Facts:
    """The fields that are set; disabled fields are omitted."""
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
    """Whether a row with only top_p is kept in shared memory, although it could be streamed."""
    held = _has(descriptor, _HELD) or _has(descriptor, _ADJUSTMENTS)
    alone = descriptor.top_p and not descriptor.min_p and not held
    return alone and descriptor.vocab < _SHORT_ROW and descriptor.total_num_rows < _FEW_ROWS


def path_of(descriptor: SampleDescriptor) -> str:
    """The path by which a row is drawn; both templates get it as the constant `path`.

    stream: one pass over the logits. kept_stream: the same, and a second pass checks the winner against the filter. short_k:
    CTAs of a cluster sort short lists of candidates, for several rows at a time. held: a cluster keeps the row in shared
    memory.
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
    """Threads per CTA. They depend on sizes for kept_stream, and for short_k with more short rows than run concurrently: with
    half the threads, twice as many CTAs fit in an SM."""
    path = path_of(descriptor)
    if path == "kept_stream":
        return _kept_split(descriptor, target).threads
    many = descriptor.total_num_rows > 2 * target.sm_count
    return THREADS // 2 if path == "short_k" and many and descriptor.vocab <= _FOUR_FIT else THREADS


def ctas_per_sm_of(descriptor: SampleDescriptor, target: Target) -> int:
    """CTAs per SM: two CTAs of 512 threads if their registers fit."""
    alone = not _has(descriptor, (*_OUTPUTS, *_ADJUSTMENTS)) or path_of(descriptor) == "stream"
    of_threads = 2 if alone and not (descriptor.penalties and descriptor.bias == "dense") else 1
    return of_threads * THREADS // threads_of(descriptor, target)


class SampleKernel(RowKernel):
    """A kernel whose templates get `path` and CTAs per SM in addition to the facts of the SKU, from which both follow."""

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
    """The kernel with additional facts."""
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
