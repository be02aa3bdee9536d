"""The GPUs of this machine, so that several processes can take one each."""

from __future__ import annotations

import os


def visible() -> list[str]:
    """The names of the GPUs for CUDA_VISIBLE_DEVICES; one empty name if there are none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return given.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())] or [""]


def environment(number: int) -> dict[str, str]:
    """The environment for process `number`; processes are assigned to the GPUs in turn."""
    names = visible()
    return os.environ | {"CUDA_VISIBLE_DEVICES": names[number % len(names)]}
