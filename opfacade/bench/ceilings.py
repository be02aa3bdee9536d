"""Ceilings of this machine, measured in the same run: memory read bandwidth, and the speed of a matrix product."""

from __future__ import annotations

from functools import lru_cache

from opfacade.tune.measure import device_timer, host_timer


@lru_cache(maxsize=2)
def of(device: str) -> dict[str, float]:
    """The TB/s of reading, and the TFLOP/s of a large product: bf16 on a GPU, float32 on the CPU."""
    import torch

    timer, count = (device_timer, 2**30) if device == "cuda" else (host_timer, 2**24)
    x = torch.zeros(count, dtype=torch.int32, device=device)
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (512, torch.float32)
    a = torch.ones(size, size, dtype=dtype, device=device)
    read = min(timer(lambda: x.amax()) for _ in range(5))
    product = min(timer(lambda: a @ a) for _ in range(5))
    return {"TBs": 4 * count / read * 1e-6, "TFLOPs": 2 * size**3 / product * 1e-6}
