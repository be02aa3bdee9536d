"""Faults of a Python file, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.operators import calls, expressions, statements
from tests.mutation.operators.fault import Change
from tests.mutation.operators.source import Source


def changes(text: str) -> Iterator[Change]:
    source = Source(text)
    for node in ast.walk(source.tree):
        if node not in source.skipped:
            yield from expressions.changes(source, node)
            yield from calls.changes(source, node)
            yield from statements.changes(source, node)
