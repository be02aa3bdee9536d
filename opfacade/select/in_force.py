"""The current pins of this process: the locked SKUs and the measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade import env
from opfacade.select import manifest, measurements
from opfacade.select.pins import NO_PINS, Pins

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor
    from opfacade.core.preference import Preference
    from opfacade.core.target import Target


def in_force(descriptor: Descriptor[Any], prefer: Preference, target: Target) -> Pins:
    """The pins of this process. Reads nothing unless OPFACADE_REQUIRE_SKU is set or the preference uses measurements."""
    required = env.require_sku()
    if not required and prefer.autotune == "off":
        return NO_PINS
    allowed = manifest.required(required) if required else None
    return Pins(allowed, measurements.tuned_for(descriptor, prefer, target) if prefer.autotune == "use" else None)
