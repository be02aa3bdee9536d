"""References of ops over several ranks: exchanges of tensors, and outputs that are marked invalid after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypeVar

from opfacade.base.capture import device_of
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.joined import Across, Joined, JoinedArgs, Peers, require_group
from opfacade.errors import GroupError, Issue, from_issues

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Facts = Sequence["Tensor | None"]

D = TypeVar("D", bound=Across)
A = TypeVar("A", bound=JoinedArgs)


def filled_on_failure(run: Callable[[D, A], None], spreads: bool = False, by_kernel: bool = False) -> Callable[[D, A], None]:
    """`run`, but if a rank fails, written floats become NaN and written integers become the group's fill_id.

    spreads: whether NaN in all received data makes every float output NaN, so that only other outputs are filled. by_kernel:
    whether a kernel fills the outputs, so that the host only fills them if it refuses the call.
    """

    def launch(descriptor: D, args: A) -> None:
        require_group(descriptor, args)
        try:
            run(descriptor, args)
        except GroupError:
            for tensor in _written(descriptor, args):
                tensor.fill_(_nothing(tensor, group_of(args).fill_id))
            raise
        link = None if by_kernel else link_of(args)
        if link is not None:  # the host cannot know yet whether the call failed
            for tensor in _written(descriptor, args):
                if not (spreads and tensor.is_floating_point() and tensor.element_size() > 1):
                    _fill_where(link.bad, tensor, group_of(args).fill_id)

    return launch


def _written(descriptor: Across, args: JoinedArgs) -> list[Tensor]:
    operands = operands_of(cast("Descriptor[Any]", descriptor))
    return [getattr(args, name) for name, spec in operands.items() if spec.written]


def _nothing(tensor: Tensor, fill_id: int) -> float | bool | int:
    import torch

    return float("nan") if tensor.is_floating_point() else False if tensor.dtype == torch.bool else fill_id


def _fill_where(bad: Tensor, tensor: Tensor, fill_id: int) -> None:
    import torch

    if tensor.is_floating_point() and tensor.element_size() == 1:  # 0xFF is a NaN of every such type
        tensor.view(torch.uint8).masked_fill_(bad, 0xFF)
    else:
        tensor.masked_fill_(bad, _nothing(tensor, fill_id))


def link_of(args: JoinedArgs) -> Any:
    """The link between the GPUs of a call's group; None if data pass through host memory."""
    link, device = getattr(args.group, "link", None), device_of(args)
    if link is None or device is None or device.type != link.device.type:
        return None
    if device != link.device:
        issue = Issue("OPF-N007", "group", f"tensors on {link.device}, the GPU of this rank", str(device), kind="GroupError")
        raise from_issues("group", "run", [issue])
    return link


def peers_of(args: JoinedArgs) -> tuple[Peers, Joined]:
    """The link to peer memory that a call may write to, and its group. Raises OPF-N007 if the group has no such link."""
    link, group = link_of(args), args.group
    if group is None or not hasattr(link, "round_of"):
        hint = "Make the Group with peer_memory=True on the GPUs of one host, or select without target.links."
        issue = Issue("OPF-N007", "group", "a Group that writes to the memory of peers", str(group), hint, kind="GroupError")
        raise from_issues("group", "run", [issue])
    return link, group


def gathered(descriptor: Across, args: JoinedArgs, own: Tensor, facts: Facts = ()) -> list[Tensor]:
    """This tensor of all ranks, in the order of ranks."""
    link = link_of(args)
    if link is None or descriptor.world == 1:
        return swapped(descriptor, args, [own] * descriptor.world, own, facts)
    return list(group_of(args).on_gpus(descriptor, lambda: link.gathered(descriptor, own, facts)))


def swapped(descriptor: Across, args: JoinedArgs, parts: Sequence[Tensor], like: Tensor, facts: Facts = ()) -> list[Tensor]:
    """Sends parts[r] to rank r.

    Entry r of the result came from rank r and has the shape, type and device of `like`. facts: tensors that must be equal on
    all ranks.
    """
    if descriptor.world == 1:
        return list(parts)
    link = link_of(args)
    if link is not None:
        return list(group_of(args).on_gpus(descriptor, lambda: link.swapped(descriptor, parts, like, facts)))
    sent = [as_bytes(part).cpu() for part in parts]
    found = group_of(args).exchange(descriptor, sent, bytes_of(*facts))
    return [_as(raw, like) for raw in found]


def as_bytes(part: Tensor) -> Tensor:
    import torch

    return part.contiguous().flatten().view(torch.uint8)


def _as(raw: Tensor, like: Tensor) -> Tensor:
    return raw.view(like.dtype).reshape(like.shape).to(like.device)


def bytes_of(*tensors: Tensor | None) -> bytes:
    """The contents of tensors that must be equal on all ranks, as the facts of an exchange."""
    import torch

    given = [t.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes() for t in tensors if t is not None]
    return b"".join(len(text).to_bytes(8, "little") + text for text in given)


def rank_of(args: JoinedArgs) -> int:
    return 0 if args.group is None else int(args.group.rank)


def group_of(args: JoinedArgs) -> Joined:
    """The group of a multi-rank call, which `require_group` has checked."""
    return cast("Joined", args.group)


def rounded_sum(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The sum of `sum_in_order`, rounded once to dtype, the type of the parts."""
    if len(parts) == 2 and parts[0].is_cuda:  # one kernel that adds in f32 and rounds
        return parts[0] + parts[1]
    return sum_in_order(parts).to(dtype)


def sum_in_order(parts: Sequence[Tensor]) -> Tensor:
    """The sum in f32 in the order of ranks, not rounded."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part  # in f32
    return total
