"""Faults that change nothing a test could see, judged by hand once and kept by their digest, with the reason."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

PLACE = Path(__file__).with_name("equivalent.json")


@cache
def reasons() -> dict[str, str]:
    """{digest: why}. A digest that no line gives any more does no harm: a line that comes back changed has another."""
    return json.loads(PLACE.read_text())
