"""Small tensors that many calls share (core/device_tensors.py) and no caller may overwrite."""

from __future__ import annotations

from collections.abc import Callable

import torch

from opfacade.core.device_tensors import DeviceTensors


def even_indptr(batch: int, rows: int, device: torch.device) -> torch.Tensor:
    """[batch + 1] i32: the first row of each of `batch` requests with `rows` rows, and the end."""
    return _made(_even_indptr, device, batch, rows)


def numbered(count: int, device: torch.device) -> torch.Tensor:
    """[count] i32: 0, 1, 2 and so on, as a slice of a longer tensor, so that growing counts allocate few tensors."""
    return _made(_even_indptr, device, max(64, 1 << count.bit_length()), 1)[:count]


def filled(count: int, value: int, device: torch.device) -> torch.Tensor:
    """[count] i32, all equal to `value`."""
    return _made(_filled, device, count, value)


def factor(value: float, device: torch.device) -> torch.Tensor:
    """[1] f32."""
    return _made(_factor, device, value)


def head_values(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """[len(values)] f32. A capture cannot copy from the host, so an earlier call must create the tensor."""
    return _all_head_values.get(device, values)


def _make(device: torch.device, make: Callable[..., torch.Tensor], *key: object) -> torch.Tensor:
    return make(device, *key)


_kept = DeviceTensors(_make)


def _made(make: Callable[..., torch.Tensor], device: torch.device, *key: object) -> torch.Tensor:
    return _kept.get(device, make, *key)


def _even_indptr(device: torch.device, batch: int, rows: int) -> torch.Tensor:
    return torch.arange(batch + 1, dtype=torch.int32, device=device).mul_(rows)


def _filled(device: torch.device, count: int, value: int) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int32, device=device)


def _factor(device: torch.device, value: float) -> torch.Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=device)


def _head_values(device: torch.device, values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


_all_head_values = DeviceTensors(_head_values, lasting=True)


def filled_f32(count: int, value: float, device: torch.device) -> torch.Tensor:
    """[count] f32, all equal to `value`."""
    return _made(_filled_f32, device, count, value)


def multiples(count: int, step: int, device: torch.device) -> torch.Tensor:
    """[count] i64: 0, step, 2 * step and so on."""
    return _made(_multiples, device, count, step)


def _filled_f32(device: torch.device, count: int, value: float) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.float32, device=device)


def _multiples(device: torch.device, count: int, step: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int64, device=device).mul_(step)
