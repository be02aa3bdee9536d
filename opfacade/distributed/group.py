"""Group: the ranks that run calls together."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.core.joined import Across, name_group
from opfacade.core.target import Target
from opfacade.distributed import linked, reserving, rounds, setup
from opfacade.distributed.frames import ALARM, BYE, CALL, EAGER, RESERVE, Frame
from opfacade.distributed.judgement import told
from opfacade.distributed.link import Link
from opfacade.distributed.mailbox import Mailbox
from opfacade.distributed.statistics import Counted, Statistics
from opfacade.distributed.watch import Watch
from opfacade.errors import GroupError, Issue
from opfacade.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

_CLOSED = "closed"


class Group:
    """The ranks of a torch.distributed process group that run plans together. Each call passes its group in its args.

    All ranks must create it, once and outside of a graph capture. They compare versions and sizes, send a test pattern between
    every pair and vote, so it is created on all ranks or on none (OPF-N005). `reserve` registers the plans. A call that fails
    on one rank ends on all ranks within `timeout_s`, with an error that names the missing or differing ranks. The group cannot
    be used afterwards; create another one over a new process group.

    process_group: needs a backend for CPU tensors (gloo). GPU data is sent through its NCCL backend if it has one and a test
    succeeds on all ranks (`link`), and otherwise through host memory. max_bytes: the largest number of bytes that a rank may
    exchange in one call. channel: groups on the same process group need different channels. timeout_s, warn_s: seconds after
    which a missing rank is an error, or causes a LagWarning. fill_id: the content of integer outputs after a failure. name:
    identifies the group for ops of torch, which pass no objects. peer_memory: whether a kernel that writes to the memory of
    other GPUs of the host, and has its own deadline, may perform small rounds; it is used if a test succeeds on all ranks.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        max_bytes: int = 1 << 26,
        *,
        channel: int = 0,
        timeout_s: float = 30.0,
        warn_s: float | None = None,
        fill_id: int = -1,
        name: str = "",
        peer_memory: bool = True,
    ) -> None:
        options = setup.Options(max_bytes, channel, timeout_s, timeout_s / 3 if warn_s is None else warn_s, peer_memory)
        self.process_group = setup.usable(process_group, options)
        self.rank, self.world, self.fill_id = process_group.rank(), process_group.size(), fill_id
        self.name = name or f"{setup.name_of(process_group)}:{channel}"
        self.max_bytes, self.timeout_s, self.warn_s = max_bytes, timeout_s, options.warn_s
        self.statistics = Statistics()
        self._pid, self._busy, self._call = os.getpid(), threading.Lock(), 0
        self._digests: dict[Any, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._frozen, self.ended, self._failure = False, False, ""
        self._cause: GroupError | None = None
        self._mail = _taken(process_group, channel, self)
        self.op = "group"
        self.link: Link | None = None
        self._watch: Watch | None = None
        try:
            self.members = setup.agreed(self._mail, options, self._round)
            self.link = linked.made(self.process_group, self.timeout_s, peer_memory, self._asked)
        except GroupError:
            self.close()
            raise
        if self.link is not None:
            self._watch = Watch(self, self._mail, self.link)
        name_group(self)

    def reserve(self, plans: Sequence[Plan[Any]]) -> None:
        """Compare these plans over all ranks and compile them; all other plans are refused afterwards. Collective and eager.

        OPF-N002 if ranks have different plans, OPF-N005 if a rank cannot compile, OPF-N008 for a plan of more than `max_bytes`.
        """
        self._require_open()
        texts = reserving.texts(plans)
        own = {"plans": texts, "refusal": reserving.refusal(plans, self.world, self.max_bytes, self.link)}
        answers = {r: json.loads(a) for r, a in self._asked(RESERVE, own)}
        reserving.compare({r: tuple(answer["plans"]) for r, answer in answers.items()}, self.rank)
        reserving.vote({r: answer["refusal"] for r, answer in answers.items()}, "OPF-N008")
        compiled = {r: json.loads(a) for r, a in self._asked(RESERVE, setup.compiled(plans))}
        reserving.vote(compiled, "OPF-N005")
        for plan, text in zip(plans, texts, strict=True):
            digest = hashlib.sha256(text.encode()).digest()[:8]
            self._digests[plan.descriptor], self._names[digest] = digest, plan.descriptor.op
            if self.link is not None:
                self.link.learn(plan.descriptor, digest)
        self._frozen = True

    def check(self) -> None:
        """Raises the failure of this group, if it has failed; also a failure that a peer reported. Reads only host memory. A
        peer that closed its group after the same number of calls has not failed."""
        if self._cause is None and self._failure != _CLOSED:
            error = rounds.bad_news(self._mail, self._call)
            if error is not None:
                self._poison(error)
        if self._cause is not None:
            raise self._poisoned()

    def issues(self, descriptor: Across) -> list[Issue]:
        """Reasons why a plan of this descriptor may not run now."""
        if os.getpid() != self._pid:
            got = f"one that process {self._pid} made"
            return [
                Issue(
                    "OPF-N007",
                    "group",
                    "a Group that was created in this process",
                    got,
                    "Fork before groups.",
                    kind="GroupError",
                )
            ]
        if self._failure:
            return [Issue("OPF-N004", "group", "a group without a failure", self._failure, _AGAIN, kind="GroupError")]
        if descriptor not in self._digests:
            hint = "Pass all plans to group.reserve, once, on every rank."
            return [Issue("OPF-N006", "group", "a reserved plan", descriptor.op, hint, kind="GroupError")]
        return []

    def exchange(self, descriptor: Across, outgoing: Sequence[Tensor], facts: bytes = b"") -> list[Tensor]:
        """One round of a call; see `core.joined.Joined`."""
        with self._one_call(descriptor.op):
            digest = self._digests[descriptor]
            frame = Frame(CALL, self._call, digest, hashlib.sha256(facts).digest()[:8])
            return self._round(frame, outgoing)

    @property
    def target(self) -> Target:
        """The target for `Plan.select`: this process's device, with the links that this group uses.

        If this group has peer memory, this target also allows kernels that write to it.
        """
        return replace(Target.current(), links=linked.links_of(self.link))

    @property
    def calls(self) -> int:
        """The number of completed rounds through host memory; `link` counts the rounds between GPUs."""
        return self._call

    def counted(self) -> Counted | None:
        """Counters of the rounds between GPUs, including graph replays: calls, bytes, waiting times, last arrivals. None
        without a `link`.

        Waits until the device is idle. `statistics` counts the rounds through host memory.
        """
        return None if self.link is None else self.link.counted()

    def on_gpus(self, descriptor: Across, call: Callable[[], list[Tensor]]) -> list[Tensor]:
        """A round between GPUs; see `core.joined.Joined`. If it fails, the next `run` or `check` raises the error."""
        from torch.distributed import DistError

        with self._one_call(descriptor.op):
            self.op = descriptor.op
            try:
                return call()
            except DistError as error:
                hint = str(error).splitlines()[0] if str(error) else ""
                self.fail(told(f"{self.op}.run", "OPF-N001", "every rank to make the call", "an error of NCCL", (), hint))
                raise self._poisoned() from error

    def fail(self, error: GroupError) -> None:
        """Ends all calls in flight on the GPU, and all later calls, with this error. Called by the watch."""
        if self._cause is None and not self.ended:
            self._poison(error)
        if self.link is not None:
            self.link.poison()
            self.link.abort()

    def close(self) -> None:
        """Ends this group on this rank: peers that still wait for this rank get OPF-N001. Graphs that contain its calls can no
        longer be replayed.

        Waits at most one second until all peers have closed their groups. A thread that listens to a slower peer ends when that
        peer closes its group, or with the interpreter.
        """
        if not self.ended and os.getpid() == self._pid:
            self.ended, self._failure = True, self._failure or _CLOSED
            self._stop_watch()
            self._mail.close(Frame(BYE, self._call))

    def abort(self) -> None:
        """Closes the connections of the process group after a failure, so that waiting peers see that this rank has left.

        First reset the CUDA graphs that contain calls of this group, because NCCL waits for them. Create the next group from a
        new process group, with a new store on a live rank.
        """
        self.ended, self._failure = True, self._failure or _CLOSED
        self._stop_watch()
        if self.link is not None:
            self.link.poison()
            self.link.abort(_LEAVES)
        self._mail.abort(() if self._cause is None else self._cause.ranks)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f", {self._failure}" if self._failure else ""
        return f"Group({self.name!r}, rank {self.rank} of {self.world}{state})"

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _asked(self, kind: int, value: object) -> Iterator[tuple[int, str]]:
        """The values of all ranks, in rank order, as JSON."""
        text = setup.bytes_of(json.dumps(value))
        with self._one_call("reserve"):
            found = self._round(Frame(kind, self._call), [text] * self.world)
        return ((r, setup.text_of(answer)) for r, answer in enumerate(found))

    def _require_open(self) -> None:
        self.check()
        if self._failure or self._frozen:
            got = self._failure or "one that has reserved already"
            raise told("group.reserve", "OPF-N004" if self._failure else "OPF-N008", "a group without reserved plans", got, ())

    @contextmanager
    def _one_call(self, op: str) -> Iterator[None]:
        if self._failure:
            raise self._poisoned()
        if not self._busy.acquire(blocking=False):
            hint = "The calls of a channel run one after the other; give each thread or stream its own Group and channel."
            raise told(f"{op}.run", "OPF-N003", "one call at a time", "another thread's call in progress", (), hint)
        try:
            yield
        finally:
            self._busy.release()

    def _round(self, frame: Frame, outgoing: Sequence[Tensor]) -> list[Tensor]:
        """Sends to all ranks and receives from all. A failure poisons the group and raises an alarm on all ranks."""
        start = time.monotonic()
        try:
            found = rounds.exchange(self._mail, frame, outgoing, rounds.Patience(self.timeout_s, self.warn_s), self)
        except GroupError as error:
            self._poison(error)
            raise
        self._call += 1
        sent = sum(t.numel() for r, t in enumerate(outgoing) if r != self.rank)
        self.statistics.ended(sent, time.monotonic() - start, found.last)
        return found.payloads

    def _poison(self, error: GroupError) -> None:
        """Records a failure and sends it to the other ranks, which may be waiting for this rank."""
        self._cause, self._failure = error, str(error)
        text = setup.bytes_of(json.dumps({"code": error.code, "ranks": error.ranks, "text": str(error)}))
        for peer in self._mail.peers:
            self._mail.send(peer, Frame(ALARM, self._call, size=text.numel()), text)

    def _poisoned(self) -> GroupError:
        cause = self._cause
        if cause is not None and cause.code != "OPF-N004":
            error = told("group.run", "OPF-N004", "a group without a failure", self._failure, cause.ranks, _AGAIN)
            error.__cause__ = cause
            return error
        return told("group.run", "OPF-N004", "a group without a failure", self._failure, (), _AGAIN)

    def name_of(self, frame: Frame) -> str:
        """The op or the setup stage to which a frame belongs."""
        return EAGER.get(frame.kind) or self._names.get(frame.digest, "another plan")


_LEAVES = 5.0  # seconds that NCCL gets to stop before the process group is aborted too
_AGAIN = "Make a new Group over a new process group."
_open: list[tuple[Any, int, weakref.ref[Group]]] = []


def _taken(process_group: ProcessGroup, channel: int, group: Group) -> Mailbox:
    """A mailbox on `channel`. Raises GroupError if another open group uses the channel."""
    _open[:] = [entry for entry in _open if (other := entry[2]()) is not None and not other.ended]
    if any(pg is process_group and number == channel for pg, number, _ in _open):
        hint = "Close the other Group, or pass another channel on all ranks."
        raise told("Group", "OPF-N005", "a channel that no open Group of this process group uses", str(channel), (), hint)
    _open.append((process_group, channel, weakref.ref(group)))
    return Mailbox(process_group, channel)
