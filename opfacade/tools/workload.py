"""A workload: the problems of a real run, as JSON lines. One file feeds warmup, verify, manifest, tune and bench.

A line is a descriptor, or `{"descriptor": ..., "preference": ..., "runs": n, "lengths": {"q": [...], "kv": [...]}}` as
`opfacade.record` writes it, in which all but the descriptor may be left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from opfacade.base import strict_json
from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Count, Model, not_strict
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import DescriptorError
from opfacade.plan import Plan
from opfacade.select.registry import load_descriptor
from opfacade.testing.harness import harness_of

_NO_WISH = Preference()
_Lengths = Annotated[tuple[Count, ...], Field(strict=False)]


class Lengths(Model):
    """q: the number of rows of q (or of new rows) of each request of one call; kv: the number of keys. None if the op has no
    such lengths."""

    q: _Lengths | None = None
    kv: _Lengths | None = None


class _Line(Model):
    descriptor: dict[str, Any]
    preference: dict[str, Any] = Field(default_factory=dict)
    target: str = ""
    sku: str = ""
    selects: Count = 0
    runs: Count = 0
    lengths: Lengths | None = None


@dataclass(frozen=True)
class Work:
    """One problem, the preference of its caller, how often it ran, and the lengths of one of its calls."""

    descriptor: Descriptor[Any]
    preference: Preference = _NO_WISH
    runs: int = 0
    selects: int = 0
    lengths: Lengths | None = None

    def plan(self, prefer: Preference | None = None, target: Target | None = None) -> Plan[Any]:
        return Plan.select(self.descriptor, prefer or self.preference, target)

    def line(self, plan: Plan[Any]) -> str:
        """The JSON line of this work with a plan."""
        facts: dict[str, Any] = {"descriptor": self.descriptor.model_dump(mode="json")}
        facts["preference"] = self.preference.model_dump(mode="json", exclude_defaults=True)
        facts |= {"target": plan.target.arch, "sku": plan.sku.id, "selects": self.selects, "runs": self.runs}
        if self.lengths is not None:
            facts["lengths"] = self.lengths.model_dump(mode="json", exclude_none=True)
        return json.dumps(facts, separators=(",", ":"))


def read(text: str | bytes) -> tuple[Work, ...]:
    """The problems in JSON lines, a JSON array, or one JSON object. DescriptorError names the invalid entry."""
    found = []
    for number, entry in enumerate(_entries(_decoded(text)), 1):
        try:
            found.append(_work(entry))
        except DescriptorError as error:
            error.args = (f"entry {number}: {error}",)
            raise
    return tuple(found)


def _decoded(text: str | bytes) -> str:
    # Bytes that are not valid text are replaced, so that the error names the entry that contains them.
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _entries(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        whole = strict_json.loads(text)
    except json.JSONDecodeError:
        return lines
    except ValueError as error:
        if not _is_json(lines[0]):
            raise not_strict("workload", error) from error
        return lines  # so that the error names the entry that is not strict JSON
    return [json.dumps(entry) for entry in whole] if isinstance(whole, list) else [text]


def _is_json(line: str) -> bool:
    try:
        strict_json.loads(line)
    except json.JSONDecodeError:
        return False
    except ValueError:
        return True
    return True


def _work(entry: str) -> Work:
    try:
        wrapped = "descriptor" in strict_json.loads(entry)
    except (ValueError, TypeError):
        wrapped = False
    if not wrapped:
        return Work(load_descriptor(entry))
    line = _Line.model_validate_json(entry)
    preference = Preference.model_validate_json(json.dumps(line.preference))
    return Work(load_descriptor(json.dumps(line.descriptor)), preference, line.runs, line.selects, line.lengths)


def lengths_of(work: Work) -> Lengths:
    """The recorded lengths; otherwise the lengths of a full batch, in which all requests have equal shares of the bounds."""
    if work.lengths is not None:
        return work.lengths
    found = harness_of(work.descriptor).lengths(work.descriptor)
    return Lengths(q=found.q, kv=found.kv)
