"""References of ops over several ranks: rounds of tensors, and outputs that cannot be mistaken for results after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.core.joined import require_group
from opfacade.errors import GroupError

if TYPE_CHECKING:
    from torch import Tensor


def filled_on_failure(run: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`run`, which leaves NaN in every float that it writes, and the group's fill_id in integers, where a rank fails."""

    def launch(descriptor: Any, args: Any) -> None:
        require_group(descriptor, args)
        try:
            run(descriptor, args)
        except GroupError:
            for name, spec in operands_of(descriptor).items():
                if spec.written:
                    _fill(getattr(args, name), args.group.fill_id)
            raise

    return launch


def _fill(tensor: Tensor, fill_id: int) -> None:
    import torch

    value = float("nan") if tensor.is_floating_point() else False if tensor.dtype == torch.bool else fill_id
    tensor.fill_(value)


def gathered(descriptor: Any, args: Any, own: Tensor, facts: bytes = b"") -> list[Tensor]:
    """This tensor of all ranks, in their order."""
    return swapped(descriptor, args, [own] * descriptor.world, own, facts)


def swapped(descriptor: Any, args: Any, parts: Sequence[Tensor], like: Tensor, facts: bytes = b"") -> list[Tensor]:
    """parts[r] goes to rank r; what rank r sent to this one, of the shape, type and device of `like`, comes back as entry r."""
    if descriptor.world == 1:
        return list(parts)
    sent = [as_bytes(part).cpu() for part in parts]
    found = args.group.exchange(descriptor, sent, facts)
    return [_as(raw, like) for raw in found]


def as_bytes(part: Tensor) -> Tensor:
    import torch

    return part.contiguous().flatten().view(torch.uint8)


def _as(raw: Tensor, like: Tensor) -> Tensor:
    return raw.view(like.dtype).reshape(like.shape).to(like.device)


def bytes_of(*tensors: Tensor | None) -> bytes:
    """Contents that must be equal on all ranks, as facts of a round."""
    import torch

    given = [t.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes() for t in tensors if t is not None]
    return b"".join(len(text).to_bytes(8, "little") + text for text in given)


def rank_of(args: Any) -> int:
    return 0 if args.group is None else int(args.group.rank)


def sum_in_order(parts: Sequence[Tensor]) -> Tensor:
    """The sum in f32 in the order of ranks, not rounded."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total
