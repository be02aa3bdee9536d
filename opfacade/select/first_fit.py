"""Selection surveys candidates in order up to the first that fits; `explain` surveys all of them.

The answers of candidates that no size changes are kept, so a new size asks only the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.any_size import AtAnySize
from opfacade.core.candidate import Candidate, Offer
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import DEFAULT, Preference
from opfacade.core.target import Target
from opfacade.select.pins import NO_PINS, Pins
from opfacade.select.registry import candidates_for
from opfacade.select.selection import Option, consider, survey


class _Kept:
    """Answers for all problems with one `refused_alike`, on one target. first: the options of the leading candidates that no
    size changes. later: those of later candidates, by place. sized: functions of a problem, by place."""

    __slots__ = ("candidates", "first", "later", "sized")

    def __init__(self) -> None:
        self.candidates: Sequence[Candidate] = ()
        self.first: tuple[Option, ...] = ()
        self.later: dict[int, Option] = {}
        self.sized: dict[int, Callable[[Any], Offer]] = {}

    def add(self, place: int, option: Option, descriptor: Descriptor[Any], target: Target) -> None:
        """Stores the part of an option that is the same at all sizes: all of it, the fact that it has no reasons, or a function
        of the sizes."""
        candidate, first = option.candidate, self.first
        if type(option.reasons) is AtAnySize and (option.reasons or candidate.size_free):
            self.later[place] = option
            if place == len(first):
                self.first = (*first, option)
        elif candidate.sized is not None and (sized := candidate.sized(descriptor, target)) is not None:
            self.sized[place] = sized
        elif type(option.reasons) is AtAnySize:
            self.later[place] = Option(candidate, ())


_kept: AnswerCache[_Kept] = AnswerCache()


def survey_to_chosen(
    descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins = NO_PINS
) -> tuple[Option, ...]:
    """The options of `survey` up to the first without a reason against it; later candidates are not called."""
    if prefer.pin is not None or prefer.autotune == "use":
        return survey(descriptor, prefer, target, pins)
    # Reasons of a caller or of a process follow those of a candidate, so only a plain call has these alone.
    if pins is not NO_PINS or (prefer is not DEFAULT and prefer != DEFAULT):
        return _to_chosen(consider(one, descriptor, prefer, target, pins) for one in candidates_for(type(descriptor)))
    kept, candidates = _kept.get((descriptor.refused_alike, target), _Kept), candidates_for(type(descriptor))
    if kept.candidates is not candidates:  # a test replaced them
        kept.__init__()  # type: ignore[misc]
        kept.candidates = candidates
    first = kept.first
    if first and not first[-1].reasons:
        return first
    return _others(kept, first, descriptor, target)


def _others(kept: _Kept, first: tuple[Option, ...], descriptor: Descriptor[Any], target: Target) -> tuple[Option, ...]:
    """The options after `first`, which all refuse."""
    options, candidates = [*first], kept.candidates
    for place in range(len(first), len(candidates)):
        candidate, option = candidates[place], kept.later.get(place)
        sized = kept.sized.get(place) if option is None else None
        if sized is not None:
            option = Option(candidate, *sized(descriptor))
        elif option is None:
            option = consider(candidate, descriptor, DEFAULT, target, NO_PINS)
            kept.add(place, option, descriptor, target)
        elif option.sku is None and not option.reasons:
            option = Option(candidate, (), candidate.sku(descriptor, target), candidate.workspace(descriptor, target))
        options.append(option)
        if not option.reasons:
            break
    return tuple(options)


def _to_chosen(options: Iterable[Option]) -> tuple[Option, ...]:
    found = []
    for option in options:
        found.append(option)
        if not option.reasons:
            break
    return tuple(found)
