"""The GPUs of this machine, so that several processes can take one each."""

from __future__ import annotations

import os


def visible() -> list[str]:
    """Their names for CUDA_VISIBLE_DEVICES; one empty name where there is none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return given.split(",")
    import torch

    return [str(number) for number in range(torch.cuda.device_count())] or [""]


def environment(number: int) -> dict[str, str]:
    """The environment of the process of a number: GPUs take turns."""
    names = visible()
    return os.environ | {"CUDA_VISIBLE_DEVICES": names[number % len(names)]}
