"""The operations of the language as a Markdown table: words, types, types in variants of attention, exactness, and the result
for NaN.

The table is derived from the language. Results for NaN are computed, with several values of the other argument.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any

from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.expression import apply, value
from opfacade.programs.operations import OPERATIONS, Operation
from opfacade.programs.types import FLOATS, INTEGERS, NUMBERS, TYPES
from opfacade.programs.words import ALIASES, OPERATION

HEAD = "| words | of | gives | in variants of | exact | with NaN |\n|---|---|---|---|---|---|"
_SETS = {TYPES: "any type", NUMBERS: "numbers", FLOATS: "floats", INTEGERS: "integers", ("bool", *INTEGERS): "bool, integers"}
_OTHERS = (-math.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, math.inf)
_TOLD = {
    "pow": "NaN, but 1 for `pow(1, y)` and `pow(x, 0)`",
    "hypot": "NaN, but infinity beside an infinity",
    "copysign": "NaN of the first; of the second its sign alone",
    "select": "as any other value",
    "signbit": "the sign of the NaN",
    "as_bits": "its bits",
}


Variants = Mapping[str, Any]  # the signatures of operations in variants of attention


def table(variants: Variants) -> Iterator[str]:
    """The lines of the table. Operations with the same cells share a row."""
    yield HEAD
    rows = [(facts(op, variants), op) for op in OPERATIONS]
    order = {facts: at for at, (facts, _) in reversed(list(enumerate(rows)))}
    for cells, found in groupby(sorted(rows, key=lambda row: order[row[0]]), key=lambda row: row[0]):
        yield f"| {', '.join(map(_shown, (op for _, op in found)))} | {' | '.join(cells)} |"


def facts(op: str, variants: Variants) -> tuple[str, ...]:
    """The cells of an operation, without its word."""
    known = OPERATIONS[op]
    return (*_types(op, known), _of_variants(op, variants), "yes" if known.exact else "no", with_nan(op))


def _shown(op: str) -> str:
    word = next(word for word, name in OPERATION.items() if name == op and word not in ALIASES)
    return " or ".join(f"`{name}`" for name in (word, *(alias for alias, of in ALIASES.items() if of == op)))


def _types(op: str, known: Operation) -> tuple[str, str]:
    arguments, results = list(known.signatures), set(known.signatures.values())
    if op in TYPES:
        return "any other type", "the type of its name"
    if op == "select":
        return "bool, and two of any type", "their type"
    kinds = tuple(args[0] for args in arguments)
    own = all(args[0] == gives for args, gives in known.signatures.items())
    told = _SETS.get(kinds, " or ".join(kinds))
    count = {1: "", 2: "two ", 4: "four "}[len(arguments[0])]
    return f"{count}{told}", "their type" if own and len(kinds) > 1 else " or ".join(dict.fromkeys(_rising(results)))


def _rising(types: Collection[Any]) -> list[str]:
    return sorted(types, key=lambda kind: TYPES.index(kind))


def _of_variants(op: str, variants: Variants) -> str:
    here = variants.get(op, {})
    return "any type" if op == "select" else ", ".join(_rising({args[0] for args in here})) or "-"


def with_nan(op: str) -> str:
    """The result of an operation if one of its float arguments is NaN."""
    args = next((args for kind in FLOATS for args in OPERATIONS[op].signatures if kind in args), None)
    if args is None:
        return "-"
    found = {_outcome(op, args, at) for at, kind in enumerate(args) if kind in FLOATS}
    if op in _TOLD:
        return _TOLD[op]
    if found == {"NaN", "the other"}:  # the result is NaN if the first argument is NaN, otherwise the first argument
        return "the first"
    (same,) = found
    return same


def _outcome(op: str, args: tuple[str, ...], at: int) -> str:
    """The result if one argument is NaN, for several values of the others; "" if the result varies."""
    pairs = [(other, _evaluated(op, args, at, other)) for other in _OTHERS]
    if all(isinstance(got, float) and math.isnan(got) for _, got in pairs):
        return "NaN"
    if len(args) > 1 and all(got == other for other, got in pairs):
        return "the other"
    same = {got for _, got in pairs}
    return str(same.pop()).lower() if len(same) == 1 else ""


def _evaluated(op: str, args: tuple[str, ...], at: int, other: float) -> Any:
    import torch

    kinds: Any = args
    leaves = {
        ("input", f"a{i}"): torch.tensor([math.nan if i == at else other if kind in FLOATS else kind == "bool"])
        for i, kind in enumerate(kinds)
    }
    root = apply(op, *(value(f"a{i}", kind) for i, kind in enumerate(kinds)))
    return Evaluation(Values(leaves)).own(root)[0].item()
