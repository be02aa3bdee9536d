"""Link: rounds of bytes between GPUs by the NCCL backend of a process group. The host starts them and does not wait.

Every rank sends a header with its bytes: the digest of the plan and a hash of what must be equal. Ranks that differ are noted
on the device, and outputs of that call and of all later ones are filled. The host reads pinned memory, which copies on
the stream keep up to date: so replays of a graph are watched like calls.
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
    """state: the calls that ended, then for each rank whether its header ever differed. seen: the same on the host."""

    def __init__(self, process_group: ProcessGroup, device: torch.device) -> None:
        import torch

        self._pg, self.device, self.world = process_group, device, process_group.size()
        self._digests: dict[Hashable, Tensor] = {}
        self._factors: dict[int, Tensor] = {}  # by the number of words that are hashed
        self._state = torch.zeros(1 + self.world, dtype=torch.int64, device=device)
        self._seen, self._begun = self._shared([0] * (1 + self.world)), self._shared([-1])
        self._poison = self._shared([0])
        self._aborting = ForkLock()
        self._abort: threading.Thread | None = None
        self._failed = torch.zeros((), dtype=torch.bool, device=device)
        self.bad = self._failed

    def _shared(self, values: list[int]) -> Tensor:
        """int64 on the host, that the device reads and writes by copies on its stream."""
        import torch

        made = torch.tensor(values, dtype=torch.int64, device="cpu")
        if self.device.type != "cuda":
            return made
        pinned = made.pin_memory()
        keep_in_children(pinned)  # torch asks the streams of its copies whether they are over
        return pinned

    def learn(self, descriptor: Hashable, digest: bytes) -> None:
        """Hold the digest of a plan on the device, before a graph has calls of it."""
        import torch

        self._digests[descriptor] = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(self.device)

    def gathered(self, descriptor: Hashable, own: Tensor, facts: Sequence[Tensor | None]) -> list[Tensor]:
        """This tensor of all ranks, in their order."""
        packed = self._packed(descriptor, [own], self._hash(facts))
        found = packed.new_empty(self.world, packed.shape[1])
        self._begin()
        _collect(self._pg, found, packed[0])
        return self._taken(found, packed[0], own)

    def swapped(
        self, descriptor: Hashable, parts: Sequence[Tensor], like: Tensor, facts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """parts[r] goes to rank r; entry r is what rank r sent to this one. All are of the shape and type of `like`."""
        packed = self._packed(descriptor, parts, self._hash(facts))
        found = packed.new_empty(packed.shape)
        self._begin()
        _exchange(self._pg, found, packed)
        return self._taken(found, packed[0], like)

    def poison(self) -> None:
        """Fill the outputs of every call that has not ended."""
        self._poison[0] = 1

    def abort(self, seconds: float = 0.0) -> None:
        """End all waits of NCCL, also those of replays. NCCL is asked once, and this waits for the given time.

        NCCL tells its kernels at once, and then waits until no graph has calls of it, so a thread of its own waits.
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
        """The number of the call that began last, from 0 on; -1 before the first."""
        return int(self._begun[0])

    @property
    def ended(self) -> int:
        """How many calls ended."""
        return int(self._seen[0])

    @property
    def in_flight(self) -> bool:
        """Whether a call has begun and not ended."""
        return int(self._begun[0]) == int(self._seen[0])

    @property
    def failed(self) -> tuple[int, ...]:
        """Ranks that a kernel did not wait for any longer; NCCL has no such kernel."""
        return ()

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks whose header differed from this rank's."""
        return tuple(r for r, differs in enumerate(self._seen[1:].tolist()) if differs)

    def counted(self) -> Counted:
        """Counters of all rounds so far, replays too."""
        return Counted(self.ended, None, {}, {})

    def finished(self) -> bool:
        """Whether all work given to the device has ended, without a wait."""
        import torch

        return self.device.type != "cuda" or torch.cuda.current_stream(self.device).query()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _packed(self, descriptor: Hashable, parts: Sequence[Tensor], facts: Tensor) -> Tensor:
        """[parts, bytes]: a header and a part in each row, aligned for every type."""
        import torch

        flat = [as_bytes(part) for part in parts]
        room = facts.new_zeros(-len(flat[0]) % _HEADER, dtype=torch.uint8)
        header = (self._digests[descriptor], facts.view(torch.uint8))
        return torch.cat([piece for part in flat for piece in (*header, part, room)]).view(len(flat), -1)

    def _hash(self, facts: Sequence[Tensor | None]) -> Tensor:
        """int64 [1]: a sum of products with odd numbers, of the words of all facts."""
        import torch

        given = [as_bytes(fact) for fact in facts if fact is not None]
        if not given:
            return torch.zeros(1, dtype=torch.int64, device=self.device)
        text = torch.cat([t for fact in given for t in (fact, fact.new_zeros(-len(fact) % 8))]).view(torch.int64)
        odd = self._odd_numbers(len(text))
        return (text * odd).sum(0, keepdim=True)

    def _odd_numbers(self, count: int) -> Tensor:
        """Factors of words; kept, but for those that a capture makes, which are memory of its graph."""
        import torch

        known = self._factors.get(count)
        if known is None:
            known = torch.arange(1, 2 * count, 2, dtype=torch.int64, device=self.device) * _ODD
            if not (known.is_cuda and torch.cuda.is_current_stream_capturing()):
                self._factors[count] = known
        return known

    def _begin(self) -> None:
        """Tell the host that a call began."""
        self._begun.copy_(self._state[:1], non_blocking=True)

    def _taken(self, found: Tensor, own: Tensor, like: Tensor) -> list[Tensor]:
        """Parts of a round that ended: compare headers, tell the host, and note whether outputs are to be filled."""
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
    """Later work of the stream waits for it; the host does not."""
    if work is not None:
        work.wait()
