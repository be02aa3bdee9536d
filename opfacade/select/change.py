"""Explains why two problems run different kernels: the differences of their SKUs, and the fields that cause them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model
from opfacade.core.preference import Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.errors import DescriptorError, Issue, from_issues
from opfacade.select.explanation import Explanation, explain
from opfacade.select.sku_differences import differences


@dataclass(frozen=True)
class Change:
    """Two selections compared.

    fields: every field in which the descriptors differ, as {path: (before, after)}. causes: each field that changes the SKU if
    it alone is changed in the first descriptor; empty if only several together do. facts: the differences between the SKUs.
    newly_refused, newly_accepted: candidates, with the reasons."""

    before: KernelSku | None
    after: KernelSku | None
    fields: Mapping[str, tuple[Any, Any]]
    causes: tuple[str, ...]
    facts: tuple[str, ...]
    newly_refused: Mapping[str, tuple[str, ...]]
    newly_accepted: Mapping[str, tuple[str, ...]]

    @property
    def same(self) -> bool:
        return _id(self.before) == _id(self.after)

    def __str__(self) -> str:
        lines = [f"before {_id(self.before)}", f"after  {_id(self.after)}"]
        lines += ["the same kernel"] if self.same else [f"  {fact}" for fact in self.facts]
        for name, (old, new) in self.fields.items():
            lines.append(f"{'because' if name in self.causes else 'also   '} {name}: {old!r} -> {new!r}")
        lines += [f"{name} is refused now: {'; '.join(why)}" for name, why in self.newly_refused.items()]
        lines += [f"{name} was refused before: {'; '.join(why)}" for name, why in self.newly_accepted.items()]
        return "\n".join(lines)


def explain_change(
    before: Descriptor[Any], after: Descriptor[Any], prefer: Preference | None = None, target: Target | None = None
) -> Change:
    """Explains why `after` runs another kernel than `before` (or the same). Needs no GPU; both must have the same type."""
    if type(before) is not type(after):
        got = f"{type(before).__name__} and {type(after).__name__}"
        raise from_issues(
            "explain_change",
            "select",
            [Issue("OPF-S034", "after", "a descriptor with the type of before", got, kind="ArgumentTypeError")],
        )
    one, two = explain(before, prefer, target), explain(after, prefer, target)
    fields = _differing(_content(before), _content(after))
    was, now = _chosen(one), _chosen(two)
    return Change(
        was,
        now,
        fields,
        () if _id(was) == _id(now) else tuple(name for name in fields if _changes(one, name, fields[name][1])),
        tuple(differences(was.id, now.id)) if was and now else (),
        _only_refused(two, one),
        _only_refused(one, two),
    )


def _id(sku: KernelSku | None) -> str:
    return sku.id if sku else "nothing fits"


def _chosen(explanation: Explanation) -> KernelSku | None:
    return explanation.chosen.sku if explanation.chosen else None


def _content(model: Model) -> dict[str, Any]:
    """Every field, including fields that the JSON omits at their default."""
    values = {name: getattr(model, name) for name in type(model).model_fields}
    return {name: _content(value) if isinstance(value, Model) else value for name, value in values.items()}


def _differing(one: Mapping[str, Any], two: Mapping[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for name in one:
        path = f"{above}{name}"
        if isinstance(one[name], dict) and isinstance(two[name], dict):
            found |= _differing(one[name], two[name], f"{path}.")
        elif one[name] != two[name]:
            found[path] = (one[name], two[name])
    return found


def _changes(before: Explanation, path: str, value: object) -> bool:
    """Whether this one field, set in the first descriptor, changes its SKU."""
    content = _content(before.descriptor)
    place = content
    *above, name = path.split(".")
    for step in above:
        place = place[step]
    place[name] = value
    try:
        descriptor = type(before.descriptor).model_validate(content)
    except DescriptorError:
        return False  # invalid alone, so it can only be a cause together with others
    return _id(_chosen(explain(descriptor, before.preference, before.target))) != _id(_chosen(before))


def _only_refused(here: Explanation, there: Explanation) -> dict[str, tuple[str, ...]]:
    accepted = {option.name for option in there.options if not option.reasons}
    return {o.name: tuple(map(str, o.reasons)) for o in here.options if o.reasons and o.name in accepted}
