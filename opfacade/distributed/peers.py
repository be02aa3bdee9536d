"""PeerLink: small rounds use a kernel that writes to the memory of all peers on the host; large rounds use NCCL.

The memory of peers is torch's symmetric memory. A round is one launch: write to the peers, wait for the arrivals in local
memory, copy them out. Headers are sent with the data. The kernel itself limits its waiting time. Kernels that also compute have
the same leading arguments (`round_of`).
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.joined import in_lines
from opfacade.distributed.link import Link, as_bytes
from opfacade.distributed.statistics import Counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from opfacade.jit.spec import JitSpec

MOST_BYTES = 1 << 21  # largest part of a plain round; for larger parts NCCL has more bandwidth
PLACE = (1 << 22) + (1 << 17)  # bytes to each peer in one round; computing kernels split more over several launches
MOST_FLAGGED = (1 << 20) + (1 << 17)  # bytes of flagged lines per part: more than of the data, but they need no fence
MOST_LINES = 1 << 19  # bytes of lines that a rank receives in a plain round; above it, bulk data with a fence are faster
MOST_PEERS = 8
MOST_CTAS = 128  # kMostCtas of kernels/ranks/round_params.h
COUNTERS = 1 + 2 * MOST_PEERS  # kCounters
_LINE, _ARRIVAL = 16, 32
_HEAD = 2 * MOST_PEERS * MOST_CTAS * _ARRIVAL  # bytes of an arena before its data areas
_BEGUN, _ENDED, _POISON, _ODD, _FAILED = range(5)  # indices of the page's words


def _arena(world: int) -> int:
    """Bytes of an arena (kernels/ranks/round_params.h)."""
    return _HEAD + 2 * world * (PLACE + MOST_FLAGGED)


_used: dict[str, weakref.ref[ProcessGroup]] = {}


def known_by(process_group: ProcessGroup) -> bool:
    """Whether this is the first process group with its name: symmetric memory keeps using the store of the first group of a
    name."""
    name = process_group.group_name
    return _used.setdefault(name, weakref.ref(process_group))() is process_group


class PeerLink(Link):
    """arena: this rank's symmetric memory; handle: the addresses of all ranks' arenas. page: pinned words that the kernel
    writes."""

    place, flagged = PLACE, MOST_FLAGGED

    def __init__(self, process_group: ProcessGroup, device: torch.device, timeout_s: float) -> None:
        import torch
        import torch.distributed._symmetric_memory as symmetric

        super().__init__(process_group, device)
        self._rank, self._patience = process_group.rank(), int(timeout_s * 1e9)
        self._arena: Any = symmetric.empty(_arena(self.world), dtype=torch.uint8, device=device)
        self._arena.zero_()
        self._handle: Any = symmetric.rendezvous(self._arena, process_group.group_name)
        self._epochs = torch.zeros(MOST_CTAS + COUNTERS, dtype=torch.int64, device=device)
        self._page = self._shared([0] * (_FAILED + MOST_CTAS))
        self._module = _module(device)
        self._numbers: dict[Hashable, int] = {}
        torch.cuda.synchronize(device)

    def learn(self, descriptor: Hashable, digest: bytes) -> None:
        super().learn(descriptor, digest)
        self._numbers[descriptor] = int.from_bytes(digest, "little", signed=True)

    def gathered(self, descriptor: Hashable, own: Tensor, facts: Sequence[Tensor | None]) -> list[Tensor]:
        if own.numel() * own.element_size() > MOST_BYTES:
            return super().gathered(descriptor, own, facts)
        return self._round(descriptor, _lines([own]), own, facts)

    def swapped(
        self, descriptor: Hashable, parts: Sequence[Tensor], like: Tensor, facts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        if like.numel() * like.element_size() > MOST_BYTES:
            return super().swapped(descriptor, parts, like, facts)
        return self._round(descriptor, _lines(parts), like, facts)

    def counted(self) -> Counted:
        """Counters of all rounds by kernels so far, including graph replays. Reads the device, and therefore waits for its
        work."""
        sent, *rest = self._epochs[MOST_CTAS:].tolist()
        waited, last = rest[:MOST_PEERS], rest[MOST_PEERS:]
        ranks = range(self.world)
        return Counted(self.ended, sent, {r: waited[r] * 1e-9 for r in ranks}, {r: last[r] for r in ranks if last[r]})

    def blank(self) -> None:
        """Zeros the data areas of the arena; for probes, between rounds."""
        self._arena[_HEAD:] = 0

    def poison(self) -> None:
        super().poison()
        self._page[_POISON] = 1

    @property
    def begun(self) -> int:
        return super().begun + int(self._page[_BEGUN])

    @property
    def ended(self) -> int:
        return super().ended + int(self._page[_ENDED])

    @property
    def in_flight(self) -> bool:
        return super().in_flight or int(self._page[_BEGUN]) > int(self._page[_ENDED])

    @property
    def failed(self) -> tuple[int, ...]:
        mask = 0
        for ranks in self._page[_FAILED:].tolist():
            mask |= ranks
        return tuple(r for r in range(self.world) if mask >> r & 1)

    @property
    def odd(self) -> tuple[int, ...]:
        mask = int(self._page[_ODD])
        return tuple(sorted({*super().odd, *(r for r in range(self.world) if mask >> r & 1)}))

    def round_of(self, descriptor: Hashable) -> tuple[Any, ...]:
        """The arguments of a kernel that performs rounds (csrc/ranks/_round.cc.jinja)."""
        own = (self.place, self.flagged, self._numbers[descriptor], self._patience, self._rank, self.world)
        return (self._epochs, self._failed, self._page.data_ptr(), *own, *self._handle.buffer_ptrs)

    def _round(self, descriptor: Hashable, sent: Tensor, like: Tensor, facts: Sequence[Tensor | None]) -> list[Tensor]:
        """One round in one launch. sent: [1 or world, bytes]."""
        size = sent.shape[1]
        found = sent.new_empty(self.world, size)
        known = [fact for fact in facts if fact is not None]
        hashed = self._hash(known) if known else None
        step = size if len(sent) > 1 else 0
        facts_at = 0 if hashed is None else hashed.data_ptr()
        self._module.run(
            sent, found, *self.round_of(descriptor), facts_at, step, int(in_lines(size, self.world, MOST_LINES, self.flagged))
        )
        self.bad = self._failed
        used = like.numel() * like.element_size()
        return [row[:used].view(like.dtype).view(like.shape) for row in found]


def spec_of_rounds(arch: str) -> JitSpec:
    """The kernel of plain rounds."""
    from opfacade.jit.spec import JitSpec

    return JitSpec.of("exchange", "ranks/exchange", arch)


def _module(device: torch.device) -> Any:
    import torch

    from opfacade import jit
    from opfacade.core.target import Target

    with torch.cuda.device(device):
        module = jit.load(spec_of_rounds(Target.current().arch))
    module.prepare(device.index)
    return module


def _lines(parts: Sequence[Tensor]) -> Tensor:
    """[parts, bytes], padded to whole lines; without a copy if there is one aligned part that needs no padding."""
    import torch

    flat = [as_bytes(part) for part in parts]
    room = -len(flat[0]) % _LINE
    if len(flat) == 1 and not room and flat[0].data_ptr() % _LINE == 0:
        return flat[0][None]
    pad = flat[0].new_zeros(room)
    return torch.cat([piece for part in flat for piece in (part, pad)]).view(len(flat), -1)
