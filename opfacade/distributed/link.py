"""Link: exchanges bytes between GPUs by the NCCL backend of a process group. The host starts a round and does not wait.

Every rank sends a header with its bytes: the digest of the plan and a hash of the values that must be equal. The device records
the ranks whose header differs, and fills the outputs of that call and of all later calls. Copies on the stream update pinned
memory, which the host reads, so graph replays are watched like eager calls.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from opfacade.base.fork_lock import ForkLock
from opfacade.core.device_tensors import keep_in_children
from opfacade.distributed.statistics import Counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

_HEADER = 16  # bytes: digest, hash
_ODD = 0x9E3779B97F4A7C15 - 2**64


class Link:
    """state: the number of completed calls, then for each rank whether its header ever differed. seen: the host's copy of
    state."""

    def __init__(self, process_group: ProcessGroup, device: torch.device) -> None:
        import torch

        self._pg, self.device, self.world = process_group, device, process_group.size()
        self._digests: dict[Hashable, Tensor] = {}
        self._factors: dict[int, Tensor] = {}  # hash factors, by the number of hashed words
        self._state = torch.zeros(1 + self.world, dtype=torch.int64, device=device)
        self._seen, self._begun = self._shared([0] * (1 + self.world)), self._shared([-1])
        self._poison = self._shared([0])
        self._aborting = ForkLock()
        self._abort: threading.Thread | None = None
        self._failed = torch.zeros((), dtype=torch.bool, device=device)
        self.bad = self._failed

    def _shared(self, values: list[int]) -> Tensor:
        """A pinned int64 tensor on the host, which the device reads and writes by copies on its stream."""
        import torch

        made = torch.tensor(values, dtype=torch.int64, device="cpu")
        if self.device.type != "cuda":
            return made
        pinned = made.pin_memory()
        keep_in_children(pinned)  # torch queries the streams of pending copies when it frees pinned memory
        return pinned

    def learn(self, descriptor: Hashable, digest: bytes) -> None:
        """Stores the digest of a plan on the device, before a graph contains calls of the plan."""
        import torch

        self._digests[descriptor] = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(self.device)

    def gathered(self, descriptor: Hashable, own: Tensor, facts: Sequence[Tensor | None]) -> list[Tensor]:
        """This tensor from all ranks, in rank order."""
        packed = self._packed(descriptor, [own], self._hash(facts))
        found = packed.new_empty(self.world, packed.shape[1])
        self._begin()
        _collect(self._pg, found, packed[0])
        return self._taken(found, packed[0], own)

    def swapped(
        self, descriptor: Hashable, parts: Sequence[Tensor], like: Tensor, facts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """parts[r] goes to rank r; entry r is what rank r sent to this one. All have the shape and dtype of `like`."""
        packed = self._packed(descriptor, parts, self._hash(facts))
        found = packed.new_empty(packed.shape)
        self._begin()
        _exchange(self._pg, found, packed)
        return self._taken(found, packed[0], like)

    def poison(self) -> None:
        """Fills the outputs of all calls in flight."""
        self._poison[0] = 1

    def abort(self, seconds: float = 0.0) -> None:
        """Ends all waits of NCCL, also in graph replays. Aborts NCCL once, and waits `seconds` for the abort to finish.

        NCCL stops its kernels immediately, but its abort returns only when no graph contains its calls; therefore it runs in a
        separate thread.
        """
        with self._aborting:
            if self._abort is None:
                self._abort = threading.Thread(target=self._end, name="opfacade-abort", daemon=True)
                self._abort.start()
        self._abort.join(seconds)

    def _end(self) -> None:
        with suppress(RuntimeError):
            self._pg._get_backend(self.device).abort()

    @property
    def begun(self) -> int:
        """The number of the latest call that has begun, counted from 0; -1 before the first call."""
        return int(self._begun[0])

    @property
    def ended(self) -> int:
        """The number of completed calls."""
        return int(self._seen[0])

    @property
    def in_flight(self) -> bool:
        """Whether a call has begun and has not completed."""
        return int(self._begun[0]) == int(self._seen[0])

    @property
    def failed(self) -> tuple[int, ...]:
        """Ranks for which a kernel timed out. Always empty here: NCCL's kernels have no timeout."""
        return ()

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks whose header differed from this rank's."""
        return tuple(r for r, differs in enumerate(self._seen[1:].tolist()) if differs)

    def counted(self) -> Counted:
        """Counters of all rounds so far, including graph replays."""
        return Counted(self.ended, None, {}, {})

    def finished(self) -> bool:
        """Whether the device has finished all its work; does not wait."""
        import torch

        return self.device.type != "cuda" or torch.cuda.current_stream(self.device).query()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _packed(self, descriptor: Hashable, parts: Sequence[Tensor], facts: Tensor) -> Tensor:
        """[parts, bytes]: a row has a header and one part, aligned for every dtype."""
        import torch

        flat = [as_bytes(part) for part in parts]
        room = facts.new_zeros(-len(flat[0]) % _HEADER, dtype=torch.uint8)
        header = (self._digests[descriptor], facts.view(torch.uint8))
        return torch.cat([piece for part in flat for piece in (*header, part, room)]).view(len(flat), -1)

    def _hash(self, facts: Sequence[Tensor | None]) -> Tensor:
        """int64 [1]: the sum of the 64-bit words of all facts, each multiplied by an odd number."""
        import torch

        given = [as_bytes(fact) for fact in facts if fact is not None]
        if not given:
            return torch.zeros(1, dtype=torch.int64, device=self.device)
        text = torch.cat([t for fact in given for t in (fact, fact.new_zeros(-len(fact) % 8))]).view(torch.int64)
        odd = self._odd_numbers(len(text))
        return (text * odd).sum(0, keepdim=True)

    def _odd_numbers(self, count: int) -> Tensor:
        """The factors of `count` words, cached unless a capture creates them: those are in the memory of its graph."""
        import torch

        known = self._factors.get(count)
        if known is None:
            known = torch.arange(1, 2 * count, 2, dtype=torch.int64, device=self.device) * _ODD
            if not (known.is_cuda and torch.cuda.is_current_stream_capturing()):
                self._factors[count] = known
        return known

    def _begin(self) -> None:
        """Writes to host memory that a call has begun."""
        self._begun.copy_(self._state[:1], non_blocking=True)

    def _taken(self, found: Tensor, own: Tensor, like: Tensor) -> list[Tensor]:
        """Unpacks the parts of a completed round: compares the headers, updates host memory, and fills the parts after a
        failure."""
        import torch

        header = own[:_HEADER].view(torch.int64)
        differs = (found[:, :_HEADER].view(torch.int64) != header).any(1)
        self._state[1:].bitwise_or_(differs)
        self._state[:1].add_(1)
        self._seen.copy_(self._state, non_blocking=True)
        poison = self._poison.to(self.device, non_blocking=True)
        self.bad = torch.cat([self._state[1:], poison]).any() | self._failed
        found.masked_fill_(self.bad, 0xFF)  # NaN in every float, -1 in every integer
        size = like.numel() * like.element_size()
        return [row[_HEADER : _HEADER + size].view(like.dtype).view(like.shape) for row in found]


def as_bytes(part: Tensor) -> Tensor:
    import torch

    return part.contiguous().flatten().view(torch.uint8)


def _collect(pg: ProcessGroup, found: Tensor, own: Tensor) -> None:
    from torch._C._distributed_c10d import AllgatherOptions

    options = AllgatherOptions()
    options.asyncOp = False
    _on_stream(pg._allgather_base(found.view(-1), own, options))


def _exchange(pg: ProcessGroup, found: Tensor, sent: Tensor) -> None:
    from torch._C._distributed_c10d import AllToAllOptions

    options = AllToAllOptions()
    options.asyncOp = False
    _on_stream(pg.alltoall_base(found.view(-1), sent.view(-1), [], [], options))


def _on_stream(work: Work | None) -> None:
    """Makes later work of the stream wait for `work`; the host does not wait."""
    if work is not None:
        work.wait()
