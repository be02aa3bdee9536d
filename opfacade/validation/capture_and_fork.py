"""Refuses operations that are not allowed during a graph capture or after a fork."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opfacade.base.capture import capturing
from opfacade.errors import PlanStateError

if TYPE_CHECKING:
    import torch

forked = False


def _after_fork() -> None:
    global forked
    forked = True


os.register_at_fork(after_in_child=_after_fork)


def refuse_fork(op: str) -> None:
    """Raises if CUDA was initialised before this process was forked."""
    import torch

    if torch.cuda._is_in_bad_fork():
        message = f"{op}.run: CUDA does not survive fork(). Start workers with spawn. [OPF-R002]"
        raise PlanStateError(message, code="OPF-R002", op=op, stage="run")


def refuse_capture(op: str, what: str, device: torch.device | None = None) -> None:
    """Raises if a graph is being captured on a device (None: the current one). `what`: the reason why the capture came too
    early."""
    if capturing(device):
        hint = "Run or compile() the plan once before capturing."
        message = f"{op}.run: {what} and a CUDA graph is being captured. {hint} [OPF-R003]"
        raise PlanStateError(message, code="OPF-R003", op=op, stage="run", hint=hint)
