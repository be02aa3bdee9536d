"""Finds the ranks at fault if the frames of one round belong to different calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from opfacade.distributed.frames import Frame
from opfacade.errors import GroupError, Issue, from_issues

NameOf = Callable[[Frame], str]


def told(place: str, code: str, expected: str, got: str, ranks: tuple[int, ...], hint: str = "") -> GroupError:
    """A GroupError with this code and these ranks. place: op.stage."""
    op, _, stage = place.partition(".")
    error = from_issues(op, stage, [Issue(code, "group", expected, got, hint, kind="GroupError")])
    assert isinstance(error, GroupError)
    error.ranks = ranks
    return error


def odd_ones(values: Mapping[int, object]) -> tuple[int, ...]:
    """The ranks whose value differs from the majority; all ranks if no value has a majority."""
    (most, count), *_ = Counter(values.values()).most_common(1)
    return tuple(sorted(r for r, v in values.items() if v != most)) if 2 * count > len(values) else tuple(sorted(values))


def desync(frames: Mapping[int, Frame], rank: int, name_of: NameOf) -> GroupError | None:
    """The error if the frames of a round, including this rank's own, belong to different calls; otherwise None."""
    own = frames[rank]
    for what in (_of_call, _of_facts):
        values = {r: what(frame) for r, frame in frames.items()}
        if len(set(values.values())) > 1:
            odd = odd_ones(values)
            return told(
                f"{name_of(own)}.run", "OPF-N002", "the same call on all ranks", _shown(frames, odd, rank, name_of), odd
            )
    return None


def _of_call(frame: Frame) -> object:
    return frame.kind, frame.call, frame.digest


def _of_facts(frame: Frame) -> object:
    return frame.facts


def _shown(frames: Mapping[int, Frame], odd: tuple[int, ...], rank: int, name_of: NameOf) -> str:
    calls = {_of_call(frame) for frame in frames.values()}
    if len(calls) == 1:
        return f"other values of seeds, offsets or counts on {named(odd)}"
    others = [r for r in odd if r != rank] or [r for r in frames if r != rank]
    said = "; ".join(f"rank {r} is at {_place(frames[r], name_of)}" for r in others)
    return f"{said}; this rank, {rank}, at {_place(frames[rank], name_of)}"


def _place(frame: Frame, name_of: NameOf) -> str:
    return f"call {frame.call}, {name_of(frame)}"


def named(ranks: tuple[int, ...]) -> str:
    """ "rank 3", or "ranks 1, 2"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
