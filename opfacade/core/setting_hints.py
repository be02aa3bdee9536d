"""Hints for unexpected and missing operands: the descriptor field that decides whether the operand exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.errors import DescriptorError, Issue

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor, Setting


def hinted(descriptor: Descriptor[Any], issues: list[Issue]) -> list[Issue]:
    """The issues of a call. If one field explains several issues, the first gets the hint how to set it."""
    hints: dict[str, str] = {}
    for issue in issues:
        setting = _setting(descriptor, issue)
        if setting is not None and (hint := _hint(descriptor, issue, setting)):
            hints.setdefault(setting.field, hint)
    return [_with_hint(descriptor, issue, hints) for issue in issues] if hints else issues


def _setting(descriptor: Descriptor[Any], issue: Issue) -> Setting | None:
    """The setting of an operand that is passed but unexpected, or expected but None."""
    absent = issue.code == "OPF-A002" and issue.got == "None"
    return descriptor.args_type.settings.get(issue.argument) if absent or issue.code == "OPF-A001" else None


def _with_hint(descriptor: Descriptor[Any], issue: Issue, hints: dict[str, str]) -> Issue:
    setting = None if issue.hint else _setting(descriptor, issue)
    hint = "" if setting is None else hints.pop(setting.field, "")
    return replace(issue, hint=hint) if hint else issue


def _hint(descriptor: Descriptor[Any], issue: Issue, setting: Setting) -> str:
    field, too_many = setting.field, issue.code == "OPF-A001"
    values = setting.present if too_many else setting.absent
    if not values or not _declares(descriptor, field, values, issue.argument, too_many):
        return ""
    written = f"{field}={' or '.join(map(repr, values))}"
    return f"Set {written} in the descriptor." if too_many else f"{written} in the descriptor leaves it out."


def _declares(descriptor: Descriptor[Any], field: str, values: Sequence[object], operand: str, wanted: bool) -> bool:
    """Whether the descriptor stays valid with the first of the values, and then has the operand if `wanted`, or lacks it."""
    if field not in type(descriptor).model_fields:
        return False
    try:
        changed = type(descriptor).model_validate(descriptor.__dict__ | {field: values[0]})
    except DescriptorError:
        return False
    return (operand in operands_of(changed)) == wanted
