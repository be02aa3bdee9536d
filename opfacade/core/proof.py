"""Proof: a snapshot of the validated values, compared by identity, because True equals 1 but is another value."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

ATOMS = frozenset({bool, int, float, str, type(None)})  # values without parts


class Proof(NamedTuple):
    """Snapshot of the fields of a validated model and of the models in it: names and values."""

    kind: type[object]
    names: list[str]
    values: list[Any]
    inner: list[tuple[object, list[str], list[Any]]]

    def holds_for(self, model: object) -> bool:
        fields = model.__dict__
        if type(model) is not self.kind or [*fields] != self.names or not all(map(operator.is_, self.values, fields.values())):
            return False
        for part, names, values in self.inner:
            fields = part.__dict__
            if [*fields] != names or not all(map(operator.is_, values, fields.values())):
                return False
        return True


def proof_of(validated: object, kind: type[object]) -> Proof:
    """kind: the base class of models. The snapshot does not contain the model itself."""
    fields = validated.__dict__
    inner = [(part, [*part.__dict__], [*part.__dict__.values()]) for part in _models_in(fields.values(), kind)]
    return Proof(type(validated), [*fields], [*fields.values()], inner)


def _models_in(values: Iterable[object], kind: type[object]) -> list[object]:
    """The models among `values`, recursively."""
    found: list[object] = []
    for value in [value for value in values if type(value) not in ATOMS]:
        if isinstance(value, tuple):
            found += _models_in(value, kind)
        elif isinstance(value, kind):
            found += (value, *_models_in(value.__dict__.values(), kind))
    return found
