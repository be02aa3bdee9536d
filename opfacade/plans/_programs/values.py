"""The tensors for the inputs of a program in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Args
from opfacade.plans._programs.args import IN, OUT
from opfacade.programs.evaluate import Values, torch_type
from opfacade.programs.fields import Number
from opfacade.programs.program import Program

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def values_of(descriptor: Program, args: Args) -> Values:
    """Tensors that broadcast to `descriptor.shape`; an input with its own shape is returned unchanged."""
    import torch

    rank = len(descriptor.shape)
    leaves: dict[tuple[str, Any], Tensor] = {}
    tensors: list[Tensor] = [getattr(args, name) for name in IN[: len(descriptor.inputs)]]
    device = next((t.device for t in (*tensors, getattr(args, OUT[0])) if t is not None), torch.device("cpu"))
    for given, tensor in zip(descriptor.inputs, tensors, strict=True):
        leaves["input", given.name] = tensor if given.shape is not None else over_axes(tensor, given.over, rank)
    leaves |= numbers_of(descriptor.scalars, device)
    for axis, size in enumerate(descriptor.shape):
        view = [-1 if other == axis else 1 for other in range(rank)]
        leaves["coord", axis] = torch.arange(size, device=device).view(view)
        leaves["extent", axis] = torch.tensor(size, device=device)
    return Values(leaves, device)


def numbers_of(scalars: Sequence[Number], device: torch.device) -> dict[tuple[str, Any], Tensor]:
    """The scalars of a plan as inputs of a program."""
    import torch

    leaves: dict[tuple[str, Any], Tensor] = {}
    for number in scalars:
        value = number.value - 2**64 if number.type == "u64" and number.value >= 2**63 else number.value
        leaves["scalar", number.name] = torch.tensor(value, dtype=torch_type(number.type), device=device)
    return leaves


def over_axes(tensor: Tensor, over: tuple[int, ...] | None, rank: int) -> Tensor:
    """A tensor with the axes that it lacks added."""
    if over is None:
        return tensor
    for axis in range(rank):
        if axis not in over:
            tensor = tensor.unsqueeze(axis)
    return tensor
