"""How much a run checks: off < metadata < indices < full, read from OPFACADE_VALIDATE when a plan is created. metadata checks
shapes, strides and addresses. indices also checks the values of index tensors; on a GPU, a kernel does this before each run,
and the next host call raises its findings. full reads index tensors and all valid inputs on the host before anything is
written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Descriptor
    from opfacade.core.sku import KernelSku


class Guard(Protocol):
    """Validation around the launches of one plan."""

    def wrap(self, launch: Launcher) -> Launcher: ...

    def check(self) -> None:
        """Raises the findings since the last call."""


def guard(level: str, descriptor: Descriptor[Any], sku: KernelSku, allow_build: bool) -> Guard | None:
    """The guard of a plan; None if its launcher needs no guard, because the reference backend checks page tables itself."""
    if level == "full":
        from opfacade.validation.full import FullGuard

        return FullGuard(descriptor)
    if level != "indices":
        return None
    found = [*_table_guards(descriptor, sku, allow_build), *_value_guards(descriptor, sku, allow_build)]
    return Guards(found) if len(found) > 1 else found[0] if found else None


def _table_guards(descriptor: Descriptor[Any], sku: KernelSku, allow_build: bool) -> Iterator[Guard]:
    from opfacade.validation.device import DeviceGuard
    from opfacade.validation.rules import tables_of

    tables = tables_of(descriptor)
    if tables is not None and sku.backend == "cuda":
        yield DeviceGuard(tables, sku, allow_build)


def _value_guards(descriptor: Descriptor[Any], sku: KernelSku, allow_build: bool) -> Iterator[Guard]:
    from opfacade.validation.device_values import DeviceValueGuard
    from opfacade.validation.values import ValueGuard, bounded_of

    bounded = bounded_of(descriptor)
    if bounded and sku.backend == "cuda":
        yield DeviceValueGuard(descriptor.op, bounded, sku, allow_build)
    elif bounded:
        yield ValueGuard(descriptor.op, bounded)


class Guards:
    """Several guards of one plan, applied one after another."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = guards

    def wrap(self, launch: Launcher) -> Launcher:
        for one in reversed(self._guards):
            launch = one.wrap(launch)
        return launch

    def check(self) -> None:
        for one in self._guards:
            one.check()
