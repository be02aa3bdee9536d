"""Facts of this machine for a record."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from typing import Any


def machine(device: str) -> dict[str, Any]:
    """The facts of this machine that every record contains."""
    import torch

    from opfacade import __version__

    facts: dict[str, Any] = {"opfacade": __version__, "torch": torch.__version__, "python": platform.python_version()}
    if device == "cpu":
        return facts | {"device": "cpu", "machine": platform.machine(), "threads": torch.get_num_threads()}
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    gpu = {"device": found.name, "sm_count": found.multi_processor_count, "capability": f"{found.major}.{found.minor}"}
    return facts | gpu | {"cuda": torch.version.cuda, "driver": _driver()}


@lru_cache(maxsize=1)
def _driver() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
