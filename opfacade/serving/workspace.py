"""Workspace: device memory for the partial results of many plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opfacade.base.capture import capturing
from opfacade.base.fork_lock import ForkLock
from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.device_tensors import read_by
from opfacade.errors import ArgumentTypeError, DeviceMismatchError, PlanStateError, WorkspaceError
from opfacade.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Workspace:
    """One workspace for the layers of a model, or for plans of several batch sizes: as large as the largest workspace that they
    need.

        workspace = Workspace("cuda")
        workspace.reserve(prefill, decode)
        decode.run(args, workspace.of(decode))

    Runs do not read each other's results, so plans of any kind can share it. Streams: runs that share a workspace must not
    overlap on the device. A single stream orders its runs; for two streams, use an event, or one Workspace per stream. It grows
    when a plan needs more; the old memory is returned to torch's allocator after the queued work of the current stream. A
    captured CUDA graph keeps its address: reserve memory for all plans before the first capture, then call `freeze`. device:
    the device of the memory; None: the current CUDA device, or the CPU without one. Raises ArgumentTypeError if device is not a
    device, or is a name that torch does not know."""

    __slots__ = ("_device", "_frozen", "_lock", "_tensor", "size")

    size: int

    def __init__(self, device: str | torch.device | None = None) -> None:
        import torch

        default = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._device = torch.device(default if device is None else device)
        except (RuntimeError, TypeError):
            message = f"Workspace: device expected a device of torch or its name, got {device!r}. [OPF-W006]"
            raise ArgumentTypeError(message, code="OPF-W006", stage="workspace") from None
        self._tensor: Tensor | None = None
        self._frozen = False
        self._lock = ForkLock()
        self.size = 0

    def __repr__(self) -> str:
        return f"Workspace({str(self._device)!r}, {self.size} bytes{', frozen' if self._frozen else ''})"

    def of(self, plan: Plan[Any]) -> Tensor | None:
        """The workspace argument of `plan.run`: uint8 [size], or None if the plan's `workspace_size` is 0, as for most
        references and some kernels; `run` accepts both. Grows if needed."""
        if isinstance(plan, Plan):
            if not plan.workspace_size:
                return None
            if plan.workspace_size <= self.size:
                return self._tensor
        self.reserve(plan)
        return self._tensor

    def reserve(self, *plans: Plan[Any]) -> None:
        """Grows to the largest workspace that these plans need. Raises ArgumentTypeError, DeviceMismatchError if a CUDA plan
        needs a workspace and this one is not on a GPU, WorkspaceError if it is frozen and too small, PlanStateError if it would
        have to grow while a CUDA graph is captured. After an error, nothing has changed."""
        for plan in plans:
            self._check(plan)
        needed = max((plan.workspace_size for plan in plans), default=0)
        with self._lock:
            if needed > self.size:
                self._grow(needed)

    def freeze(self) -> None:
        """Prevents any further growth, because a captured graph uses the address."""
        self._frozen = True

    def _check(self, plan: object) -> None:
        if not isinstance(plan, Plan):
            message = f"Workspace.reserve: plan expected a Plan, got {type(plan).__name__}. [OPF-W001]"
            raise ArgumentTypeError(message, code="OPF-W001", stage="workspace")
        if plan.workspace_size and plan.sku.backend != "reference" and self._device.type != "cuda":
            hint = 'Make it with Workspace("cuda"); PlanCache takes it as workspace=.'
            message = f"Workspace.reserve: device expected that of {plan.sku.id}, cuda, got {self._device}. {hint} [OPF-W002]"
            raise DeviceMismatchError(message, code="OPF-W002", op=plan.sku.op, stage="workspace", hint=hint)

    def _grow(self, needed: int) -> None:
        import torch

        if self._frozen:
            raise self._too_small(needed)
        if capturing(self._device):
            hint = "Reserve for all plans before the first capture."
            message = f"Workspace.reserve: it must grow to {needed} bytes and a CUDA graph is being captured. {hint} [OPF-R021]"
            raise PlanStateError(message, code="OPF-R021", stage="workspace", hint=hint)
        old, new = self._tensor, self._made(needed)
        ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # a fake tensor needs no driver
        if old is not None and old.is_cuda and ready:
            read_by(old, torch.cuda.current_stream(old.device))  # may differ from the stream on which it was allocated
        self._tensor, self.size = new, needed

    def _made(self, size: int) -> Tensor:
        """Allocates aligned memory, also on a CPU, whose allocations may begin at any address."""
        import torch

        spare = WORKSPACE_ALIGNMENT if self._device.type == "cpu" else 0
        room = torch.empty(size + spare, dtype=torch.uint8, device=self._device)
        begin = -room.data_ptr() % WORKSPACE_ALIGNMENT if spare else 0
        return room[begin : begin + size] if spare else room

    def _too_small(self, needed: int) -> WorkspaceError:
        hint = "Reserve for all plans before freeze()."
        message = f"Workspace.reserve: size expected at least {needed} bytes, got {self.size}, frozen. {hint} [OPF-W003]"
        error = WorkspaceError(message, code="OPF-W003", stage="workspace", hint=hint)
        error.needed, error.got = needed, self.size
        return error
