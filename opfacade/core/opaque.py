"""Excludes functions from torch.compile: a plan reads addresses and launches kernels, which a trace cannot record.

Dynamo checks a function attribute before it inlines a call, and a code object's strategy before it compiles a frame. Setting
both adds no cost per call and does not import torch._dynamo, which takes a second; torch.compiler.disable would add a wrapper.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type)

_HINT = "opfacade plans are opaque: call torch.ops.opfacade.<op>(plan.handle, ...) inside torch.compile(fullgraph=True)"
_codes: list[CodeType] = []


def methods(*names: str) -> Callable[[ClassT], ClassT]:
    """A class decorator: Dynamo breaks the graph at these methods and compiles no frame below them."""

    def mark(kind: ClassT) -> ClassT:
        for name in names:
            found = vars(kind)[name]
            _mark(getattr(found, "__func__", found))
        apply()
        return kind

    return mark


def _mark(function: object) -> None:
    if isinstance(function, FunctionType):
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = _HINT  # type: ignore[attr-defined]
        _codes.append(function.__code__)


def apply() -> None:
    """Mark the code objects in torch after torch is imported; later calls do nothing."""
    if not _codes:
        return
    torch = sys.modules.get("torch")
    frames: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    skip = frames._FrameAction.SKIP
    while _codes:
        frames.set_code_exec_strategy(_codes.pop(), frames._FrameExecStrategy(skip, skip))
