"""Mailbox: frames to and from every other rank of a process group, with waits that end.

A wait of gloo that times out closes every connection of its process, so a rank that is late could never be forgiven. Here a
thread for each peer receives without a deadline, and the caller waits for what has arrived, for as long as it likes.

A thread ends with the last frame of its peer, or with the connection. The interpreter must not end before it: a thread that
wakes later needs the lock of an interpreter that is gone, and that ends the process by a signal.
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
_TAGS = 2  # of a channel: headers and payloads
_NEVER_SENT = 2**30  # a tag
_ENDS = 1.0  # s that the last frame to a peer may take, and then that of a peer
_all: weakref.WeakSet[Mailbox] = weakref.WeakSet()


class Gone(Exception):
    """A peer whose connection ended, or that sent data that is not a frame."""


class Mailbox:
    """One channel of a process group. Everything that arrived from a peer stays in its order until it is taken."""

    def __init__(self, process_group: ProcessGroup, channel: int) -> None:
        self._pg, self._tag = process_group, _TAGS * channel
        self.rank, self.world = process_group.rank(), process_group.size()
        self.peers = tuple(r for r in range(self.world) if r != self.rank)
        self._news = threading.Condition()
        self._sending = ForkLock()  # a header and its payload go together
        self._boxes: dict[int, deque[tuple[Frame, Tensor]]] = {peer: deque() for peer in self.peers}
        self._gone: dict[int, str] = {}
        self.answer: Callable[[], Tensor] | None = None  # where this rank is, for peers that ask
        self.places: dict[int, Tensor] = {}  # what peers answered
        self._sent: dict[int, deque[Any]] = {peer: deque(maxlen=16) for peer in self.peers}
        self._threads = [
            threading.Thread(target=self._receive, args=(peer,), name=f"opfacade-from-{peer}", daemon=True)
            for peer in self.peers
        ]
        for thread in self._threads:
            thread.start()
        _all.add(self)

    def send(self, peer: int, frame: Frame, payload: Tensor | None = None) -> None:
        """Hand a frame to the transport; what it reads is kept until the peer has answered several later ones."""
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
        """Whether `enough` became true in time. It is asked at each arrival, under the lock of the boxes."""
        deadline = time.monotonic() + seconds
        with self._news:
            return self._news.wait_for(enough, max(0.0, deadline - time.monotonic()))

    def first(self, peer: int) -> tuple[Frame, Tensor] | None:
        """The first arrival that was not taken."""
        box = self._boxes[peer]
        return box[0] if box else None

    def alarm(self) -> tuple[int, Tensor] | None:
        """A failure that a peer told of, wherever it stands among its frames: (peer, text)."""
        found = ((peer, text) for peer, box in self._boxes.items() for frame, text in tuple(box) if frame.kind == ALARM)
        return next(found, None)

    def take(self, peer: int) -> tuple[Frame, Tensor]:
        with self._news:
            return self._boxes[peer].popleft()

    def gone(self) -> dict[int, str]:
        """Peers that no frame can come from any more, with the reason, once their frames are used up."""
        return {peer: why for peer, why in self._gone.items() if not self._boxes[peer]}

    def close(self, last: Frame) -> None:
        """Send a last frame, and wait a moment for it to leave and for those of all peers."""
        for peer in self.peers:
            if peer not in self._gone:
                self.send(peer, last)
        for sent in self._sent.values():
            _await(sent[-1][2:] if sent else [])
        self._join()

    def abort(self) -> None:
        """Close all connections: receivers end, here and at peers. A wait of gloo that times out does just that."""
        import torch

        for peer in self.peers:
            with suppress(RuntimeError):
                work = self._pg.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], peer, _NEVER_SENT)
                work.wait(timedelta(milliseconds=1))
        self._join()

    def listens(self) -> bool:
        """Whether a last frame is still to come. A child after a fork has no thread, and so listens to none."""
        return any(thread.is_alive() for thread in self._threads)

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
    """Wait for sends that may never end."""
    with suppress(RuntimeError):
        for work in works:
            work.wait(timedelta(seconds=_ENDS))


@atexit.register
def _end_all() -> None:
    """Close the connections of groups whose peers are still there, so that no thread outlives the interpreter."""
    for mailbox in tuple(_all):
        if mailbox.listens():
            mailbox.abort()
