"""Integer handles of plans, for interfaces that accept only numbers: an argument of torch.ops, or a field in another language.

A handle follows from the plan's descriptor, preference, target and SKU, as a digest does. So it is the same in every process,
and a graph exported with it never runs another plan. A handle does not keep its plan alive.
"""

from __future__ import annotations

import hashlib
import json
import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import Descriptor, SplitFields
from opfacade.core.model import Model
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import PlanStateError

_LEAST = 2  # torch.compile specializes graphs on 0 and on 1
_MOST = 2**62  # torch's SymInts are i64
_SHOWN = 5
_MOST_SIZES = 16
_MOST_TEMPLATES = 256
_INTS = frozenset({int})
_NUMBERS = frozenset({int, float})
_WRITTEN = _NUMBERS | {tuple, type(None)}  # types of size fields: a number, a shape, or a bound that is None


class _Weak(weakref.ref[Any]):
    """A reference to a plan, which leaves `_plans` with it."""

    __slots__ = ("handle",)
    handle: int


_plans: dict[int, tuple[_Weak, ...]] = {}  # equal plans have the same handle
_texts: AnswerCache[str] = AnswerCache()


class Handles:
    """The handles of plans with one preference, target and SKU."""

    __slots__ = ("_factors", "_facts")

    def __init__(self, preference: Preference, target: Target, sku_id: str) -> None:
        self._facts = f"{preference.canonical_json()}\n{target}\n{sku_id}"
        self._factors: dict[str, tuple[int, ...]] = {}  # by the template of the descriptor's text

    def give(self, plan: object, descriptor: Descriptor[Any]) -> int:
        """The handle of a new plan."""
        template, sizes = text_of(descriptor)
        factors = self._factors.get(template)
        if factors is None:
            if len(self._factors) >= _MOST_TEMPLATES:
                self._factors.clear()
            factors = self._factors[template] = _factors(f"{template}\n{self._facts}")
        numbers = sizes if _INTS.issuperset(map(type, sizes)) else _numbers(sizes)
        if len(numbers) >= len(factors):
            numbers, factors = (), _factors(f"{template % sizes}\n{self._facts}")
        total: int = factors[-1] + sum(map(operator.mul, numbers, factors))
        handle = total % (_MOST - _LEAST) + _LEAST
        add(handle, plan)
        return handle


def _numbers(sizes: tuple[object, ...]) -> tuple[int, ...]:
    """The sizes of `text_of` as numbers, different ones for different sizes: a shape follows its length, and a bound that is
    None is -1."""
    found: list[int] = []
    for size in sizes:
        found += [len(size), *size] if isinstance(size, list) else [size if isinstance(size, int) else -1]
    return tuple(found)


def _factors(facts: str) -> tuple[int, ...]:
    """Numbers of 64 bits that follow from everything but sizes: a factor for each size, and a summand. So plans that differ in
    anything have different handles, except with a probability of about 2^-62, as with a digest."""
    digest = hashlib.shake_256(facts.encode()).digest(8 * _MOST_SIZES)
    return tuple([int.from_bytes(digest[at : at + 8], "big") for at in range(0, len(digest), 8)])


def text_of(descriptor: Descriptor[Any]) -> tuple[str, tuple[object, ...]]:
    """The canonical JSON of a descriptor, with spaces in its shape: a template, which is cached, and the sizes in it."""
    fields, same = descriptor.__dict__, descriptor.specialization
    split = same.split
    if split is None:
        split = same.split = _split_fields(type(descriptor))
    sizes = split.sizes_of(fields)
    if not _NUMBERS.issuperset(map(type, sizes)):
        if not _WRITTEN.issuperset(map(type, sizes)):
            return descriptor.canonical_json().replace("%", "%%"), ()
        sizes = tuple(["null" if size is None else list(size) if type(size) is tuple else size for size in sizes])
    if split.others_of is not None:
        key: Hashable = type(descriptor), split.others_of(fields)
    else:
        if same.text is not None:
            return same.text, sizes
        if same.more_of is None:
            same.more_of = _more_of(descriptor, split.names)
        key = same, same.more_of(fields)
    return _texts.get(key, lambda: _template(descriptor, split.names)), sizes


Values = Callable[[dict[str, Any]], tuple[Any, ...]]


@lru_cache(maxsize=256)
def _split_fields(kind: type[Descriptor[Any]]) -> SplitFields:
    sizes = ((kind.sizes | {"shape"}) & kind.model_fields.keys()) - kind.later
    others = None if sizes <= kind.sizes else _tuple_of([name for name in kind.model_fields if name not in sizes])
    return SplitFields(sorted(sizes), _tuple_of(sorted(sizes)), others)


def _more_of(descriptor: Descriptor[Any], sizes: Sequence[str]) -> Values:
    """A getter of the fields that neither the specialization key nor `sizes` determine: sizes that are absent from the JSON at
    their default, and models with sizes. Without them, the key has the text."""
    late = [name for name in descriptor.sizes if name not in sizes]
    inner = [name for name, value in descriptor.__dict__.items() if isinstance(value, Model) and value.sizes]
    if not late and not inner:
        descriptor.specialization.text = _template(descriptor, sizes)
    return _tuple_of([*late, *inner])


def _tuple_of(names: Sequence[str]) -> Values:
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
    left = tuple([ref for ref in _plans.get(dead.handle, ()) if ref is not dead])
    if left:
        _plans[dead.handle] = left
    else:
        _plans.pop(dead.handle, None)


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
