"""Mailbox: sends frames to and receives frames from every other rank of a process group; every wait has a deadline.

If a wait of gloo times out, gloo closes every connection of the process, so a late rank could never recover. Therefore one
thread per peer receives without a deadline, and the caller waits for arrivals with its own deadline.

A thread ends after the last frame of its peer, or when the connection closes. It must end before the interpreter does: a thread
that wakes later needs the lock of a finalised interpreter, and the process would be killed by a signal.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from opfacade.base.fork_lock import ForkLock
from opfacade.distributed.frames import ALARM, ASK, BYE, HEADER, PLACE, Frame, frame_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

_FOREVER = timedelta(days=3650)
_TAGS = 2  # tags per channel: one for headers, one for payloads
_NEVER_SENT = 2**30  # a tag
_ENDS = 1.0  # seconds to send the last frame, and then to receive the last frames of the peers
_all: weakref.WeakSet[Mailbox] = weakref.WeakSet()


class Gone(Exception):
    """A peer whose connection ended, or that sent data that is not a frame."""


class Mailbox:
    """One channel of a process group. Frames from a peer stay queued in order of arrival until they are taken."""

    def __init__(self, process_group: ProcessGroup, channel: int) -> None:
        self._pg, self._tag = process_group, _TAGS * channel
        self.rank, self.world = process_group.rank(), process_group.size()
        self.peers = tuple(r for r in range(self.world) if r != self.rank)
        self._news = threading.Condition()
        self._sending = ForkLock()  # keeps a header and its payload together
        self._boxes: dict[int, deque[tuple[Frame, Tensor]]] = {peer: deque() for peer in self.peers}
        self._gone: dict[int, str] = {}
        self.answer: Callable[[], Tensor] | None = None  # the reply to peers that ask which call this rank has reached
        self.places: dict[int, Tensor] = {}  # the replies of peers
        self._sent: dict[int, deque[Any]] = {peer: deque(maxlen=16) for peer in self.peers}
        self._threads = [
            threading.Thread(target=self._receive, args=(peer,), name=f"opfacade-from-{peer}", daemon=True)
            for peer in self.peers
        ]
        for thread in self._threads:
            thread.start()
        _all.add(self)

    def send(self, peer: int, frame: Frame, payload: Tensor | None = None) -> None:
        """Starts to send a frame. Its tensors are kept alive until 16 later frames were sent to this peer."""
        header = frame.header()
        work: list[Any] = [header, payload]
        try:
            with self._sending:
                work.append(self._pg.send([header], peer, self._tag))
                if payload is not None and frame.size:
                    work.append(self._pg.send([payload], peer, self._tag + 1))
        except RuntimeError as error:
            self._end(peer, error)
        self._sent[peer].append(work)

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Waits until `enough` returns true; false if the time is over. `enough` is called at each arrival, with the lock
        held."""
        deadline = time.monotonic() + seconds
        with self._news:
            return self._news.wait_for(enough, max(0.0, deadline - time.monotonic()))

    def first(self, peer: int) -> tuple[Frame, Tensor] | None:
        """The first frame from a peer that is still queued, or None."""
        box = self._boxes[peer]
        return box[0] if box else None

    def alarm(self) -> tuple[int, Tensor] | None:
        """A failure that a peer reported, at any position in its queue: (peer, text)."""
        found = ((peer, text) for peer, box in self._boxes.items() for frame, text in tuple(box) if frame.kind == ALARM)
        return next(found, None)

    def take(self, peer: int) -> tuple[Frame, Tensor]:
        with self._news:
            return self._boxes[peer].popleft()

    def gone(self) -> dict[int, str]:
        """Peers whose connection has ended and whose queue is empty, with the reason."""
        return {peer: why for peer, why in self._gone.items() if not self._boxes[peer]}

    def close(self, last: Frame) -> None:
        """Sends a last frame, and waits briefly until it is sent and the last frames of all peers have arrived."""
        for peer in self.peers:
            if peer not in self._gone:
                self.send(peer, last)
        self._flush(self.peers)
        self._join()

    def abort(self, missing: tuple[int, ...] = ()) -> None:
        """Closes all connections, which ends the receivers here and at the peers. A wait of gloo that times out has this
        effect.

        First the last frames are sent, except to `missing` ranks: a peer that does not get an alarm blames this rank too.
        """
        import torch

        self._flush(tuple(peer for peer in self.peers if peer not in missing and peer not in self._gone))
        for peer in self.peers:
            with suppress(RuntimeError):
                work = self._pg.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], peer, _NEVER_SENT)
                work.wait(timedelta(milliseconds=1))
        self._join()

    def listens(self) -> bool:
        """Whether a receiver is still running. A forked child has no threads, so it has no receivers."""
        return any(thread.is_alive() for thread in self._threads)

    def _flush(self, peers: tuple[int, ...]) -> None:
        """Waits briefly until the last frames to these peers are sent. gloo sends a payload once its receiver waits for it."""
        for peer in peers:
            last = self._sent[peer].pop() if self._sent[peer] else []  # a second wait for a completed send would not end
            _await(last[2:])

    def _join(self) -> None:
        deadline = time.monotonic() + _ENDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _receive(self, peer: int) -> None:
        try:
            while self._receive_one(peer):
                pass
        except (RuntimeError, Gone) as error:
            self._end(peer, error)

    def _receive_one(self, peer: int) -> bool:
        frame = frame_of(self._bytes(peer, HEADER, self._tag))
        if frame is None:
            raise Gone("it uses another version of opfacade")
        payload = self._bytes(peer, frame.size, self._tag + 1)
        if frame.kind == ASK:
            self._reply(peer, frame)
            return True
        with self._news:
            if frame.kind == PLACE:
                self.places[peer] = payload
            else:
                self._boxes[peer].append((frame, payload))
            self._news.notify_all()
        return frame.kind != BYE

    def _reply(self, peer: int, frame: Frame) -> None:
        answer = self.answer
        if answer is not None:
            text = answer()
            self.send(peer, Frame(PLACE, frame.call, size=text.numel()), text)

    def _bytes(self, peer: int, size: int, tag: int) -> Tensor:
        import torch

        found = torch.empty(size, dtype=torch.uint8, device="cpu")
        if size:
            self._pg.recv([found], peer, tag).wait(_FOREVER)
        return found

    def _end(self, peer: int, error: Exception) -> None:
        with self._news:
            self._gone.setdefault(peer, "its connection ended" if isinstance(error, RuntimeError) else str(error))
            self._news.notify_all()


def _await(works: list[Any]) -> None:
    """Waits for sends, each for at most _ENDS seconds."""
    with suppress(RuntimeError):
        for work in works:
            work.wait(timedelta(seconds=_ENDS))


@atexit.register
def _end_all() -> None:
    """Closes all connections that are still open, so that no thread outlives the interpreter."""
    for mailbox in tuple(_all):
        if mailbox.listens():
            mailbox.abort()
