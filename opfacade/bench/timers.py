"""The best available timer: CUPTI, which records the start and end of each kernel; otherwise CUDA events; on a CPU, its
clock."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from opfacade.tune.measure import Call, Timer, device_timer, host_timer


def best(device: str) -> tuple[str, Timer]:
    if device == "cpu":
        return "host clock", host_timer
    if find_spec("cupti") is not None:
        timer = Cupti.made()
        if timer is not None:
            return "CUPTI", timer
    return "CUDA events", device_timer


class Cupti:
    """Times a call by the activity records of the device: from the start of its first kernel or copy to the end of its last.

    A call owns the activity launched between two host timestamps around it; launch and kernel share a correlation id.
    """

    def __init__(self, cupti: Any) -> None:
        self._cupti, self._records = cupti, list[Any]()
        kinds = cupti.ActivityKind
        self._work = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        self._launches = (kinds.RUNTIME, kinds.DRIVER)
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._records.extend)
        for kind in (*self._work, *self._launches):
            cupti.activity_enable(kind)

    @staticmethod
    def made() -> Cupti | None:
        """The timer, if CUPTI can be used and sees one of our kernels; under another profiler, for example, it cannot."""
        import torch

        try:
            from cupti import cupti

            timer = Cupti(cupti)
            x = torch.ones(8, device="cuda")
            return timer if timer(lambda: x.add_(1)) > 0.1 else None
        except (ImportError, RuntimeError, AttributeError, ValueError):
            return None

    def __call__(self, call: Call) -> float:
        import torch

        from opfacade.testing.timing import _flush_buffer

        _flush_buffer(torch.cuda.current_device()).zero_()
        torch.cuda.synchronize()
        self._cupti.activity_flush_all(0)
        self._records.clear()
        began = self._cupti.get_timestamp()
        call()
        ended = self._cupti.get_timestamp()
        torch.cuda.synchronize()
        self._cupti.activity_flush_all(0)
        return max(span(self._records, began, ended, self._work, self._launches), 1e-3)


def span(records: Iterable[Any], began: int, ended: int, work: tuple[Any, ...], launches: tuple[Any, ...]) -> float:
    """Microseconds from the first start to the last end of the work that was launched between two times; 0 if none was."""
    found = list(records)
    ids = {r.correlation_id for r in found if r.kind in launches and began <= r.start <= ended}
    mine = [r for r in found if r.kind in work and r.correlation_id in ids]
    return (max(r.end for r in mine) - min(r.start for r in mine)) * 1e-3 if mine else 0.0
