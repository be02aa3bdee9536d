"""How the ranks of a new group agree: they exchange versions and options, send a test pattern between every pair, and vote."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import opfacade
from opfacade.distributed.frames import SETUP, Frame
from opfacade.distributed.judgement import told
from opfacade.distributed.mailbox import Mailbox
from opfacade.errors import Issue, OpfacadeError, from_issues
from opfacade.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

MAX_WORLD = 72
_LEAST_TIMEOUT, _PATTERN = 1.0, 4096
Send = Callable[[Frame, "Sequence[Tensor]"], "list[Tensor]"]


@dataclass(frozen=True, slots=True)
class Options:
    max_bytes: int
    channel: int
    timeout_s: float
    warn_s: float
    peer_memory: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """The description that one rank sends of itself."""

    rank: int
    host: str
    pid: int


def usable(process_group: ProcessGroup, options: Options) -> Any:
    """Returns the process group if a Group can use it with these options. GroupError OPF-N005 names the problem."""
    import torch

    issue = _wrong_option(options)
    if issue is None and not callable(getattr(process_group, "rank", None)):
        issue = _issue("process_group", "a ProcessGroup of torch.distributed", type(process_group).__name__)
    if issue is None and process_group.size() > MAX_WORLD:
        issue = _issue("process_group", f"at most {MAX_WORLD} ranks", str(process_group.size()))
    if issue is None and process_group.size() > 1:
        try:
            process_group._get_backend(torch.device("cpu"))
        except RuntimeError:
            hint = 'Make it with backend "cpu:gloo,cuda:nccl", or "gloo".'
            issue = _issue("process_group", "a backend for CPU tensors", "none", hint)
    if issue is not None:
        raise from_issues("Group", "", [issue])
    return process_group


def _wrong_option(options: Options) -> Issue | None:
    if not options.timeout_s >= _LEAST_TIMEOUT:
        return _issue("timeout_s", "at least 1 second", str(options.timeout_s))
    if not options.warn_s > 0:
        return _issue("warn_s", "a number of seconds above 0", str(options.warn_s))
    if type(options.max_bytes) is not int or options.max_bytes < 1:
        return _issue("max_bytes", "a number of bytes", str(options.max_bytes))
    if type(options.channel) is not int or not 0 <= options.channel < 2**20:
        return _issue("channel", "an int of 0 or more", str(options.channel))
    return None


def _issue(argument: str, expected: str, got: str, hint: str = "") -> Issue:
    return Issue("OPF-N005", argument, expected, got, hint, kind="GroupError")


def name_of(process_group: ProcessGroup) -> str:
    """The name that torch gave the process group; "group" if it has none."""
    try:
        return str(process_group.group_name)
    except RuntimeError:
        return "group"


def agreed(mail: Mailbox, options: Options, send: Send) -> tuple[Member, ...]:
    """The members, if all ranks voted yes. If one voted no, GroupError OPF-N005 with the same reason on all ranks."""
    said = json.dumps({"host": platform.node(), "pid": os.getpid(), "must_be_equal": _must_be_equal(options)})
    told_by = [json.loads(text_of(t)) for t in send(Frame(SETUP, 0), [bytes_of(said)] * mail.world)]
    patterns = send(Frame(SETUP, 1), [_pattern(mail.rank, r) for r in range(mail.world)])
    reason = _reason(mail.rank, told_by, patterns)
    votes = [text_of(t) for t in send(Frame(SETUP, 2), [bytes_of(reason)] * mail.world)]
    against = {r: vote for r, vote in enumerate(votes) if vote}
    if against:
        first = min(against)
        raise told("Group", "OPF-N005", "compatible ranks", f"from rank {first}: {against[first]}", tuple(against))
    return tuple(Member(r, found["host"], found["pid"]) for r, found in enumerate(told_by))


def _must_be_equal(options: Options) -> dict[str, object]:
    import torch

    versions = {"opfacade": opfacade.__version__, "torch": torch.__version__}
    return versions | {"max_bytes": options.max_bytes, "timeout_s": options.timeout_s, "peer_memory": options.peer_memory}


def _reason(rank: int, told_by: Sequence[Any], patterns: Sequence[Tensor]) -> str:
    """The reason why this rank votes no; "" means yes."""
    import torch

    own = told_by[rank]["must_be_equal"]
    for other, found in enumerate(told_by):
        for name, value in found["must_be_equal"].items():
            if own[name] != value:
                return f"{name} is {own[name]} here and {value} on rank {other}"
    wrong = [r for r, found in enumerate(patterns) if not torch.equal(found, _pattern(r, rank))]
    return f"wrong data arrived from ranks {wrong}" if wrong else ""


def _pattern(source: int, to: int) -> Tensor:
    """Test bytes that differ for each pair of ranks and each direction."""
    import torch

    return ((torch.arange(_PATTERN, device="cpu") * 31 + source * 7 + to * 13 + 1) % 251).to(torch.uint8)


def compiled(plans: Sequence[Plan[Any]]) -> str:
    """Compiles the plans. Returns the error, or ""."""
    try:
        for plan in plans:
            plan.compile()
    except OpfacadeError as error:
        return str(error).splitlines()[0]
    return ""


def bytes_of(text: str) -> Tensor:
    """A text as the bytes to send, at least one byte."""
    import torch

    return torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)


def text_of(payload: Tensor) -> str:
    return payload.numpy().tobytes().rstrip(b"\0").decode()
