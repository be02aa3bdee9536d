"""How a row is split: kernels whose scalars depend on the target."""

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
_FEW = 32  # rows of which each may have shorter parts
_SHORT, _MIDDLE = 6144, 16384  # tokens of a CTA: fewer threads have shorter barriers, and more of their CTAs share an SM
THREADS, COUNTS = 512, (128, 256, 512)  # of a CTA, and those that a stream with filters may have


@dataclass(frozen=True, slots=True)
class Split:
    """threads: of a CTA."""

    threads: int
    ctas: int


def ctas_of(vocab: int, target: Target) -> int:
    """CTAs of a row, a power of two: clusters exist from sm_90 on."""
    most = _MAX_CTAS if target.sm_version >= 90 else 1
    return next(ctas for ctas in (8, 4, 2, 1) if ctas <= most and (ctas == 1 or vocab >= ctas * _MIN_SLICE))


def ctas_of_stream(most: int, rows: int, target: Target) -> int:
    """CTAs of a row that is not held: as many as find room at once, since each costs the time of a cluster.

    A cluster lies in one GPC. GPCs have unequal numbers of SMs, so that clusters of 4 and 8 leave some of these idle: 132 SMs
    have room for 62 and 30. A cluster of two fits anywhere, as two CTAs share an SM.
    """
    places = _CTAS_OF_SM * target.sm_count
    ctas = most
    while ctas > 1 and rows * ctas > (places if ctas == 2 else places * 15 // 16):
        ctas //= 2
    return ctas


def kept_split(vocab: int, rows: int, target: Target) -> Split:
    """That of a row which is streamed for its front: barriers follow the stream, so that short parts are not split."""
    ctas = ctas_of_stream(ctas_of(vocab // (2 if rows <= _FEW else 4), target), rows, target)
    part, at_once = vocab // ctas, _CTAS_OF_SM * target.sm_count
    if part <= _SHORT:
        return Split(128 if part <= _SHORT // 3 or rows > 2 * at_once else 256, ctas)
    if rows * ctas > at_once and part <= _MIDDLE:
        return Split(256 if rows <= 2 * at_once else 128, ctas)
    return Split(THREADS, ctas)


def held_bytes(target: Target, beside: int) -> int:
    """Shared memory of a CTA that logits may fill; the driver reserves 1 KiB."""
    return max(0, target.max_shared_memory - beside - 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel(CudaKernel):
    """numbers: (descriptor, target) -> the scalars of a call."""

    numbers: Callable[[Any, Target], tuple[Any, ...]]

    def launcher(self, descriptor: Descriptor[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = self.numbers(descriptor, target)
        return support.launcher(self.jit_spec(descriptor, target), descriptor, sku, allow_build, False, scalars)
