"""Common state of all wrappers: the caller's workspace, index tensors on its device, and buffers of a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opfacade import Plan
from opfacade.compat.attending import Call
from opfacade.compat.refusals import require_dense, require_tensor, truth, unlike_plan, wrong, wrong_shape

_ALIGNMENT = 256


class Wrapper:
    """The caller's workspace, and whether the calls are captured in a CUDA graph. If a plan needs more than the caller's
    buffer, the wrapper allocates and keeps a workspace."""

    def __init__(self, float_workspace_buffer: torch.Tensor, use_cuda_graph: bool = False) -> None:
        self._float_workspace_buffer = require_dense(self._op, "float_workspace_buffer", float_workspace_buffer, "bytes")
        self._use_cuda_graph = truth(self._op, "use_cuda_graph", use_cuda_graph)
        self._own: list[torch.Tensor] = []

    @property
    def _op(self) -> str:
        return type(self).__name__

    @property
    def device(self) -> torch.device:
        return self._float_workspace_buffer.device

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor | None = None
    ) -> None:
        """Replaces the workspace. plan() needs no buffer, so the second buffer is not used."""
        self._float_workspace_buffer = require_dense(self._op, "float_workspace_buffer", float_workspace_buffer, "bytes")

    def end_forward(self) -> None:
        """No effect, because plan() keeps no memory."""

    def _run(self, call: Call) -> None:
        call.plan.run(call.args, self._workspace(call.plan))

    def _workspace(self, plan: Plan[Any]) -> torch.Tensor | None:
        needed, buffer = plan.workspace_size, self._float_workspace_buffer
        if not needed:
            return None
        start = -buffer.data_ptr() % _ALIGNMENT
        if buffer.nbytes >= start + needed and buffer.is_contiguous():
            return buffer.view(-1).view(torch.uint8)[start:]
        if not self._own or self._own[-1].nbytes < needed:
            kept = self._own if self._use_cuda_graph else []  # a captured graph may still write into the smaller one
            self._own = [*kept, torch.empty(1 << (needed - 1).bit_length(), dtype=torch.uint8, device=buffer.device)]
        return self._own[-1]

    def _index(self, argument: str, tensor: torch.Tensor, buffer: torch.Tensor | None = None) -> torch.Tensor:
        """The index tensor that run() reads: on the wrapper's device, or if a graph reads it, the caller's buffer.

        Does not write: `_fill` copies to the buffers after all checks of plan().
        """
        require_tensor(self._op, argument, tensor, "n")
        if tensor.dtype != torch.int32:
            raise unlike_plan(self._op, argument, torch.int32, tensor.dtype, f"Pass {argument}.to(torch.int32).")
        if tensor.device.type == "meta" != self.device.type:
            raise wrong(self._op, argument, "a tensor with memory", "one without")
        if not self._use_cuda_graph or buffer is None:
            return tensor.to(self.device, non_blocking=True)
        if buffer.shape[0] < tensor.shape[0]:
            raise wrong_shape(
                self._op, argument, f"at most {buffer.shape[0]}, the size of the graph's buffer", list(tensor.shape)
            )
        return buffer

    def _values(self, given: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The index tensors whose values plan() uses: `read`, or with a graph copies of `given`, because the graph's buffers
        are not filled yet."""
        return [tensor.to(self.device, non_blocking=True) for tensor in given] if self._use_cuda_graph else read

    def _fill(self, given: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor | None]) -> None:
        for tensor, buffer in zip(given, buffers, strict=True):
            if self._use_cuda_graph and buffer is not None:
                buffer[: tensor.shape[0]].copy_(tensor, non_blocking=True)

    def _fixed_batch(self, batch: int, fixed: int) -> None:
        """Refuses another batch size if a graph was captured."""
        if self._use_cuda_graph and batch != fixed:
            hint = "Pad the batch with empty requests."
            raise wrong_shape(self._op, "batch_size", f"{fixed}, the size of the graph's buffers", batch, hint)

    def _require_buffers(self, buffers: Sequence[tuple[str, torch.Tensor | None]]) -> None:
        for name, buffer in buffers:
            if self._use_cuda_graph and not isinstance(buffer, torch.Tensor):
                got = "None" if buffer is None else type(buffer).__name__
                raise wrong(self._op, name, "a tensor on the device with use_cuda_graph=True", got)
            if self._use_cuda_graph:
                require_tensor(self._op, name, buffer, "n")
