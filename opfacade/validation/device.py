"""Level indices on a GPU: a kernel checks the index tensors of every run, and the next host call raises the findings.

The kernel writes its findings to a channel: a ring buffer in pinned host memory, and three counters on the device. A channel
outlives its plan, because a launch or a CUDA graph may still write to it. After the plan is deleted, its channel returns to a
pool, unless a graph was captured with it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.base.capture import capturing
from opfacade.base.fork_lock import ForkLock
from opfacade.core.request_tables import RequestTables
from opfacade.core.sku import KernelSku
from opfacade.errors import DeviceError
from opfacade.validation import capture_and_fork as moment
from opfacade.validation.rules import PAGES, Finding, error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args

RECORDS = 64
_WORD = 2**32


class Record(ctypes.Structure):
    """IndexRecord of kernels/validation/index_check_params.h."""

    _fields_ = (
        ("sequence", ctypes.c_uint32),
        ("rule", ctypes.c_int16),
        ("place", ctypes.c_int16),
        ("request", ctypes.c_int32),
        ("value", ctypes.c_int32),
        ("position", ctypes.c_int64),
        ("limit", ctypes.c_int32),
        ("call", ctypes.c_uint32),
    )


class Ring(ctypes.Structure):
    """IndexRing of the same file."""

    _fields_ = (("records", Record * RECORDS), ("consumed", ctypes.c_uint32))


class Channel:
    """A ring and its counters on one device."""

    def __init__(self, device: int) -> None:
        import torch

        self.device = device
        self.memory = torch.zeros(ctypes.sizeof(Ring), dtype=torch.uint8, pin_memory=True)
        self.state = torch.zeros(3, dtype=torch.int32, device=f"cuda:{device}")
        self.ring = Ring.from_address(self.memory.data_ptr())
        self.captured = False
        self._lock = ForkLock()
        torch.cuda.synchronize(device)

    def reset(self) -> None:
        """Waits for all earlier launches, then clears the ring and the counters."""
        import torch

        torch.cuda.synchronize(self.device)
        self.state.zero_()
        ctypes.memset(self.memory.data_ptr(), 0, self.memory.numel())
        torch.cuda.synchronize(self.device)

    def pending(self) -> bool:
        """Whether there is an unread record. Costs a few host loads."""
        ring = self.ring
        after = ring.consumed
        return bool(ring.records[after % RECORDS].sequence == (after + 1) % _WORD)

    def drain(self) -> list[Finding]:
        """Reads all unread records; returned in the order of calls and requests."""
        with self._lock:
            found = list(self._read())
        return sorted(found, key=lambda f: (f.call, f.request))

    def _read(self) -> Iterator[Finding]:
        while self.pending():
            r = self.ring.records[self.ring.consumed % RECORDS]
            yield Finding(r.rule, r.place, r.request, r.position, r.value, r.limit, r.call)
            self.ring.consumed = (self.ring.consumed + 1) % _WORD


_spare: dict[int, list[Channel]] = {}
_kept: list[Channel] = []  # captured graphs may write to these channels in every replay


def _take(device: int) -> Channel:
    spare = _spare.get(device)
    try:
        channel = spare.pop() if spare else None
    except IndexError:  # another thread took the last channel
        channel = None
    if channel is None:
        return Channel(device)
    channel.reset()
    return channel


def _give_back(channels: dict[int, Channel]) -> None:
    for device, channel in channels.items():
        (_kept if channel.captured else _spare.setdefault(device, [])).append(channel)


class Channels:
    """The channels of one plan, one per device. what: the name of the check that writes to them, for messages."""

    def __init__(self, op: str, what: str) -> None:
        self._op, self._what = op, what
        self.known: dict[int, Channel] = {}
        self._making = ForkLock()
        self._module: Any = None
        weakref.finalize(self, _give_back, self.known).atexit = False

    def drain(self) -> list[Finding]:
        """The findings since the last call."""
        return [f for channel in self.known.values() if channel.pending() for f in channel.drain()]

    def prepare(self, module: object) -> None:
        """Loads the check on the current device and creates its channel, because neither is allowed during a graph capture."""
        import torch

        self._module = module
        if torch.cuda.is_available():
            self.on(torch.cuda.current_device())

    def on(self, device: int) -> Channel:
        """The channel of a device. The first use loads the check on this device."""
        import torch

        channel = self.known.get(device)
        if channel is None:
            where = None if device is None else torch.device("cuda", device)
            moment.refuse_capture(self._op, f"{self._what} has not run on cuda:{device}", where)
            with self._making:
                channel = self.known.get(device)
                if channel is None:
                    if self._module is not None and device is not None:
                        self._module.prepare(device)
                    channel = self.known[device] = _take(device)
        return channel


class DeviceGuard:
    """Launches the check before the operator, on the same stream, and passes the checked tables to the operator."""

    def __init__(self, tables: RequestTables, sku: KernelSku, allow_build: bool) -> None:
        self._tables, self._sku, self._allow_build = tables, sku, allow_build
        self._channels = Channels(tables.op, "the index check")

    def check(self) -> None:
        found = self._channels.drain()
        if found:
            raise error_of(self._tables, found)

    def wrap(self, launch: Launcher) -> Launcher:
        from opfacade import jit
        from opfacade.jit.spec import JitSpec

        spec = JitSpec.of("index_check", "validation/index_check", self._sku.arch)
        module = jit.load(spec, allow_build=self._allow_build)
        self._channels.prepare(module)
        names = [(name, i) for i, name in enumerate(self._tables.names) if name]

        def guarded(args: Any, workspace: Tensor | None) -> None:
            self.check()
            safe = self._judge(module.run, args)
            launch(replace(args, **{name: safe[i] for name, i in names}), workspace)

        return guarded

    def _judge(self, run: Callable[..., None], args: Args) -> list[Tensor | None]:
        """The checked copies of the four index tables. The check kernel fills them later, in stream order."""
        import torch

        tables = self._tables
        given = [getattr(args, name) if name else None for name in tables.names]
        safe = [None if t is None else torch.empty(t.shape, dtype=torch.int32, device=t.device) for t in given]
        first = next(t for t in given if t is not None)
        channel = self._channels.on(first.device.index)
        channel.captured = channel.captured or capturing(first.device)
        listed = given[PAGES]
        limit = tables.limit if listed is None or tables.block else min(tables.limit, listed.numel())
        pages = (tables.num_pages, tables.page_tokens, tables.max_len, tables.appends)
        rows = (tables.requests, tables.total_rows, tables.window)
        try:
            run(*given, *safe, channel.state, channel.memory.data_ptr(), *rows, limit, *pages)
        except RuntimeError as error:
            message = f"{tables.op}.run: index check: {error} [OPF-R010]"
            raise DeviceError(message, code="OPF-R010", op=tables.op, stage="run") from error
        return safe
