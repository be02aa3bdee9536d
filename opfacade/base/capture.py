"""The device of a call's tensors, and whether a CUDA graph is being captured there.

torch answers this only for the current device. Tensors may be on another device, which has its own current stream.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_of(args: object) -> torch.device | None:
    """The device of the first tensor in the args; None without tensors."""
    fields = (getattr(args, name, None) for name in getattr(type(args), "__slots__", ()))
    return next((found for field in fields if (found := getattr(field, "device", None)) is not None), None)


def current(device: torch.device | None) -> AbstractContextManager[object]:
    """A context in which a CUDA device is the current device. None, or a device of another kind, has no effect."""
    import torch

    return torch.cuda.device(device) if device is not None and device.type == "cuda" else nullcontext()


def capturing(device: torch.device | None = None) -> bool:
    """Whether the current stream of a CUDA device is capturing a graph; None: the current device."""
    import torch

    if not torch.cuda.is_initialized() or (device is not None and device.type != "cuda"):  # type: ignore[no-untyped-call]
        return False
    here = device is None or device.index is None or device.index == torch.cuda.current_device()
    with current(None if here else device):
        return bool(torch.cuda.is_current_stream_capturing())
