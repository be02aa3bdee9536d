"""Starts the ranks of a probe: one process per rank, which is killed at the deadline of the probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

_FLAGS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}

_TURN = "turn"  # a file: the probe may begin


@dataclass
class Ranks:
    """The directory of a probe, its device, and a process group."""

    rank: int
    world: int
    folder: Path
    cpu: bool

    def await_turn(self) -> None:
        """Imports the modules that every probe needs, and waits until this probe may begin."""
        import torch
        import torch.distributed  # noqa: F401 - before the turn

        parent = os.getppid()
        while not (self.folder / _TURN).exists():
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(0.01)

    @property
    def peer_memory(self) -> bool:
        return not self.cpu and os.environ.get("OPFACADE_BENCH_LINK") != "nccl"

    def join(self) -> Any:
        """The process group, with a file store."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if not self.cpu:
            torch.cuda.set_device(self.rank)
        backend = "gloo" if self.cpu else "cpu:gloo,cuda:nccl"
        store = dist.FileStore(str(self.folder / "store"), self.world)
        wait = timedelta(seconds=60)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=wait)
        return dist.group.WORLD

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cpu") if self.cpu else torch.device("cuda", self.rank)

    def meet(self) -> None:
        """Synchronises all ranks on the host."""
        import torch
        import torch.distributed as dist

        if not self.cpu:
            torch.cuda.synchronize()
        dist.all_reduce(torch.zeros(1))

    def slowest(self, values: list[float]) -> list[float]:
        """The largest of each value over ranks."""
        import torch
        import torch.distributed as dist

        told = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return [float(value) for value in told]

    def keep(self, found: dict[str, Any]) -> None:
        """Saves this partial result for the record, in case the probe does not finish."""
        if self.rank == 0:
            (self.folder / "partial.json").write_text(json.dumps(found))


class Started:
    """Starts the ranks of a probe ahead of time, so that their imports are done when it begins. alone: only rank 0."""

    def __init__(self, probe: str, world: int, cpu: bool, alone: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._processes = [_start(probe, rank, world, cpu, self._folder.name) for rank in range(1 if alone else world)]

    def run(self, seconds: float, dead: tuple[int, ...] = ()) -> dict[str, Any]:
        """The result of rank 0; {"failed": reason} if a rank was late or failed. dead: ranks that may die."""
        started, folder = time.monotonic(), Path(self._folder.name)
        with self._folder:
            (folder / _TURN).touch()
            living = [r for r in range(len(self._processes)) if r not in dead]
            for rank in living:
                _await(self._processes[rank], started + seconds)
            late = [rank for rank, process in enumerate(self._processes) if process.poll() is None]
            for process in self._processes:
                process.kill()
                process.wait()
            found = _found(folder, living, late, seconds)
        return found | {"seconds": round(time.monotonic() - started, 1)}


def run(probe: str, world: int, cpu: bool, seconds: float, dead: tuple[int, ...] = (), alone: bool = False) -> dict[str, Any]:
    """Lets the probe begin and returns its result."""
    return Started(probe, world, cpu, alone).run(seconds, dead)


def _start(probe: str, rank: int, world: int, cpu: bool, folder: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "bench.distributed", "--probe", probe, "--rank", str(rank), "--world", str(world)]
    words += ["--folder", folder] + (["--cpu"] if cpu else [])
    log = open(f"{folder}/{rank}.log", "wb")  # noqa: SIM115 - the process has it
    return subprocess.Popen(words, env=os.environ | _FLAGS, stdout=log, stderr=log)


def _await(process: subprocess.Popen[bytes], end: float) -> None:
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return


def _found(folder: Path, living: list[int], late: list[int], seconds: float) -> dict[str, Any]:
    texts = {rank: folder / f"{rank}.json" for rank in living}
    lost = [rank for rank, path in texts.items() if not path.exists()]
    if lost:
        why = f"no end within {seconds:g} s" if set(lost) & set(late) else "ended without a result"
        tail = (folder / f"{lost[0]}.log").read_text(errors="replace")[-1500:]
        partial = folder / "partial.json"
        some = json.loads(partial.read_text()) if partial.exists() else {}
        return {"failed": f"ranks {lost}: {why}", "log": tail} | some
    found = {rank: json.loads(path.read_text()) for rank, path in texts.items()}
    errors = {rank: one["error"] for rank, one in found.items() if "error" in one}
    if errors:
        return {"failed": "; ".join(f"rank {rank}: {text[-1200:]}" for rank, text in errors.items())}
    return dict(found[living[0]])
