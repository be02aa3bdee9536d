"""A call with canaries: checks margins around outputs and workspace, that inputs are unchanged, and that all outputs are
written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.testing.bits import bits, same_bits
from opfacade.testing.harness import by_validity, harness_of, valid_rows
from opfacade.testing.subject import MARGIN, Subject

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

_CANARY = 0xA5


@dataclass(frozen=True, slots=True)
class Fenced:
    """A tensor in the middle of a larger allocation, with a canary in the rest."""

    whole: Tensor
    inner: Tensor

    @property
    def intact(self) -> bool:
        size = self.inner.numel() * self.inner.element_size()
        edges = (self.whole[:MARGIN], self.whole[MARGIN + size :])
        return all(bool((edge == _CANARY).all()) for edge in edges)


def fenced(like: Tensor, fill: int) -> Fenced:
    """A contiguous tensor of the same shape, every byte `fill`, between margins."""
    import torch

    size = like.numel() * like.element_size()
    room = torch.full((size + 2 * MARGIN + 256,), _CANARY, dtype=torch.uint8, device=like.device)
    begin = -(room.data_ptr() + MARGIN) % 256  # CPU allocations may have any alignment
    whole = room[begin : begin + size + 2 * MARGIN]
    whole[MARGIN : MARGIN + size] = fill
    return Fenced(whole, whole[MARGIN : MARGIN + size].view(like.dtype).view(like.shape))


def run(subject: Subject, args: Args) -> list[str]:
    """Run `args` twice into guarded outputs and copy the outputs back. Returns descriptions of all errors.

    Operands of role inout then hold the result of the second run, which starts from their original values.
    """
    specs = operands_of(subject.descriptor)
    names = [name for name in specs if getattr(args, name) is not None]
    kept = {name: bits(getattr(args, name)).clone() for name in names if not specs[name].written}
    outs = [name for name in names if specs[name].role == "out"]
    before = {name: getattr(args, name).clone() for name in names if specs[name].role == "inout"}
    wrong: list[str] = []
    untouched: dict[str, Any] = {}
    for fill in (0xFF, 0x5A):
        for name, was in before.items():  # both runs start with the same values
            getattr(args, name).copy_(was)
        fences = {name: fenced(getattr(args, name), fill) for name in outs}
        wrong += _once(subject, args, fences)
        for name in outs:
            same = fences[name].inner.view(bits(fences[name].inner).dtype) == _pattern(fences[name].inner, fill)
            free = harness_of(subject.descriptor).unowned(subject.descriptor, args, name)
            if free is not None:
                wrong += [f"{name} was written where nothing belongs to the call"] if not bool(same[free].all()) else []
            _, rest = by_validity(subject.descriptor, args, name, same)
            same, _ = by_validity(subject.descriptor, args, name, same if free is None else same & ~free)
            if rest is not None:
                count = valid_rows(subject.descriptor, args, name)
                wrong += [f"{name} was written past its {count} valid rows"] if not bool(rest.all()) else []
            untouched[name] = same & untouched.get(name, same)
            getattr(args, name).copy_(fences[name].inner)
    wrong += [f"{name} was not written everywhere" for name, left in untouched.items() if bool(left.any())]
    wrong += [f"{name} was written" for name, old in kept.items() if not same_bits(bits(getattr(args, name)), old)]
    return wrong


def _once(subject: Subject, args: Args, fences: dict[str, Fenced]) -> list[str]:
    import torch

    size = subject.plan.workspace_size
    workspace = fenced(torch.empty(size, dtype=torch.uint8, device=subject.device), 0xFF) if size else None
    given = {name: getattr(args, name) for name in type(args).__slots__}
    call = type(args)(**given | {name: fence.inner for name, fence in fences.items()})
    subject.run(call, workspace.inner if workspace else None)
    edges = fences | ({"workspace": workspace} if workspace else {})
    return [f"written past {name}" for name, fence in edges.items() if not fence.intact]


def _pattern(like: Tensor, fill: int) -> int:
    """The integer whose bytes are all `fill`, as a signed element of the tensor's size."""
    size = like.element_size()
    return int.from_bytes(bytes([fill]) * size, "little", signed=size > 1)
