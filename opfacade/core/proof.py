"""Proof: a snapshot of the validated values, compared by identity, because True equals 1 but is another value."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

ATOMS = frozenset({bool, int, float, str, type(None)})  # values without parts


class Proof(NamedTuple):
    """Snapshot of the fields of a validated model and of the models in it."""

    kind: type[object]
    fields: dict[str, Any]
    inner: list[tuple[object, dict[str, Any]]]

    def holds_for(self, model: object) -> bool:
        if type(model) is not self.kind or not _identical(self.fields, model.__dict__):
            return False
        changed = [part for part, fields in self.inner if not _identical(fields, part.__dict__)]  # faster than all()
        return not changed


def proof_of(validated: object, kind: type[object]) -> Proof:
    """kind: the base class of models. The snapshot does not contain the model itself."""
    fields = validated.__dict__.copy()
    inner = [(part, part.__dict__.copy()) for part in _models_in(fields.values(), kind)]
    return Proof(type(validated), fields, inner)


def _identical(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(map(operator.is_, one.values(), other.values()))


def _models_in(values: Iterable[object], kind: type[object]) -> list[object]:
    """The models among `values`, recursively."""
    found: list[object] = []
    for value in [value for value in values if type(value) not in ATOMS]:
        if isinstance(value, tuple):
            found += _models_in(value, kind)
        elif isinstance(value, kind):
            found += (value, *_models_in(value.__dict__.values(), kind))
    return found
