"""OPFACADE_LOG: one JSON line before each launch, written at once, so that it survives a crash of what follows.

A line says which descriptor, which SKU, and what every tensor is. `stats` adds minimum, maximum, mean and the number of
NaN; `dump` writes all tensors too, for `opfacade replay`. Both wait for the device. None looks inside a tensor while a CUDA
graph is being captured. Decided when a plan is loaded: where nothing is logged, nothing stands around the launcher.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from opfacade import dumps, env
from opfacade.errors import unwritable

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.descriptor import Descriptor
    from opfacade.registry import Launcher
    from opfacade.sku import KernelSku

_calls = count()


def wrap(launch: Launcher, descriptor: Descriptor[Any], sku: KernelSku) -> Launcher:
    """`launch` itself where nothing is logged, else a launcher that tells of each call first."""
    mode = env.log()
    return launch if mode is None else _Logged(launch, descriptor, sku, mode, env.log_dest())


@dataclass(frozen=True, slots=True)
class _Logged:
    launch: Launcher
    descriptor: Descriptor[Any]
    sku: KernelSku
    mode: str
    destination: str

    def __call__(self, args: Any, workspace: Any) -> None:
        call, looking = next(_calls), not _capturing()
        tensors = dict(_tensors(args))
        line = {"event": "launch", "call": call, "time": time.time(), "pid": os.getpid(), "op": self.descriptor.op}
        line |= {"sku": self.sku.id, "descriptor": self.descriptor.model_dump(mode="json")}
        stats = self.mode == "stats" and looking
        line["args"] = {name: _metadata(t) | (statistics(t) if stats else {}) for name, t in tensors.items()}
        line["workspace"] = None if workspace is None else _metadata(workspace)
        place = dumps.begin(self.descriptor, self.sku, tensors, call) if self.mode == "dump" and looking else None
        self._write(line | ({"dump": str(place)} if place else {}))
        self.launch(args, workspace)
        written = {name: tensors[name] for name, spec in self.descriptor.operands().items() if spec.written}
        if stats:
            self._write({"event": "outputs", "call": call, "args": {name: statistics(t) for name, t in written.items()}})
        if place:
            dumps.finish(place, written)

    def _write(self, line: dict[str, Any]) -> None:
        write(self.destination, json.dumps(line) + "\n")


def write(destination: str, text: str) -> None:
    """Append to stderr, stdout or a file (%p: the process id) in one system call, past all buffers."""
    if destination in ("stderr", "stdout"):
        stream = sys.stderr if destination == "stderr" else sys.stdout
        stream.write(text)
        stream.flush()
        return
    path = destination.replace("%p", str(os.getpid()))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unwritable("OPFACADE_LOG_DEST", path, error) from error
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def statistics(tensor: Tensor) -> dict[str, Any]:
    """min, max, mean (over what is not NaN) and the number of NaN; nothing of an empty tensor. Waits for the device."""
    if not tensor.numel():
        return {}
    values = tensor.detach().double()
    sound = values[~values.isnan()]
    found: dict[str, Any] = {"nan": values.numel() - sound.numel()}
    if sound.numel():
        found |= {"min": float(sound.min()), "max": float(sound.max()), "mean": float(sound.mean())}
    return found


def _tensors(args: Any) -> Iterator[tuple[str, Tensor]]:
    for name in args.__slots__:
        value = getattr(args, name)
        if value is not None:
            yield name, value


def _metadata(tensor: Tensor) -> dict[str, Any]:
    facts = {"shape": list(tensor.shape), "stride": list(tensor.stride()), "dtype": str(tensor.dtype).removeprefix("torch.")}
    return {**facts, "device": str(tensor.device), "address": hex(tensor.data_ptr())}


def _capturing() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
