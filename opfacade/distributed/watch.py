"""Watch: a thread that ends calls on GPUs if a rank does not arrive, because NCCL has no deadline and the host does not wait.

It reads the state that the device writes to pinned memory. At the deadline it asks all ranks which call they have reached,
names the ranks that do not answer or are behind, poisons the outputs, and aborts the communicator. Waiting kernels then return,
also in graph replays.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from opfacade.distributed import rounds, setup
from opfacade.distributed.frames import ASK, Frame
from opfacade.distributed.judgement import named, odd_ones, told
from opfacade.distributed.link import Link
from opfacade.distributed.mailbox import Mailbox
from opfacade.distributed.statistics import Statistics
from opfacade.errors import GroupError

if TYPE_CHECKING:
    from torch import Tensor

_PAUSE = 0.02  # seconds between two checks
_ANSWERS = 1.0  # seconds that peers get to answer which call they have reached
_LEAVES = 0.25  # seconds in which data of a departed rank may still arrive


class Watched(Protocol):
    """The part of a group that a watch needs. op: the op of the latest call; calls: the number of rounds through host
    memory."""

    rank: int
    world: int
    op: str
    timeout_s: float
    warn_s: float
    ended: bool
    statistics: Statistics

    @property
    def calls(self) -> int: ...

    def fail(self, error: GroupError) -> None: ...


class Watch:
    """Holds only a weak reference to its group, and ends when the group is gone."""

    def __init__(self, group: Watched, mail: Mailbox, link: Link) -> None:
        self._group, self._mail, self._link = weakref.ref(group), mail, link
        self._stop = threading.Event()
        self._last, self._since, self._told_of = (-1, 0), time.monotonic(), False
        mail.answer = self._answer
        self._thread = threading.Thread(target=self._run, name="opfacade-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _answer(self) -> Tensor:
        return setup.bytes_of(json.dumps({"begun": self._link.begun, "ended": self._link.ended}))

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE):
            group = self._group()
            if group is None or group.ended:
                return
            error = self._verdict(group)
            if error is not None:
                group.fail(error)
                return
            del group

    def _verdict(self, group: Watched) -> GroupError | None:
        """The failure to report now, or None."""
        if self._link.odd:
            return self._differ(group)
        if self._mail.alarm() is not None or (self._link.failed and self._mail.gone()):
            return rounds.bad_news(self._mail)
        if self._link.failed:
            return self._not_there(group, self._link.failed)
        waited = self._waited()
        if waited is None:
            return None
        if waited >= _LEAVES and self._mail.gone():
            return rounds.bad_news(self._mail, group.calls)
        if waited >= group.warn_s and not self._told_of:
            self._told_of = True
            group.statistics.lags += 1
            self._tell_lag(group)
        return self._absent(group) if waited >= group.timeout_s else None

    def _waited(self) -> float | None:
        """Seconds since a call last began or ended; None if no call is in flight."""
        now, at = time.monotonic(), (self._link.begun, self._link.ended)
        if at != self._last:
            self._last, self._since, self._told_of = at, now, False
        return now - self._since if self._link.in_flight else None

    def _differ(self, group: Watched) -> GroupError:
        values = {r: r in self._link.odd for r in range(group.world)}
        odd = odd_ones(values) if group.world > 2 else (0, 1)
        got = f"another plan, or other seeds, targets or counts, on {named(odd)}"
        return told(f"{group.op}.run", "OPF-N002", "the same call on all ranks", got, odd)

    def _not_there(self, group: Watched, ranks: tuple[int, ...]) -> GroupError:
        """The error for ranks for which a kernel timed out."""
        got = f"nothing from {named(ranks)} within {group.timeout_s:g} s, according to a kernel"
        return told(f"{group.op}.run", "OPF-N001", "every rank to make the call", got, ranks)

    def _tell_lag(self, group: Watched) -> None:
        places = self._places(group)
        late = tuple(peer for peer in self._mail.peers if places.get(peer, -1) < self._last[0])
        rounds.tell_lag(group.op, self._last[0], late or self._mail.peers, group.warn_s)

    def _absent(self, group: Watched) -> GroupError:
        """The error that names ranks that do not answer or have begun fewer calls."""
        places = self._places(group)
        silent = tuple(peer for peer in self._mail.peers if peer not in places)
        behind = tuple(r for r, begun in sorted(places.items()) if begun < self._last[0])
        said = [f"rank {r} is at call {places[r]}" for r in behind] + [f"rank {r} does not answer" for r in silent]
        ranks = tuple(sorted((*silent, *behind))) or self._mail.peers
        why = "; ".join(said) or "all ranks have begun it"
        got = f"nothing from {named(ranks)} for call {self._last[0]} within {group.timeout_s:g} s ({why})"
        return told(f"{group.op}.run", "OPF-N001", "every rank to make the call", got, ranks)

    def _places(self, group: Watched) -> dict[int, int]:
        """The number of the latest call that each answering peer has begun."""
        mail = self._mail
        mail.places.clear()
        for peer in mail.peers:
            mail.send(peer, Frame(ASK, group.calls))
        mail.wait(lambda: len(mail.places) == len(mail.peers), min(_ANSWERS, group.timeout_s / 4))
        return {peer: int(json.loads(setup.text_of(text))["begun"]) for peer, text in dict(mail.places).items()}
