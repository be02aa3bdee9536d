"""How much a run checks: off < metadata < indices < full, read from OPFACADE_VALIDATE when a plan is made.

metadata looks at shapes, strides and addresses, and is the plan's own. indices also looks at the values of index tensors:
on a GPU by a kernel in front of each run, whose findings the next host call raises. full reads them, and all valid
inputs, on the host before anything is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from opfacade import env

if TYPE_CHECKING:
    from opfacade.descriptor import Descriptor
    from opfacade.registry import Launcher
    from opfacade.sku import KernelSku


class Guard(Protocol):
    """What stands around the launches of one plan."""

    def wrap(self, launch: Launcher) -> Launcher: ...

    def check(self) -> None:
        """Raise what was found since the last call."""


def level() -> str:
    """The level that OPFACADE_VALIDATE names."""
    return env.validate()


def guard(level: str, descriptor: Descriptor[Any], sku: KernelSku, allow_build: bool) -> Guard | None:
    """The guard of a plan; None where its launcher needs none: the reference backend reads index tensors itself."""
    if level == "full":
        from opfacade.validation.full import FullGuard

        return FullGuard(descriptor)
    if level == "indices" and sku.backend == "cuda":
        from opfacade.validation.device import DeviceGuard
        from opfacade.validation.rules import Tables

        tables = Tables.of(descriptor)
        return None if tables is None else DeviceGuard(tables, sku, allow_build)
    return None
