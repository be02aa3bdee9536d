"""JSON that every reader accepts: non-finite numbers, which JSON lacks, become the strings "NaN", "Infinity" and
"-Infinity"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def text(value: Any, **how: Any) -> str:
    """The JSON text of a value that consists of mappings, sequences, strings, numbers, bools and None."""
    return json.dumps(_plain(value), allow_nan=False, **how)


def _plain(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
