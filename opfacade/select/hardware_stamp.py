"""Identifies the hardware and software for which a measurement is valid. Read once per process."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from importlib.metadata import version

from opfacade import __version__
from opfacade.core.target import Target
from opfacade.errors import OpfacadeError
from opfacade.jit import cache, source_root, toolchain


def hardware(target: Target) -> str:
    """`sm_90a/132/NVIDIA H200`, or `cpu/x86_64/8`; for a GPU of another machine, the part that a target contains:
    `sm_90a/132/`."""
    if target.is_cpu:
        return f"cpu/{platform.machine()}/{os.cpu_count()}"
    return f"{target.arch}/{target.sm_count}/{_device_name() if target == Target.current() else ''}"


def holds_for(measured_on: str, wanted: str) -> bool:
    """Whether hardware matches; without a device name, only architecture and SM count are compared."""
    return measured_on == wanted or (wanted.endswith("/") and measured_on.startswith(wanted))


@lru_cache(maxsize=8)
def toolchain_of(backend: str) -> str:
    """Software that determines a backend's speed: opfacade, its kernels and the compiler for cuda, else opfacade and torch,
    which brings the libraries."""
    if backend != "cuda":
        return f"opfacade {__version__}, torch {version('torch')}"
    return f"opfacade {__version__}, kernels {_kernels()}, nvcc {_nvcc()}"


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def _nvcc() -> str:
    try:
        return ".".join(map(str, toolchain.find(cache.toolchain_memo()).nvcc_release))
    except OpfacadeError:
        return "none"


def _kernels() -> str:
    """A digest of all device code and bindings: an edited kernel must be measured again."""
    digest, root = hashlib.sha256(), source_root()
    for path in sorted(p for folder in ("kernels", "csrc") for p in (root / folder).rglob("*") if p.is_file()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
