"""The split of a row over CTAs, and kernels whose scalars depend on the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.candidate import Launcher
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor

_MIN_SLICE, _MAX_CTAS, _CTAS_OF_SM = 4096, 8, 2
_FEW = 32  # maximum number of rows that may have shorter parts
_SHORT, _MIDDLE = 6144, 16384  # tokens per CTA: with fewer threads, barriers are shorter and more CTAs fit in an SM
THREADS, COUNTS = 512, (128, 256, 512)  # threads per CTA, and those allowed for a stream with filters


@dataclass(frozen=True, slots=True)
class Split:
    """threads: threads per CTA. ctas: CTAs per row."""

    threads: int
    ctas: int


def ctas_of(vocab: int, target: Target) -> int:
    """CTAs per row, a power of two; 1 before sm_90, which has no clusters."""
    most = _MAX_CTAS if target.sm_version >= 90 else 1
    return next(ctas for ctas in (8, 4, 2, 1) if ctas <= most and (ctas == 1 or vocab >= ctas * _MIN_SLICE))


def ctas_of_stream(most: int, rows: int, target: Target) -> int:
    """CTAs per row of a streamed row: as many as run concurrently, because a second wave of clusters doubles the time.

    A cluster must fit in one GPC. GPCs have unequal numbers of SMs, so clusters of 4 and 8 leave some SMs idle: 62 and 30 of
    them fit on 132 SMs. A cluster of two fits anywhere, because two CTAs share an SM.
    """
    places = _CTAS_OF_SM * target.sm_count
    ctas = most
    while ctas > 1 and rows * ctas > (places if ctas == 2 else places * 15 // 16):
        ctas //= 2
    return ctas


def kept_split(vocab: int, rows: int, target: Target) -> Split:
    """The split for kept_stream, where barriers follow the stream, so that short parts are not split further."""
    ctas = ctas_of_stream(ctas_of(vocab // (2 if rows <= _FEW else 4), target), rows, target)
    part, at_once = vocab // ctas, _CTAS_OF_SM * target.sm_count
    if part <= _SHORT:
        return Split(128 if part <= _SHORT // 3 or rows > 2 * at_once else 256, ctas)
    if rows * ctas > at_once and part <= _MIDDLE:
        return Split(256 if rows <= 2 * at_once else 128, ctas)
    return Split(THREADS, ctas)


def held_bytes(target: Target, beside: int) -> int:
    """Bytes of a CTA's shared memory that are available for logits; the driver reserves 1 KiB."""
    return max(0, target.max_shared_memory - beside - 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel(CudaKernel):
    """A kernel whose scalars depend on the target. numbers: (descriptor, target) -> the scalars of a call."""

    numbers: Callable[[Any, Target], tuple[Any, ...]]

    def launcher(self, descriptor: Descriptor[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = self.numbers(descriptor, target)
        return support.launcher(self.jit_spec(descriptor, target), descriptor, sku, allow_build, False, scalars)
