"""Selection surveys candidates in order up to the first that fits; `explain` surveys all of them."""

from __future__ import annotations

from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.select.pins import NO_PINS, Pins
from opfacade.select.registry import candidates_for
from opfacade.select.selection import Option, consider, survey


def survey_to_chosen(
    descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins = NO_PINS
) -> tuple[Option, ...]:
    """The options of `survey` up to the first without a reason against it; later candidates are not called."""
    if prefer.pin is not None or prefer.autotune == "use":
        return survey(descriptor, prefer, target, pins)
    options = []
    for candidate in candidates_for(type(descriptor)):
        options.append(consider(candidate, descriptor, prefer, target, pins))
        if not options[-1].reasons:
            break
    return tuple(options)
