"""One round of frames: every rank sends to every other rank and waits for all of them until a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from opfacade.base import notices
from opfacade.distributed.frames import BYE, EAGER, Frame
from opfacade.distributed.judgement import desync, named, told
from opfacade.distributed.mailbox import Mailbox
from opfacade.distributed.setup import text_of
from opfacade.distributed.statistics import Statistics
from opfacade.errors import GroupError, LagWarning

if TYPE_CHECKING:
    from torch import Tensor

_SETTLE = 0.05  # seconds to wait for an alarm, and for other ranks that leave at the same time


class Patience(NamedTuple):
    """Seconds until a missing rank is an error, and until a LagWarning."""

    timeout: float
    warn: float


class Round(NamedTuple):
    payloads: list[Tensor]
    last: int | None


class Waiting(Protocol):
    """The part of a group that a round needs."""

    rank: int
    statistics: Statistics

    def name_of(self, frame: Frame) -> str: ...


def exchange(mail: Mailbox, frame: Frame, outgoing: Sequence[Tensor], patience: Patience, group: Waiting) -> Round:
    """Sends and receives the frames of one round. GroupError if a rank does not arrive, has left, has failed, or makes another
    call."""
    for peer in mail.peers:
        mail.send(peer, replace(frame, size=outgoing[peer].numel()), outgoing[peer])
    last = _arrived(mail, frame, patience, group)
    frames = {peer: mail.first(peer) for peer in mail.peers}
    known = {peer: found[0] for peer, found in frames.items() if found is not None}
    error = desync(known | {mail.rank: frame}, mail.rank, group.name_of)
    if error is not None:
        raise error
    payloads = [outgoing[mail.rank] if r == mail.rank else mail.take(r)[1] for r in range(mail.world)]
    return Round(payloads, last)


def _arrived(mail: Mailbox, frame: Frame, patience: Patience, group: Waiting) -> int | None:
    """Waits until every peer has sent. Returns the peer that arrived last, or None if this rank did not wait."""
    start, op, last, told_of = time.monotonic(), group.name_of(frame), None, False
    place = op if frame.kind in EAGER else f"{op}.run"
    while True:
        _raise_bad_news(mail, place, frame.call)
        missing, waited = _missing(mail), time.monotonic() - start
        if not missing:
            return last
        last = missing[-1]
        if waited >= patience.timeout:
            raise _absent(place, frame, tuple(missing), f"{patience.timeout:g} s")
        if not told_of and waited >= patience.warn:
            told_of = True
            group.statistics.lags += 1
            tell_lag(op, frame.call, tuple(missing), patience.warn)
        until = patience.timeout if told_of else min(patience.timeout, patience.warn)
        mail.wait(partial(_changed, mail, len(missing)), until - waited)


def _changed(mail: Mailbox, missing: int) -> bool:
    return mail.alarm() is not None or bool(_left(mail)) or len(_missing(mail)) < missing


def _raise_bad_news(mail: Mailbox, place: str, call: int) -> None:
    error = bad_news(mail, during=(place, call))
    if error is not None:
        raise error


def tell_lag(op: str, call: int, ranks: tuple[int, ...], after: float) -> None:
    text = f"{op}: {named(ranks)} did not arrive at call {call} within {after:g} s; waiting."
    notices.tell(text, LagWarning)


def _missing(mail: Mailbox) -> list[int]:
    return [peer for peer in mail.peers if mail.first(peer) is None]


def _left(mail: Mailbox, calls: int | None = None) -> list[int]:
    """Peers that will make no further call. calls: peers that closed their group after this number of calls are left out."""
    first, gone = {peer: mail.first(peer) for peer in mail.peers}, mail.gone()
    closed = {peer for peer, found in first.items() if found and found[0].kind == BYE and found[0].call != calls}
    return [peer for peer in mail.peers if peer in closed or peer in gone]


def bad_news(
    mail: Mailbox, calls: int | None = None, during: tuple[str, int | None] = ("group.run", None)
) -> GroupError | None:
    """The failure that a peer reported, or the departure of a peer; None if there is neither. An alarm comes first: it names
    the rank at fault.

    calls: the number of calls of this rank, if it is not waiting for a call. during: op.stage and number of the call for which
    it waits, for the message.
    """
    alarm = mail.alarm()
    if alarm is None and _left(mail, calls):
        mail.wait(lambda: mail.alarm() is not None, _SETTLE)
        alarm = mail.alarm()
    if alarm is not None:
        return _alarm(alarm[0], json.loads(text_of(alarm[1])))
    bad = _left(mail, calls)
    if not bad:
        return None
    why = "; ".join(f"rank {peer}: {mail.gone().get(peer, 'it closed its group')}" for peer in bad)
    place, call = during
    of_call = "" if call is None else f" for call {call}"
    got = f"no more of {named(tuple(bad))}{of_call} ({why})"
    return told(place, "OPF-N001", "every rank to make the call", got, tuple(bad))


def _alarm(peer: int, said: dict[str, object]) -> GroupError:
    ranks = said["ranks"]
    text = f"{said['text']} (reported by rank {peer})"
    error = GroupError(text, code=str(said["code"]), op="group", stage="run")
    error.ranks = tuple(int(r) for r in ranks) if isinstance(ranks, list) else ()
    return error


def _absent(place: str, frame: Frame, ranks: tuple[int, ...], after: str) -> GroupError:
    hint = "It died, stopped, or made fewer calls than this rank."
    got = f"nothing from {named(ranks)} for call {frame.call} within {after}"
    return told(place, "OPF-N001", "every rank to make the call", got, ranks, hint)
