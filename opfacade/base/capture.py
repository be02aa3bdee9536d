"""Is a CUDA graph being captured where a tensor's work goes?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def capturing(device: torch.device | None = None) -> bool:
    """Whether the current stream of a CUDA device records a graph; None is the current device. No device but those in use.

    torch answers for the current device alone, and each device has a current stream of its own.
    """
    import torch

    if not torch.cuda.is_initialized() or (device is not None and device.type != "cuda"):
        return False
    if device is None or device.index is None or device.index == torch.cuda.current_device():
        return bool(torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
