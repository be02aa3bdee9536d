"""How a row is split: kernels whose scalars depend on the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import CudaKernel
from opfacade.core.candidate import Launcher
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

_MIN_SLICE, _MAX_CTAS, _CTAS_OF_SM = 4096, 8, 2


def ctas_of(vocab: int, target: Target) -> int:
    """CTAs of a row, a power of two: clusters exist from sm_90 on."""
    most = _MAX_CTAS if target.sm_version >= 90 else 1
    return next(ctas for ctas in (8, 4, 2, 1) if ctas <= most and (ctas == 1 or vocab >= ctas * _MIN_SLICE))


def ctas_of_stream(most: int, rows: int, target: Target) -> int:
    """CTAs of a row that is not held: as many as find room at once, since each costs the time of a cluster."""
    ctas = most
    while ctas > 1 and rows * ctas > _CTAS_OF_SM * target.sm_count:
        ctas //= 2
    return ctas


def held_bytes(target: Target, beside: int) -> int:
    """Shared memory of a CTA that logits may fill; the driver reserves 1 KiB."""
    return max(0, target.max_shared_memory - beside - 1024)


def team_split(vocab: int, rows: int, target: Target, beside: int) -> tuple[int, int]:
    """CTAs of a cluster whose rows are drawn by teams, and held_bytes of each.

    Rows that fill the GPU have clusters of half the size: GPCs have unequal numbers of SMs, and larger ones leave some idle.
    Two CTAs of an SM share its memory; a row that is held after all has at least half of it there.
    """
    ctas, most = ctas_of(vocab, target), held_bytes(target, beside)
    beside_another = max(0, (target.max_shared_memory + 1024) // _CTAS_OF_SM - 1024 - beside)
    fills, fits = rows * ctas > _CTAS_OF_SM * target.sm_count, 4 * vocab <= 2 * beside_another * (ctas // 2)
    return (ctas // 2, beside_another) if ctas == _MAX_CTAS and fills and fits else (ctas, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel(CudaKernel):
    """numbers: (descriptor, target) -> the scalars of a call."""

    numbers: Callable[[Any, Target], tuple[Any, ...]]

    def launcher(self, descriptor: Any, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if self.is_empty(descriptor):
            return support.nothing_to_do
        scalars = self.numbers(descriptor, target)
        return support.launcher(self.jit_spec(descriptor, target), descriptor, sku, allow_build, False, scalars)
