"""Wrappers around a plan's launcher, which environment variables enable. The variables are read when a plan is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from opfacade import env, telemetry
from opfacade.base import notices
from opfacade.errors import SettingWarning
from opfacade.observe import apilog
from opfacade.telemetry import file as telemetry_file
from opfacade.telemetry import latency as telemetry_latency
from opfacade.telemetry import nvtx as telemetry_nvtx

if TYPE_CHECKING:
    import torch

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.core.sku import KernelSku

_told = False


def launcher(make: Callable[[], Launcher], descriptor: Descriptor[Any], sku: KernelSku) -> Launcher:
    """The launcher of `make`, reloaded when its sources change (OPFACADE_JIT_RELOAD), timed (OPFACADE_TELEMETRY_SAMPLE), marked
    (OPFACADE_NVTX) and logged (OPFACADE_LOG)."""
    _tell_of_unknown_names()
    make = partial(_counted, make, sku) if sku.backend == "cuda" else make
    launch = _Followed(make) if env.jit_reload() and sku.backend == "cuda" else make()
    telemetry_file.start()
    return apilog.wrap(telemetry_nvtx.wrap(telemetry_latency.wrap(launch, sku), sku), descriptor, sku)


def _counted(make: Callable[[], Launcher], sku: KernelSku) -> Launcher:
    """The launcher from `make`. A load without a build counts as a hit of the kernel cache."""
    stats = telemetry.stats(sku.id)
    before = stats.builds.value()
    launch = make()
    if stats.builds.value() == before:
        stats.cache_hits.add()
    return launch


@dataclass(slots=True)
class _Followed:
    """A launcher that is rebuilt when a kernel source file has changed; each call runs `stat` on every file."""

    make: Callable[[], Launcher]
    seen: int = 0
    launch: Launcher = field(init=False)

    def __post_init__(self) -> None:
        self._renew()

    def __call__(self, args: Args, workspace: torch.Tensor | None) -> None:
        from opfacade.jit import reload

        if reload.signature() != self.seen:
            self._renew()
        self.launch(args, workspace)

    def _renew(self) -> None:
        from opfacade import jit
        from opfacade.jit import reload

        # The signature is taken before the build, so the next call notices an edit during the build.
        self.seen = reload.signature()
        jit.forget()
        self.launch = self.make()


def _tell_of_unknown_names() -> None:
    global _told
    if _told:
        return
    _told = True
    for name, nearest in env.unknown().items():
        meant = f" Did you mean {nearest}?" if nearest else " `opfacade env` lists all."
        notices.warn(f"{name} is set, and opfacade reads no such variable.{meant}", SettingWarning, 4)
