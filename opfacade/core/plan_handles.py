"""Integer handles of plans, for interfaces that accept only numbers: an argument of torch.ops, or a field in another language.

A handle is a digest of the plan's descriptor, preference, target and SKU. So it is the same in every process, and a graph
exported with it never runs another plan. A handle does not keep its plan alive.
"""

from __future__ import annotations

import hashlib
import json
import operator
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from opfacade.core import opaque
from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import DEFAULT, Preference
from opfacade.core.target import Target
from opfacade.errors import PlanStateError

_LEAST = 2  # torch.compile specializes graphs on 0 and on 1
_MOST = 2**62  # torch's SymInts are i64
_SHOWN = 5
_NUMBERS = frozenset({int})
_WRITTEN = frozenset({int, tuple, type(None)})  # types of size fields: a number, a shape, or a bound that is None


class _Weak(weakref.ref[Any]):
    """A reference to a plan, which leaves `_plans` with it."""

    __slots__ = ("handle",)
    handle: int


_plans: dict[int, tuple[_Weak, ...]] = {}  # equal plans have the same handle
_texts: AnswerCache[str] = AnswerCache()


def give(plan: object, descriptor: Descriptor[Any], preference: Preference, target: Target, sku_id: str) -> int:
    """The handle of a new plan with these facts."""
    opaque.apply()
    request = _default_request(target) if preference is DEFAULT else _request(preference, target)
    facts = f"{text_of(descriptor)}\n{request}\n{sku_id}"
    handle = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:8]) % (_MOST - _LEAST) + _LEAST
    add(handle, plan)
    return handle


def text_of(descriptor: Descriptor[Any]) -> str:
    """The canonical JSON of a descriptor, with spaces in its shape. For a new size, only the size fields are formatted
    again."""
    fields, split, same = descriptor.__dict__, _split_fields(type(descriptor)), descriptor.specialization
    sizes = split.sizes_of(fields)
    if not _NUMBERS.issuperset(map(type, sizes)):
        if not _WRITTEN.issuperset(map(type, sizes)):
            return descriptor.canonical_json()
        sizes = tuple(["null" if size is None else list(size) if type(size) is tuple else size for size in sizes])
    if same.text is None:
        flat = split.own_alone and descriptor.without_sizes() == split.others_of(fields)
        same.text = _template(descriptor, split.names) if flat else ""
    template = same.text or _texts.get((type(descriptor), split.others_of(fields)), lambda: _template(descriptor, split.names))
    return template % sizes


class _Split(NamedTuple):
    """names: sorted names of the size fields, which are written as they are; sizes_of, others_of: getters of their values and
    of all other fields. own_alone: whether the size fields are exactly `sizes`. The others include a size field that is absent
    from the JSON at its default."""

    names: Sequence[str]
    sizes_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    others_of: Callable[[dict[str, Any]], Any]
    own_alone: bool


@lru_cache(maxsize=256)
def _split_fields(kind: type[Descriptor[Any]]) -> _Split:
    sizes = ((kind.sizes | {"shape"}) & kind.model_fields.keys()) - kind.later
    others = operator.itemgetter(*[name for name in kind.model_fields if name not in sizes])
    return _Split(sorted(sizes), _tuple_of(sorted(sizes)), others, sizes == kind.sizes)


def _tuple_of(names: Sequence[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.itemgetter(*names)
    return (lambda fields: (fields[names[0]],)) if names else lambda fields: ()


def _template(descriptor: Descriptor[Any], sizes: Sequence[str]) -> str:
    """The JSON with %s for each size."""
    values = descriptor.model_dump(mode="json")
    parts = [f"{json.dumps(name)}:{'%s' if name in sizes else _escaped(values[name])}" for name in sorted(values)]
    return f"{{{','.join(parts)}}}"


def _escaped(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).replace("%", "%%")


def add(handle: int, plan: object) -> None:
    """Registers a handle from another process for this plan."""
    made = _Weak(plan, _forget)
    made.handle = handle
    _plans[handle] = (*_plans[handle], made) if handle in _plans else (made,)


def _forget(dead: _Weak) -> None:
    left = tuple(ref for ref in _plans.get(dead.handle, ()) if ref is not dead)
    if left:
        _plans[dead.handle] = left
    else:
        _plans.pop(dead.handle, None)


@lru_cache(maxsize=64)
def _default_request(target: Target) -> str:
    """A lookup that does not hash the preference, which would dominate its time."""
    return _request(DEFAULT, target)


@lru_cache(maxsize=64)
def _request(preference: Preference, target: Target) -> str:
    return f"{preference.canonical_json()}\n{target}"


def plan_of(handle: int) -> Any:
    """The plan of a handle. Raises PlanStateError, which lists the known plans, if the plan is gone or was never selected
    here."""
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
    """The handles and SKUs of the newest plans that are alive."""
    alive = [(handle, plan) for handle, refs in [*_plans.items()] for ref in refs if (plan := ref()) is not None]
    shown = ", ".join(f"{handle} ({plan.sku.id})" for handle, plan in alive[-_SHOWN:])
    more = f", and {len(alive) - _SHOWN} more" if len(alive) > _SHOWN else ""
    return f"as {shown}{more}" if alive else "of which there is none"
