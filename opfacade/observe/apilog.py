"""OPFACADE_LOG: one JSON line before each launch, written immediately, so that it survives a crash of the launch.

A line contains the descriptor, the SKU, and the metadata of every tensor. `stats` adds minimum, maximum, mean and the number of
NaN of each tensor; for a pool, over the tokens that the page table references. `dump` writes the inputs of the call, for
`opfacade replay`. Both wait for the device. While a CUDA graph is being captured, no mode reads the contents of tensors.
Non-finite numbers become strings ("NaN", "Infinity", "-Infinity"). The mode is read when a plan is loaded. Without logging, the
launcher is not wrapped.

A failure of the log never fails a run. A line, statistics or a dump that cannot be written is dropped and counted in
`telemetry.counts()` as "log_lines_dropped", "log_statistics_dropped" or "dumps_dropped"; the first failure of each kind gives a
DroppedWarning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from opfacade import env, telemetry
from opfacade.base import json_text, line_file
from opfacade.base.capture import capturing, device_of
from opfacade.core.descriptor import operands_of
from opfacade.observe import call_pages, call_statistics, dumps

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.core.sku import KernelSku

_calls = count()


def wrap(launch: Launcher, descriptor: Descriptor[Any], sku: KernelSku) -> Launcher:
    """`launch` itself if nothing is logged, otherwise a launcher that logs each call before it."""
    mode = env.log()
    if mode is None:
        return launch
    dumper = dumps.Dumper.of(descriptor, sku) if mode == "dump" else None
    return _Logged(launch, descriptor, sku, mode == "stats", dumper, env.log_dest())


@dataclass(slots=True)
class _Call:
    """One call that is being logged. looking: whether its tensors may be read; false during a graph capture."""

    number: int
    tensors: dict[str, Tensor]
    looking: bool
    pages: call_pages.Pages | None = None
    dump: dumps.Started | None = None


@dataclass(frozen=True, slots=True)
class _Logged:
    launch: Launcher
    descriptor: Descriptor[Any]
    sku: KernelSku
    stats: bool
    dumper: dumps.Dumper | None
    destination: str

    def __call__(self, args: Args, workspace: torch.Tensor | None) -> None:
        call = _Call(next(_calls), dict(_tensors(args)), not capturing(device_of(args)))
        self._before(call, workspace)
        self.launch(args, workspace)
        if call.looking:
            self._after(call)

    def _before(self, call: _Call, workspace: torch.Tensor | None) -> None:
        described = {name: _metadata(t) for name, t in call.tensors.items()}
        if call.looking and self.stats:
            for name, facts in self._statistics(call, call.tensors).items():
                described[name] |= facts
        if call.looking and self.dumper is not None:
            with _dropped("dumps_dropped", "OPFACADE_DUMP_DIR"):
                call.pages = call_pages.pages(self.descriptor, call.tensors)
                call.dump = self.dumper.begin(call.tensors, call.number, call.pages)
        line = {"event": "launch", "call": call.number, "time": time.time(), "pid": os.getpid(), "op": self.descriptor.op}
        line |= {"sku": self.sku.id, "descriptor": self.descriptor.model_dump(mode="json"), "args": described}
        line["workspace"] = None if workspace is None else _metadata(workspace)
        self._write(line | ({"dump": str(call.dump.place)} if call.dump else {}))

    def _after(self, call: _Call) -> None:
        written = {name: call.tensors[name] for name, spec in operands_of(self.descriptor).items() if spec.written}
        if self.stats:
            found = self._statistics(call, written)
            self._write({"event": "outputs", "call": call.number, "args": found})
        if self.dumper is not None and call.dump is not None:
            with _dropped("dumps_dropped", "OPFACADE_DUMP_DIR"):
                self.dumper.finish(call.dump, written)

    def _statistics(self, call: _Call, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        with _dropped("log_statistics_dropped", "OPFACADE_LOG=stats"):
            call.pages = call.pages or call_pages.pages(self.descriptor, call.tensors)
            return call_statistics.of_call(self.descriptor, tensors, call.pages)
        return {}

    def _write(self, line: dict[str, Any]) -> None:
        with _dropped("log_lines_dropped", f"OPFACADE_LOG_DEST={self.destination}"):
            _place(self.destination, os.getpid()).append(json_text.text(line) + "\n")


@contextmanager
def _dropped(name: str, variable: str) -> Iterator[None]:
    """Catches failures in the block, so that the run goes on: a file error, a closed stream (ValueError), or torch out of
    memory."""
    try:
        yield
    except (*dumps.FAILURES, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        telemetry.drop(name, f"{variable}: {type(error).__name__}: {reason}; what could not be written is dropped. [OPF-E002]")


@lru_cache(maxsize=64)
def _place(destination: str, pid: int) -> line_file.LineFile:
    """One file object for all plans, because it remembers a line that was only partly written."""
    return (line_file.Stream if destination in ("stderr", "stdout") else line_file.LineFile)(destination)


def _tensors(args: Args) -> Iterator[tuple[str, Tensor]]:
    for name in args.__slots__:
        value = getattr(args, name)
        if value is not None:
            yield name, value


def _metadata(tensor: Tensor) -> dict[str, Any]:
    facts = {"shape": list(tensor.shape), "stride": list(tensor.stride()), "dtype": str(tensor.dtype).removeprefix("torch.")}
    return {**facts, "device": str(tensor.device), "address": hex(tensor.data_ptr())}
