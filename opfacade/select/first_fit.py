"""Selection surveys candidates in order up to the first that fits; `explain` surveys all of them.

The answers of candidates that no size changes are kept, so a new size asks only the others."""

from __future__ import annotations

from typing import Any

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.any_size import AtAnySize
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import DEFAULT, Preference
from opfacade.core.target import Target
from opfacade.select.pins import NO_PINS, Pins
from opfacade.select.registry import candidates_for
from opfacade.select.selection import Option, consider, survey

_kept: AnswerCache[dict[int, Option]] = AnswerCache()  # by the place of the candidate


def survey_to_chosen(
    descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins = NO_PINS
) -> tuple[Option, ...]:
    """The options of `survey` up to the first without a reason against it; later candidates are not called."""
    if prefer.pin is not None or prefer.autotune == "use":
        return survey(descriptor, prefer, target, pins)
    # Reasons of a caller or of a process follow those of a candidate, so only a plain call has these alone.
    plain = pins is NO_PINS and (prefer is DEFAULT or prefer == DEFAULT)
    kept = _kept.get((descriptor.refused_alike, target), dict) if plain else {}
    options = []
    for place, candidate in enumerate(candidates_for(type(descriptor))):
        option = kept.get(place)
        if option is None or option.candidate is not candidate:
            option = consider(candidate, descriptor, prefer, target, pins)
            if plain and type(option.reasons) is AtAnySize:
                kept[place] = option if option.reasons or candidate.size_free else Option(candidate, ())
        elif option.sku is None and not option.reasons:
            option = Option(candidate, (), candidate.sku(descriptor, target), candidate.workspace(descriptor, target))
        options.append(option)
        if not option.reasons:
            break
    return tuple(options)
