"""Finds slow code in the chosen kernel if the cache of this machine has its binary. Builds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opfacade import jit
from opfacade.core.descriptor import Descriptor
from opfacade.core.target import Target
from opfacade.errors import CacheError, ToolchainError
from opfacade.jit import cache
from opfacade.jit.spec import JitSpec
from opfacade.select.selection import Option


def slow_code(option: Option | None, descriptor: Descriptor[Any], target: Target) -> tuple[str, ...]:
    """Spills and other slow code of a chosen option, one line each; () if it is not built or has none."""
    if option is None or not option.candidate.compiles:
        return ()
    try:
        return tuple(_found(option.candidate.jit_specs(descriptor, target))) if cache.root().is_dir() else ()
    except (CacheError, ToolchainError):  # `opfacade doctor` reports an unusable cache
        return ()


def _found(specs: Iterable[JitSpec]) -> Iterator[str]:
    for spec in specs:
        yield from map(str, jit.slow_code(spec))
