"""Checks of `verify` over every input of a small domain, such as all values of a 16-bit float."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opfacade.testing.harness import harness_for
from opfacade.testing.subject import Subject


def proven(op: str, backend: str, device: str, heavy: bool, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row for each domain that the op's harness defines. heavy: also the domains that take minutes on a GPU."""
    for found in harness_for(op).exhaustive(lambda descriptor: Subject(descriptor, backend, device), heavy):
        facts = found._asdict()
        row = {"op": op, **facts, "ok": not found.wrong}
        say(f"{'ok' if row['ok'] else 'FAILED':7}" + " ".join(f"{name}={value}" for name, value in facts.items()))
        yield row
