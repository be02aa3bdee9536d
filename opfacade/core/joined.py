"""The group of a multi-rank call: the protocol of a group, args with a field `group`, and groups by name.

`opfacade.distributed.Group` implements the protocol; descriptors and backends depend only on the protocol.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from opfacade.core.descriptor import Args
from opfacade.errors import GroupError, Issue, from_issues

if TYPE_CHECKING:
    from torch import Tensor


GROUP = "group"  # the field of args that is not a tensor
_CHUNK, _CHUNKS_OF_A_GROUP = 16, 32  # bytes; kChunksOfAGroup of kernels/ranks/round_params.h


class Across(Protocol):
    """The fields of a multi-rank op's descriptor that groups and links read; usable as a key."""

    @property
    def op(self) -> str: ...
    @property
    def world(self) -> int: ...


class Joined(Protocol):
    """A group of ranks. fill_id: the value of integer outputs after a failed call. link: an `opfacade.distributed.link.Link`
    between the GPUs; None if their data pass through host memory."""

    name: str
    world: int
    rank: int
    fill_id: int
    link: Any

    def issues(self, descriptor: Across) -> list[Issue]:
        """The reasons why a plan of this descriptor cannot run now; reads only host memory."""
        ...

    def exchange(self, descriptor: Across, outgoing: Sequence[Tensor], facts: bytes) -> list[Tensor]:
        """One round of exchange: sends outgoing[r], bytes on the CPU, to rank r; entry r of the result came from rank r.

        facts: data that, like the descriptor, must be equal on all ranks. Raises GroupError if a rank is missing or differs.
        """
        ...

    def on_gpus(self, descriptor: Across, call: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Runs `call`, a round of the link, without waiting on the host. Raises GroupError if the link is closed."""
        ...


class Peers(Protocol):
    """A link through peer memory of the GPUs of one host. place: the bytes that a rank may send to each peer per round;
    flagged: the same for flagged lines, which take `bytes_of_lines`."""

    place: int
    flagged: int

    def round_of(self, descriptor: Hashable) -> tuple[Any, ...]:
        """The communication arguments of a kernel, for a plan with a reservation: epochs, failures, addresses."""
        ...


def bytes_of_lines(size: int) -> int:
    """Bytes of the flagged lines of `size` bytes of data: twice as many, in whole groups of chunks."""
    group = _CHUNK * _CHUNKS_OF_A_GROUP
    return 2 * group * -(-size // group)


def in_lines(size: int, world: int, most: int, room: int) -> bool:
    """Whether ranks send `size` bytes to each other in flagged lines, not as bulk data behind a fence.

    most: the bytes of lines that a rank receives in a round; more of them take longer than the fence. room: bytes of lines from
    one rank in an arena.
    """
    lines = bytes_of_lines(size)
    return lines <= room and (world - 1) * lines <= most


class JoinedArgs(Args):
    """Base of the args of multi-rank ops. Their field `group` is an `opfacade.distributed.Group`, or None if world is 1."""

    __slots__ = ()
    group: Joined | None


def tensors_of(kind: type[Args]) -> tuple[str, ...]:
    """The fields of args that are tensors."""
    names: tuple[str, ...] = tuple(kind.__slots__)
    return tuple(name for name in names if name != GROUP) if issubclass(kind, JoinedArgs) else names


def group_issues(descriptor: Across, args: JoinedArgs) -> list[Issue]:
    """The issues of a call's group: missing, of another type or size, or unable to run this plan."""
    group = args.group
    if group is None:
        return [] if descriptor.world == 1 else [_wrong(f"a Group of {descriptor.world} ranks", "None")]
    if not callable(getattr(group, "exchange", None)):
        return [_wrong("an opfacade.distributed.Group", type(group).__name__)]
    if group.world != descriptor.world:
        return [_wrong(f"a Group of {descriptor.world} ranks, as the descriptor says", f"one of {group.world}")]
    return group.issues(descriptor)


def require_group(descriptor: Across, args: JoinedArgs) -> None:
    """Raise GroupError for a group that the plan cannot run in, even if calls are not checked."""
    issues = group_issues(descriptor, args)
    if issues:
        raise from_issues(descriptor.op, "run", issues)


def _wrong(expected: str, got: str) -> Issue:
    return Issue("OPF-N007", "group", expected, got, kind="GroupError")


_named: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def name_group(group: Joined) -> None:
    """Registers a group for `group_of` as long as the group lives. A later group of the same name replaces it."""
    _named[group.name] = group


def group_of(name: str) -> Any:
    """The group with this name, for callers that cannot pass objects, such as torch ops."""
    found = _named.get(name)
    if found is None:
        known = ", ".join(sorted(_named)) or "none"
        raise from_issues("group", "", [_wrong(f"the name of a Group of this process (there are: {known})", repr(name))])
    return found


__all__ = ["GroupError", "Joined", "JoinedArgs", "group_issues", "group_of", "name_group", "require_group"]
