"""The ptxas that builds kernels here: old versions miscompile asynchronous products, so kernels decline below a minimum."""

from __future__ import annotations

import mmap
import re
from functools import lru_cache
from pathlib import Path

from opfacade import env
from opfacade.base.installation import install_cuda
from opfacade.core.candidate import COMPILER_TOO_OLD, Reason
from opfacade.errors import ToolchainError

SOUND_WGMMA = (13, 3)
_NOWHERE = Path("/dev/null/memo")  # selection writes no files, so it caches nothing about compilers
_RELEASE = re.compile(rb"V([0-9]+)\.([0-9]+)\.[0-9]+[\0\n]")


@lru_cache(maxsize=1)
def release() -> tuple[int, int] | None:
    """(13, 3) for 13.3.x, from `ptxas --version`; None without a compiler, or if it reports no version."""
    from opfacade.jit import toolchain

    try:
        return _release_of(toolchain.find(_NOWHERE).home / "bin/ptxas")
    except (ToolchainError, OSError, ValueError):
        return None


def _release_of(program: Path) -> tuple[int, int] | None:
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = _RELEASE.search(text)
        return (int(found[1]), int(found[2])) if found else None


def reasons() -> tuple[Reason, ...]:
    """Reasons against kernels with asynchronous products; none without a usable compiler, because a bundle may hold the
    kernel."""
    found = _reasons_against(release())
    return () if not found or env.jit_disabled() else found


@lru_cache(maxsize=4)
def _reasons_against(found: tuple[int, int] | None) -> tuple[Reason, ...]:
    if found is None or found >= SOUND_WGMMA:
        return ()
    hint = f"Install a newer one: {install_cuda()}."
    return (Reason(COMPILER_TOO_OLD, "ptxas", ".".join(map(str, found)), ".".join(map(str, SOUND_WGMMA)) + " and later", hint),)
