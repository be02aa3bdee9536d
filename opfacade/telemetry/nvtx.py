"""NVTX ranges named by SKU, so that a profile shows which kernel of this library a launch belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade import env
from opfacade.base import notices
from opfacade.errors import SettingWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from opfacade.telemetry.protocols import Identified

    Launcher = Callable[[Any, Any], None]


def wrap(launch: Launcher, sku: Identified) -> Launcher:
    """A launcher that puts a range around `launch` if OPFACADE_NVTX=1 and torch has NVTX; otherwise `launch` itself."""
    if not env.nvtx():
        return launch
    from torch.cuda import nvtx

    try:
        nvtx.range_push("opfacade")  # type: ignore[no-untyped-call]
        nvtx.range_pop()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        notices.warn(f"OPFACADE_NVTX=1 has no effect: {error}", SettingWarning, 2)
        return launch
    return _ranged(launch, sku.id, nvtx.range_push, nvtx.range_pop)


def _ranged(launch: Launcher, name: str, push: Callable[[str], Any], pop: Callable[[], Any]) -> Launcher:
    def ranged(args: object, workspace: object) -> None:
        push(name)
        try:
            launch(args, workspace)
        finally:
            pop()

    return ranged
