"""Errors of an adapter: the framework, the argument, expected, actual, and one hint."""

from __future__ import annotations

from typing import NoReturn

from opfacade.errors import Issue, from_issues

UNSUPPORTED = "UnsupportedError"
# Codes with their own error class; all other codes raise UnsupportedError.
KINDS = {"OPF-I002": "ShapeError", "OPF-I003": "DTypeError", "OPF-I004": "ArgumentError", "OPF-I007": "GradNotSupportedError"}


def refuse(
    way: str, code: str, argument: str, *, expected: str, got: object, hint: str = "", part: str = "attention"
) -> NoReturn:
    """Raises the error of `code` for a call of the adapter `way`; `part`: the called part of the adapter.

    OPF-I001: a request that no plan supports (UnsupportedError). OPF-I002, I003: a tensor with an unexpected shape or dtype.
    OPF-I004: an argument is missing. OPF-I005: an unknown version (UnsupportedError). OPF-I006: the framework is not installed
    (UnsupportedError). OPF-I007: a tensor requires a gradient (GradNotSupportedError). OPF-I008: a model that cannot be served
    with continuous batching (UnsupportedError)."""
    issue = Issue(code, argument, expected, str(got), hint, KINDS.get(code, UNSUPPORTED))
    raise from_issues(way, "register" if code in ("OPF-I005", "OPF-I006", "OPF-I008") else part, [issue])


def refuse_draw(way: str, code: str, argument: str, *, expected: str, got: object, hint: str = "") -> NoReturn:
    """The same for a call of the adapter's sampler."""
    refuse(way, code, argument, expected=expected, got=got, hint=hint, part="sampler")
