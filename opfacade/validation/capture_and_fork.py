"""Moments at which a plan on a GPU must not do something: while a graph is captured, after a fork."""

from __future__ import annotations

import os

from opfacade.errors import PlanStateError

forked = False


def _after_fork() -> None:
    global forked
    forked = True


os.register_at_fork(after_in_child=_after_fork)


def capturing() -> bool:
    """Is the current stream recording a CUDA graph?"""
    import torch

    return bool(torch.cuda.is_initialized()) and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def refuse_fork(op: str) -> None:
    """Raise if CUDA was in use before this process was forked."""
    import torch

    if torch.cuda._is_in_bad_fork():
        message = f"{op}.run: CUDA does not survive fork(). Start workers with spawn. [OPF-R002]"
        raise PlanStateError(message, code="OPF-R002", op=op, stage="run")


def refuse_capture(op: str, what: str, code: str = "OPF-R003") -> None:
    """Raise if a graph is being captured; `what` says in a clause why that is too early."""
    if capturing():
        hint = "Run or compile() the plan once before capturing."
        message = f"{op}.run: {what} and a CUDA graph is being captured. {hint} [{code}]"
        raise PlanStateError(message, code=code, op=op, stage="run", hint=hint)
