"""`with opfacade.record("trace.jsonl")`: records the problems that a block of code selects and runs, without duplicates, with
counts."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade import telemetry
from opfacade.base import regular_files
from opfacade.base.capture import capturing, device_of
from opfacade.errors import DescriptorError, RecordingError
from opfacade.telemetry import Counter
from opfacade.testing.harness import harness_of
from opfacade.tools.workload import Lengths, Work

_ANY_SIZE = 1 << 62

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.plan import Plan


class _Seen:
    """Recorded facts of one plan."""

    __slots__ = ("lengths", "runs", "selects")

    def __init__(self) -> None:
        self.selects, self.runs = Counter(), Counter()
        self.lengths: Lengths | None = None


class Recorder:
    """Collects plans while it is attached; `works()` returns their problems."""

    def __init__(self, lengths: bool = False) -> None:
        self._read_lengths = lengths
        self._seen: dict[Plan[Any], _Seen] = {}

    def selected(self, plan: Plan[Any]) -> None:
        (self._seen.get(plan) or self._seen.setdefault(plan, _Seen())).selects.add()

    def ran(self, plan: Plan[Any], args: Args) -> None:
        seen = self._seen.get(plan) or self._seen.setdefault(plan, _Seen())
        seen.runs.add()
        if self._read_lengths and seen.lengths is None and not capturing(device_of(args)):
            with contextlib.suppress(DescriptorError):  # negative lengths are invalid, but recording must not fail a run
                seen.lengths = lengths_of(plan.descriptor, args)

    def works(self) -> dict[Plan[Any], Work]:
        """{plan: work}, one entry for each problem, preference and target, ordered by number of runs, largest first."""
        same: dict[Any, list[Plan[Any]]] = {}
        for plan in list(self._seen):
            same.setdefault((plan.descriptor, plan.preference, plan.target), []).append(plan)
        found = {plans[0]: self._work(plans) for plans in same.values()}
        return dict(sorted(found.items(), key=lambda item: -item[1].runs))

    def _work(self, plans: list[Plan[Any]]) -> Work:
        seen = [self._seen[plan] for plan in plans]
        lengths = next((s.lengths for s in seen if s.lengths is not None), None)
        runs, selects = sum(s.runs.value() for s in seen), sum(s.selects.value() for s in seen)
        return Work(plans[0].descriptor, plans[0].preference, runs, selects, lengths)

    def text(self) -> str:
        return "".join(f"{work.line(plan)}\n" for plan, work in self.works().items())


@contextlib.contextmanager
def record(path: str | os.PathLike[str], lengths: bool = False) -> Iterator[Recorder]:
    """Writes the problems that any thread selects or runs in the block to `path` when the block ends, also if it ends with an
    exception.

    lengths: also record the lengths of the requests in one call of each problem. This reads index tensors on the host, so it
    waits for the device once per problem. The file is replaced atomically. Raises RecordingError before the block if `path` is
    a directory, a device or not writable. If this is found only at the end, the error contains the text of the recording and
    the name of the file in which it was saved."""
    place = Path(path)
    handle, name = _made_beside(place)
    recorder = Recorder(lengths)
    detach = telemetry.attach(recorder)
    try:
        yield recorder
    finally:
        detach()
        _write(recorder.text(), handle, name, place)


def _made_beside(place: Path) -> tuple[int, str]:
    """Creates a temporary file in the directory of `place`, so that it can later replace `place` atomically."""
    try:
        if os.path.exists(place):
            regular_files.require_regular(place, _ANY_SIZE)
        return tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except ValueError as error:  # a NUL
        raise _unwritable(place, OSError(errno.EINVAL, str(error), str(place))) from error
    except OSError as error:
        raise _unwritable(place, error) from error


def _write(text: str, handle: int, name: str, place: Path) -> None:
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise _unwritable(place, error, text, _kept_elsewhere(text)) from error
    try:
        os.replace(name, place)
    except OSError as error:
        raise _unwritable(place, error, text, name) from error


def _kept_elsewhere(text: str) -> str:
    """The name of a temporary file that contains the text; empty if it cannot be written either."""
    try:
        handle, name = tempfile.mkstemp(prefix="opfacade-recording-", suffix=".jsonl")
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except OSError:
        return ""
    return name


def _unwritable(place: Path, why: OSError, text: str = "", kept: str = "") -> RecordingError:
    hint = f" The recording is in {kept}." if kept else " The error's `recording` is its text." if text else ""
    message = f"record: path expected a file that can be written, got {place}: {why.strerror}.{hint} [OPF-E003]"
    error = RecordingError.of(message, why)
    error.recording, error.kept = text, kept
    return error


def lengths_of(descriptor: Descriptor[Any], args: Args) -> Lengths | None:
    """Lengths of the requests of a call, read on the host; None for an op without requests."""
    found = harness_of(descriptor).lengths_of_call(descriptor, args)
    return None if found is None else Lengths(q=found.q, kv=found.kv)
