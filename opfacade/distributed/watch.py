"""Watch: a thread that ends calls on GPUs whose ranks do not come. NCCL has no deadline, and the host waits for no call.

It reads what the device tells in pinned memory. At the deadline it asks all ranks where they are, names those that do not
answer or are behind, poisons outputs, and aborts the communicator: kernels that wait return, in replays too.
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

_PAUSE = 0.02  # s between two looks
_ANSWERS = 1.0  # s that ranks have to say where they are
_LEAVES = 0.25  # s in which data of a rank that is gone may still arrive


class Watched(Protocol):
    """The part of a group that a watch needs. op: of the call that began last; calls: rounds by host memory."""

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
    """It holds no group that nobody else holds, and ends with it."""

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
        """The failure of now, if there is one."""
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
        """Seconds that the call in flight has taken; None where none is."""
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
        """A kernel waited for these ranks for as long as it may."""
        got = f"nothing from {named(ranks)} within {group.timeout_s:g} s, according to a kernel"
        return told(f"{group.op}.run", "OPF-N001", "every rank to make the call", got, ranks)

    def _tell_lag(self, group: Watched) -> None:
        places = self._places(group)
        late = tuple(peer for peer in self._mail.peers if places.get(peer, -1) < self._last[0])
        rounds.tell_lag(group.op, self._last[0], late or self._mail.peers, group.warn_s)

    def _absent(self, group: Watched) -> GroupError:
        """Ranks that do not answer, or have begun fewer calls."""
        places = self._places(group)
        silent = tuple(peer for peer in self._mail.peers if peer not in places)
        behind = tuple(r for r, begun in sorted(places.items()) if begun < self._last[0])
        said = [f"rank {r} is at call {places[r]}" for r in behind] + [f"rank {r} does not answer" for r in silent]
        ranks = tuple(sorted((*silent, *behind))) or self._mail.peers
        why = "; ".join(said) or "all ranks have begun it"
        got = f"nothing from {named(ranks)} for call {self._last[0]} within {group.timeout_s:g} s ({why})"
        return told(f"{group.op}.run", "OPF-N001", "every rank to make the call", got, ranks)

    def _places(self, group: Watched) -> dict[int, int]:
        """The calls that ranks have begun, of those that answer."""
        mail = self._mail
        mail.places.clear()
        for peer in mail.peers:
            mail.send(peer, Frame(ASK, group.calls))
        mail.wait(lambda: len(mail.places) == len(mail.peers), min(_ANSWERS, group.timeout_s / 4))
        return {peer: int(json.loads(setup.text_of(text))["begun"]) for peer, text in dict(mail.places).items()}
