"""The group of a call over several ranks: a protocol, the args that carry one, and the names of groups.

`opfacade.distributed.Group` is one; descriptors and backends know only this.
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


class Across(Protocol):
    """The part of a descriptor of an op over several ranks that groups and links read; equal ones are equal as keys."""

    @property
    def op(self) -> str: ...
    @property
    def world(self) -> int: ...


class Joined(Protocol):
    """A group of ranks. fill_id: what an output of integers holds after a call that failed. link: the way between GPUs, an
    `opfacade.distributed.link.Link`; None where data of GPUs pass through host memory."""

    name: str
    world: int
    rank: int
    fill_id: int
    link: Any

    def issues(self, descriptor: Across) -> list[Issue]:
        """Why a plan of this descriptor may not run now; host memory alone is read."""
        ...

    def exchange(self, descriptor: Across, outgoing: Sequence[Tensor], facts: bytes) -> list[Tensor]:
        """One round: outgoing[r], bytes on the CPU, goes to rank r; what rank r sent comes back as entry r.

        facts: what must be equal on all ranks beside the descriptor. GroupError where a rank is missing or differs.
        """
        ...

    def on_gpus(self, descriptor: Across, call: Callable[[], list[Tensor]]) -> list[Tensor]:
        """`call`, a round of the link, which the host does not wait for. GroupError where the link has ended."""
        ...


class Peers(Protocol):
    """A link by the memory of the GPUs of one host. place: bytes that a rank may send to each in one round; flagged: the same
    in flagged lines, which take twice the bytes of their data."""

    place: int
    flagged: int

    def round_of(self, descriptor: Hashable) -> tuple[Any, ...]:
        """The arguments of a kernel that makes rounds, for a plan that was reserved: epochs, failures, addresses."""
        ...


class JoinedArgs(Args):
    """Base of the args of ops over several ranks. Each has a field group, an `opfacade.distributed.Group`; None: world is 1."""

    __slots__ = ()
    group: Joined | None


def tensors_of(kind: type[Args]) -> tuple[str, ...]:
    """The fields of args that are tensors."""
    names: tuple[str, ...] = tuple(kind.__slots__)
    return tuple(name for name in names if name != GROUP) if issubclass(kind, JoinedArgs) else names


def group_issues(descriptor: Across, args: JoinedArgs) -> list[Issue]:
    """Whether the group of a call is one that its plan may run in."""
    group = args.group
    if group is None:
        return [] if descriptor.world == 1 else [_wrong(f"a Group of {descriptor.world} ranks", "None")]
    if not callable(getattr(group, "exchange", None)):
        return [_wrong("an opfacade.distributed.Group", type(group).__name__)]
    if group.world != descriptor.world:
        return [_wrong(f"a Group of {descriptor.world} ranks, as the descriptor says", f"one of {group.world}")]
    return group.issues(descriptor)


def require_group(descriptor: Across, args: JoinedArgs) -> None:
    """Raise GroupError for a group that the plan may not run in, also where calls are not checked."""
    issues = group_issues(descriptor, args)
    if issues:
        raise from_issues(descriptor.op, "run", issues)


def _wrong(expected: str, got: str) -> Issue:
    return Issue("OPF-N007", "group", expected, got, kind="GroupError")


_named: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def name_group(group: Joined) -> None:
    """Let `group_of` find a group as long as it lives. A later group of the same name takes its place."""
    _named[group.name] = group


def group_of(name: str) -> Any:
    """The group of a name, for callers that pass no objects, such as ops of torch."""
    found = _named.get(name)
    if found is None:
        known = ", ".join(sorted(_named)) or "none"
        raise from_issues("group", "", [_wrong(f"the name of a Group of this process (there are: {known})", repr(name))])
    return found


__all__ = ["GroupError", "Joined", "JoinedArgs", "group_issues", "group_of", "name_group", "require_group"]
