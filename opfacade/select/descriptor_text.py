"""The type that a descriptor's JSON names, or an error that describes what the text contains instead."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from opfacade.base import strict_json
from opfacade.base.did_you_mean import did_you_mean
from opfacade.base.short_repr import shown
from opfacade.core.model import not_strict
from opfacade.errors import Issue, OpfacadeError, from_issues

T = TypeVar("T")
_MANY = "`opfacade warmup`, `verify`, `bench`, `tune` and `manifest` take many."
_A_PATH = re.compile(r"[^\s{}\[\]]+\.jsonl?")


def type_in(text: str | bytes, types: Mapping[str, T]) -> T:
    """The type that the field `op` of a JSON object names. Raises DescriptorError for any other text."""
    try:
        found = strict_json.loads(text)
    except (ValueError, TypeError) as error:
        raise _no_json(text, error) from error
    if isinstance(found, list) and len(found) > 1:
        raise _error("OPF-D021", "text", "one descriptor", f"an array of {len(found)}", _MANY)
    if not isinstance(found, dict):
        raise _error("OPF-D020", "text", "a JSON object with the field op", shown(found), _known(types))
    if "op" not in found:
        hint = 'This is a line of a recording: take its "descriptor".' if "descriptor" in found else _known(types)
        raise _error("OPF-D020", "op", "the name of an operator", f"{', '.join(found)[:80] or 'no field'}", hint)
    op = found["op"]
    if not isinstance(op, str) or op not in types:
        hint = did_you_mean(op, types) if isinstance(op, str) else ""
        raise _error("OPF-D020", "op", f"one of {', '.join(sorted(types))}", shown(op), hint)
    return types[op]


def _known(types: Mapping[str, Any]) -> str:
    return f"op is one of {', '.join(sorted(types))}."


def _no_json(text: object, error: Exception) -> OpfacadeError:
    """The error for several JSON texts, a file name, or invalid JSON, with the position of the error."""
    if not isinstance(text, (str, bytes, bytearray)):
        return _error("OPF-D006", "text", "a str or bytes of JSON", shown(text))
    plain = text if isinstance(text, str) else bytes(text).decode(errors="replace")
    lines = [line for line in plain.splitlines() if line.strip()]
    if len(lines) > 1 and all(map(_is_object, lines)):
        return _error("OPF-D021", "text", "one descriptor", f"{len(lines)} lines with one each", _MANY)
    if _A_PATH.fullmatch(plain.strip()):
        return _error("OPF-D006", "text", "strict JSON", shown(plain), "That is the name of a file: pass what is in it.")
    if not isinstance(error, json.JSONDecodeError):
        return not_strict("load_descriptor", ValueError(str(error)))
    where = f"{shown(plain.strip())}: {error.msg} (line {error.lineno}, column {error.colno})"
    return _error("OPF-D006", "text", "strict JSON", where)


def _is_object(line: str) -> bool:
    try:
        return isinstance(strict_json.loads(line), dict)
    except ValueError:
        return False


def _error(code: str, field: str, expected: str, got: str, hint: str = "") -> OpfacadeError:
    return from_issues("load_descriptor", "", [Issue(code, field, expected, got, hint, kind="DescriptorError")])
