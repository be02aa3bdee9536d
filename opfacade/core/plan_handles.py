"""Numbers for plans, where only a number can be passed: an argument of torch.ops, a field of another language.

A number is a digest of what the plan is: descriptor, preference, target and SKU. So it is the same in every process, and a
graph that was exported with it never runs another plan. It does not keep the plan alive.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from functools import lru_cache
from typing import Any, NamedTuple

from opfacade.core import opaque
from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import PlanStateError

_LEAST = 2  # torch.compile makes a graph of its own for a 0 and for a 1
_MOST = 2**62  # SymInts of torch are i64
_SHOWN = 5
_plans: dict[int, tuple[weakref.ref[Any], ...]] = {}  # equal plans have one number


class _Text(NamedTuple):
    """The canonical JSON of a kind of descriptors, without the values of their sizes: pieces[i] precedes the size names[i]."""

    names: tuple[str, ...]
    pieces: tuple[str, ...]

    def of(self, descriptor: Descriptor[Any]) -> str:
        fields = descriptor.__dict__
        values = [str(list(size) if type(size) is tuple else size) for size in [fields[name] for name in self.names]]
        return "".join([part for pair in zip(self.pieces, values, strict=False) for part in pair]) + self.pieces[-1]


_texts: AnswerCache[_Text] = AnswerCache()


def give(plan: object, descriptor: Descriptor[Any], preference: Preference, target: Target, sku_id: str) -> int:
    """The number of a new plan of these facts."""
    opaque.apply()
    facts = f"{text_of(descriptor)}\n{_request(preference, target)}\n{sku_id}"
    handle = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:8]) % (_MOST - _LEAST) + _LEAST
    add(handle, plan)
    return handle


def text_of(descriptor: Descriptor[Any]) -> str:
    """The canonical JSON of a descriptor, with spaces in its shape. A new size does not write the other fields again."""
    fields, kind = descriptor.__dict__, type(descriptor)
    sizes = _size_fields(kind)
    if any(type(fields[name]) is not (tuple if name == "shape" else int) for name in sizes):
        return descriptor.canonical_json()
    others = tuple([value for name, value in fields.items() if name not in sizes])
    shape = len(fields["shape"]) if "shape" in sizes else 0
    return _texts.get((kind, shape, others), lambda: _text(descriptor, sizes)).of(descriptor)


@lru_cache(maxsize=256)
def _size_fields(kind: type[Descriptor[Any]]) -> frozenset[str]:
    """Fields whose values are written as they are. A field that is absent from the JSON at its default is not among them."""
    return ((kind.sizes | {"shape"}) & kind.model_fields.keys()) - kind.later


def _text(descriptor: Descriptor[Any], sizes: frozenset[str]) -> _Text:
    values = descriptor.model_dump(mode="json")
    names, pieces, text = [], [], "{"
    for name in sorted(values):
        text += f"{json.dumps(name)}:"
        if name in sizes:
            names.append(name)
            pieces.append(text)
            text = ""
        else:
            text += json.dumps(values[name], sort_keys=True, separators=(",", ":"))
        text += ","
    return _Text(tuple(names), (*pieces, f"{text[:-1]}}}"))


def add(handle: int, plan: object) -> None:
    """Let a number that another process gave name this plan too."""

    def forget(dead: weakref.ref[Any]) -> None:
        left = tuple(ref for ref in _plans.get(handle, ()) if ref is not dead)
        if left:
            _plans[handle] = left
        else:
            _plans.pop(handle, None)

    _plans[handle] = (*_plans.get(handle, ()), weakref.ref(plan, forget))


@lru_cache(maxsize=64)
def _request(preference: Preference, target: Target) -> str:
    return f"{preference.canonical_json()}\n{target}"


def plan_of(handle: int) -> Any:
    """The plan of a number. Raises PlanStateError where it is gone or was never selected here, with the names of those that
    are here."""
    for ref in _plans.get(handle, ()):
        plan = ref()
        if plan is not None:
            return plan
    hint = "A handle does not keep its plan: hold the plan as long as the handle is used. " + (
        "A program that another process exported needs its plans here: opfacade.torch_ops.exported.load selects them."
    )
    message = f"plan_of: handle expected that of a plan that is alive, {_named()}, got {int(handle)}. {hint} [OPF-R020]"
    raise PlanStateError(message, code="OPF-R020", stage="run", hint=hint)


def _named() -> str:
    """The handles of the newest plans that are alive, with their SKUs."""
    alive = [(handle, plan) for handle, refs in [*_plans.items()] for ref in refs if (plan := ref()) is not None]
    shown = ", ".join(f"{handle} ({plan.sku.id})" for handle, plan in alive[-_SHOWN:])
    more = f", and {len(alive) - _SHOWN} more" if len(alive) > _SHOWN else ""
    return f"as {shown}{more}" if alive else "of which there is none"
