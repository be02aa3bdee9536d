"""JitSpec: a template, its compile-time constants, and one architecture. Pure data, independent of operators."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.base.short_repr import shown
from opfacade.errors import ArgumentError, ToolchainError

Param = str | int | bool | float | tuple[Any, ...]  # a tuple contains Params

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TEMPLATE = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")
HOST_ARCH = "host"  # arch of a library without device code
_ARCH = re.compile(rf"sm_[0-9]{{2,3}}[af]?|{HOST_ARCH}")
_FLAG = re.compile(r"-[-A-Za-z0-9_=.,+]+")
# A C++ name, possibly qualified: bf16, SplitMode::kAuto. It must not be able to end a token and begin another.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*")
RESERVED = frozenset({"arch"})  # variables that every template has


@dataclass(frozen=True, eq=False)
class JitSpec:
    """One binary to build. Two specs are equal when name, template, arch, flags and *typed* params are: True is not 1.

    `name` is cosmetic (file names and messages), `params` is sorted by name, `flags` go to nvcc in the given order. With arch
    "host" there is a binding and no device source, and `flags` go to the C++ compiler.
    A param that is a tuple is a tree for a template to print. Raises ArgumentError for text that cannot be written safely into
    a source file or a command line.
    """

    name: str
    template: str
    params: tuple[tuple[str, Param], ...]
    arch: str
    flags: tuple[str, ...] = ()
    identity: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _require(_NAME, "name", self.name)
        _require(_TEMPLATE, "template", self.template)
        _require(_ARCH, "arch", self.arch)
        for flag in self.flags:
            _require(_FLAG, "flags", flag)
        for name, value in self.params:
            _check_param(name, value)
        names = [name for name, _ in self.params]
        if names != sorted(set(names)):
            raise ArgumentError(f"JitSpec {self.name}: params expected sorted unique names, got {names}. [OPF-J001]")
        fields = [self.name, self.template, self.params, self.arch, self.flags]
        object.__setattr__(self, "identity", json.dumps(fields, ensure_ascii=True))

    @classmethod
    def of(cls, name: str, template: str, arch: str, flags: tuple[str, ...] = (), **params: Param) -> JitSpec:
        """The spec with `params` given by name, in any order."""
        return cls(name, template, tuple(sorted(params.items())), arch, flags)

    @property
    def has_device_code(self) -> bool:
        return self.arch != HOST_ARCH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JitSpec) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def _require(pattern: re.Pattern[str], what: str, value: object) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ArgumentError(f"JitSpec: {what} expected to match {pattern.pattern}, got {shown(value)}. [OPF-J001]")


def _check_param(name: str, value: object) -> None:
    _require(_NAME, "parameter name", name)
    if name in RESERVED:
        raise ArgumentError(f"JitSpec: parameter name {name} is reserved. [OPF-J001]")
    if isinstance(value, str):
        _require(_WORD, f"parameter {name}", value)
    elif isinstance(value, tuple):
        for part in value:
            _check_param(name, part)
    elif not _is_number(value):
        expected = "str, 64-bit int, bool, finite float or a tuple of such"
        raise ArgumentError(f"JitSpec: parameter {name} expected {expected}, got {shown(value)}. [OPF-J001]")


def _is_number(value: object) -> bool:
    """Whether a number is a finite float or a 64-bit integer, which C++ can represent."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and -(2**63) <= value < 2**64


def source_root() -> Path:
    """The directory that holds kernels/ and csrc/: OPFACADE_SOURCE_ROOT, the wheel's `_src`, or the checkout."""
    package = Path(__file__).resolve().parent.parent
    given = env.source_root()
    candidates = [given] if given else [package / "_src", package.parent]
    for root in candidates:
        if os.path.isdir(root / "csrc"):  # pathlib raises if a name is too long
            return root
    probed = ", ".join(str(root) for root in candidates)
    raise ToolchainError(f"expected kernel sources in one of {probed}, found none. Reinstall opfacade. [OPF-J002]")
