"""Errors of functions, in units in the last place of their type.

DEVICE has the maximum errors that the CUDA programming guide documents for f32 and f64, relative to the correctly rounded
result, which is itself up to half a unit from the real value (ROUNDED). A SKU has the constant `ulp.<function>`: the largest
error over all 2^32 inputs if `measured.json` has it for the SKU's architecture, but at most the documented error; otherwise the
documented error. `ulp64.<function>` is the largest error over at least 10^7 random arguments plus a MARGIN, because a sample
may miss the worst case, rounded up to a whole number. `python -m bench.functions` writes that record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from opfacade.programs.expression import Node
from opfacade.programs.operations import FUNCTIONS

DEVICE: dict[str, tuple[float, float]] = {
    "exp": (2, 1), "exp2": (2, 1), "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1),
    "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2), "sinh": (3, 2), "cosh": (2, 1),
    "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2), "erf": (2, 2), "erfc": (4, 5), "rsqrt": (2, 1),
    "cbrt": (1, 1), "lgamma": (6, 4), "pow": (4, 2), "atan2": (3, 2), "hypot": (3, 2),
    "erfinv": (2, 5), "erfcx": (4, 4), "ndtri": (5, 8), "bessel_i0": (6, 6), "bessel_i1": (6, 6), "bessel_j0": (9, 7),
    "bessel_j1": (9, 7), "bessel_y0": (9, 7), "bessel_y1": (9, 7),
}  # fmt: skip
ROUNDED = 0.5
# Additional absolute errors for arguments of 8 or more, where the functions have zeros.
ABSOLUTE: dict[str, tuple[float, float]] = dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"), (2.2e-6, 5e-12))
# lgamma is only bounded outside of this interval.
LGAMMA_OUTSIDE = {"f32": (-10.001, -2.264), "f64": (-23.0001, -2.2637)}
# Bounds of the approximate instructions, which exist only for f32. exp is exp2 of one rounded product with log2(e), whose error
# is 2^-17 for exponents near 128; a quotient is a product with a reciprocal; tanh is a polynomial near 0.
APPROXIMATE: dict[str, float] = {"exp": 64, "exp2": 2, "tanh": 8, "rsqrt": 2, "div": 3, "sqrt": 3}


FINEST = 64  # a measured error is rounded up to a multiple of 1 / FINEST


@lru_cache(maxsize=1)
def measured() -> tuple[int, Mapping[str, float]]:
    """The architecture of the record (90 for sm_90), and the largest error of each f32 function that was run over all inputs; 0
    and {} without a record."""
    place = Path(__file__).with_name("measured.json")
    if not place.exists():
        return 0, {}
    record = json.loads(place.read_text())
    errors = {row["function"]: float(row["ulps"]) for row in record["rows"] if row["dtype"] == "f32" and row["inputs"] == 2**32}
    return int(record["machine"]["capability"].replace(".", "")), errors


FEWEST = 10**7  # minimum number of arguments in a measurement of an f64 function
MARGIN = 0.25  # units above the largest error of a sample


@lru_cache(maxsize=1)
def measured_f64() -> tuple[int, Mapping[str, float]]:
    """Like `measured`, for the f64 functions that were compared with mpmath on enough arguments."""
    place = Path(__file__).with_name("measured.json")
    record = json.loads(place.read_text()).get("f64") if place.exists() else None
    if record is None:
        return 0, {}
    errors = {row["function"]: float(row["ulps"]) for row in record["rows"] if row["inputs"] >= FEWEST}
    return int(record["machine"]["capability"].replace(".", "")), errors


def documented(function: str, type: str) -> float:
    """The maximum error of an f32 or f64 function relative to its real value, by CUDA's tables."""
    single, double = DEVICE[function]
    return (single if type == "f32" else double) + ROUNDED


def ulps_of(function: str, type: str, sm_version: int) -> float:
    """The error constant of an f32 or f64 function on an architecture, which is 90 for sm_90 and sm_90a."""
    tried, errors = measured() if type == "f32" else measured_f64()
    if tried != sm_version or function not in errors:
        return documented(function, type)
    found = math.ceil(errors[function] * FINEST) / FINEST if type == "f32" else math.ceil(errors[function] + MARGIN)
    return min(documented(function, type), max(float(found), 1 / FINEST))


def functions_in(nodes: Iterable[Node], type: str) -> list[str]:
    """The functions of one float type that the nodes use, sorted."""
    return sorted({node.op for node in nodes if node.op in FUNCTIONS and node.type == type})
