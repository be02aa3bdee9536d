"""Scales of fp8 tensors that are given as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from opfacade.core.device_tensors import DeviceTensors
from opfacade.core.model import F32_MAX
from opfacade.errors import Issue, from_issues
from opfacade.plans._attention.operand_docs import AttentionArgs
from opfacade.plans._attention.paging import SCALES

if TYPE_CHECKING:
    import torch


class ScaledArgs(AttentionArgs):
    """Base of the args classes with scales. Converts a number to a tensor [1] on the device of the operand `beside`."""

    __slots__ = ()
    beside: ClassVar[str] = "o"

    def __post_init__(self) -> None:
        for name in SCALES:
            value = getattr(self, name, None)
            if value is not None and isinstance(value, (int, float)):
                self._set_number(name, value)

    def _set_number(self, name: str, value: float) -> None:
        """If `beside` is not a tensor, the number is kept and the call is refused."""
        if isinstance(value, bool) or not 0 < value <= F32_MAX:
            issue = Issue("OPF-A063", name, "a positive finite f32, or a tensor", str(value), kind="ArgumentError")
            raise from_issues(type(self).__name__, "", [issue])
        device: Any = getattr(getattr(self, self.beside), "device", None)
        if device is not None:
            object.__setattr__(self, name, factor(float(value), device))


def factor(value: float, device: torch.device) -> torch.Tensor:
    """An f32 tensor [1], shared by all calls with this value."""
    return _kept.get(device, value)


def _factor(device: torch.device, value: float) -> torch.Tensor:
    import torch

    return torch.full((1,), value, dtype=torch.float32, device=device)


_kept = DeviceTensors(_factor)
