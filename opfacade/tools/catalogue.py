"""Catalogue as plain values: candidates over the EXAMPLES, environment variables, JSON schemas of descriptors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from opfacade import env
from opfacade.base.did_you_mean import did_you_mean
from opfacade.base.short_repr import shown
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.errors import Issue, from_issues
from opfacade.select.explanation import explain
from opfacade.select.pins import NO_PINS
from opfacade.select.registry import descriptor_types, examples
from opfacade.select.selection import Option


@dataclass(frozen=True, slots=True)
class SkuRow:
    """One candidate of one op: the number of EXAMPLES that it accepts, its guarantees there, and the reasons for refusing the
    others."""

    op: str
    descriptor: str
    backend: str
    impl: str
    accepted: int
    examples: int
    error_models: tuple[str, ...]
    promises: tuple[str, ...]
    refusals: tuple[str, ...]
    skus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: name, current value, purpose, and the source of the value."""

    name: str
    value: str
    doc: str
    origin: str  # "environment" or "default"


def candidates(target: Target) -> tuple[SkuRow, ...]:
    """Every implementation of every op, tried on the op's EXAMPLES for a target.

    Candidates with the same implementation share a row, which accepts an example if one of them does.
    """
    found: dict[tuple[str, str, str], tuple[str, list[Option]]] = {}
    for example in examples():
        tried: dict[tuple[str, str, str], Option] = {}
        for option in explain(example, target=target, pins=NO_PINS).options:
            key = (example.op, option.candidate.backend, option.candidate.impl)
            if key not in tried or tried[key].sku is None:
                tried[key] = option
        for key, option in tried.items():
            found.setdefault(key, (type(example).__name__, []))[1].append(option)
    return tuple(_row(*key, *value) for key, value in sorted(found.items()))


def _row(op: str, backend: str, impl: str, descriptor: str, options: list[Option]) -> SkuRow:
    skus = [option.sku for option in options if option.sku is not None]
    return SkuRow(
        op=op,
        descriptor=descriptor,
        backend=backend,
        impl=impl,
        accepted=len(skus),
        examples=len(options),
        error_models=_distinct(sku.precision_guarantee.error_model.id for sku in skus),
        promises=_kept_by_all(skus),
        refusals=_distinct(str(reason) for option in options for reason in option.reasons),
        skus=_distinct(sku.id for sku in skus),
    )


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


def _kept_by_all(skus: list[KernelSku]) -> tuple[str, ...]:
    kept = [promises(sku.precision_guarantee) for sku in skus]
    return tuple(word for word in kept[0] if all(word in words for words in kept)) if kept else ()


def promises(guarantee: PrecisionGuarantee) -> tuple[str, ...]:
    """The flags of a guarantee in short words; of two flags where one implies the other, only the stronger."""
    words = []
    if guarantee.bit_stable_on_same_hardware:
        words.append("bit-stable")
    elif guarantee.deterministic:
        words.append("deterministic")
    if guarantee.batch_invariant != "none":
        words.append("batch-invariant")
    return tuple(words)


def markdown(rows: Iterable[SkuRow]) -> str:
    """The rows as a Markdown table."""
    lines = ["| op | descriptor | candidate | examples | error model | promises |", "|---|---|---|---|---|---|"]
    for row in rows:
        models, kept = ", ".join(row.error_models) or "-", ", ".join(row.promises) or "-"
        candidate, share = f"{row.backend}/{row.impl}", f"{row.accepted} of {row.examples}"
        lines.append(f"| `{row.op}` | `{row.descriptor}` | `{candidate}` | {share} | {models} | {kept} |")
    return "\n".join(lines)


def environment() -> tuple[Variable, ...]:
    """Every OPFACADE_* variable, from the functions of `opfacade.env` and their docstrings."""
    functions = (value for name, value in vars(env).items() if inspect.isfunction(value) and not name.startswith("_"))
    return tuple(found for function in functions if (found := _variable(function)) is not None)


def _variable(function: Callable[[], Any]) -> Variable | None:
    doc = " ".join((function.__doc__ or "").split())
    match = re.match(r"(OPFACADE_\w+)(?:=(\S+))?: ", doc)
    if match is None:
        return None
    setting = f"set to {match.group(2)}: " if match.group(2) else ""
    origin = "environment" if env.is_set(match.group(1)) else "default"
    return Variable(match.group(1), _in_force(function), setting + doc[match.end() :], origin)


def _in_force(function: Callable[[], Any]) -> str:
    """The value, or the reason why it is invalid. An invalid variable must not stop the listing."""
    try:
        value = function()
    except ValueError as error:
        return f"invalid: {error}"
    return "" if value is None else str(value)


def schema(op: str) -> dict[str, Any]:
    """The JSON schema of an op's descriptor."""
    kind = descriptor_types().get(op)
    if kind is None:
        known = sorted(descriptor_types())
        hint = did_you_mean(op, known) if isinstance(op, str) else ""
        issue = Issue("OPF-D020", "op", f"one of {', '.join(known)}", shown(op), hint, kind="DescriptorError")
        raise from_issues("schema", "", [issue])
    return kind.model_json_schema()
