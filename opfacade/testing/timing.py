"""The only timer: CUDA events around each call, with L2 flushed before it and the launch hidden by a busy GPU; medians."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_FLUSH_BYTES = 256 * 2**20
_SLEEP_CYCLES = 200_000  # about 100 us: longer than any launch takes on the host


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds: median, 10th and 90th percentile, over `samples` calls."""

    median: float
    p10: float
    p90: float
    samples: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@lru_cache(maxsize=8)
def _flush_buffer(device: int, number: int = 0) -> Tensor:
    import torch

    return torch.zeros(_FLUSH_BYTES, dtype=torch.int8, device=f"cuda:{device}")


def time_gpu(call: Callable[[], object], samples: int = 30, warmup: int = 3, flush: bool = True, clean: bool = False) -> Timing:
    """Device time of one call with a cold L2. clean: reads other memory after the flush, so that no write-back occurs during
    the call."""
    import torch

    for _ in range(warmup):
        call()
    buffer = _flush_buffer(torch.cuda.current_device())
    times = []
    for _ in range(samples):
        if flush:
            buffer.zero_()
        if clean:
            _flush_buffer(torch.cuda.current_device(), 1).view(torch.int32).amax()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return _summary(times)


def time_host(call: Callable[[], object], samples: int = 300, warmup: int = 20) -> Timing:
    """Host time of one call, without waiting for the GPU."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(samples):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) * 1e-3)
    return _summary(times)


def _summary(times: list[float]) -> Timing:
    times.sort()
    n = len(times)
    return Timing(times[n // 2], times[n // 10], times[min(n - 1, n * 9 // 10)], n)
