"""P1 and P4: torch's symmetric memory without multicast, and what happens to a rank when a peer dies or stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.ranks.process import Ranks

_WORDS = 1 << 18


def rendezvous(ranks: Ranks) -> dict[str, Any]:
    """P1: the seconds of a rendezvous; whether data arrive between every pair in both directions, also after a free; whether
    multicast is off."""
    import torch

    pg = ranks.join()
    if ranks.cpu:
        return {"failed": "on CPUs there is none"}
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    dist.all_reduce(torch.ones(1, device=ranks.device), group=pg)  # beside NCCL
    found: dict[str, Any] = {"rounds": []}
    for size in (1 << 20, 1 << 26):
        start = time.monotonic()
        buffer = symm.empty(size // 4, dtype=torch.int32, device=ranks.device)
        handle = symm.rendezvous(buffer, pg.group_name)
        seconds = time.monotonic() - start
        wrong = pairs_that_differ(ranks, buffer, handle)
        facts = {"bytes": size, "seconds": seconds, "wrong_pairs": wrong}
        found["rounds"].append(facts | {"multicast": bool(getattr(handle, "multicast_ptr", 0))})
        del handle, buffer
        ranks.meet()
    found["expandable_segments"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return found


def pairs_that_differ(ranks: Ranks, buffer: Any, handle: Any) -> list[list[Any]]:
    """Pairs with wrong data: after writes to a peer's memory, and then after reads of it."""
    import torch

    count = buffer.numel() // ranks.world
    words = torch.arange(count, dtype=torch.int32, device=buffer.device)
    for peer in range(ranks.world):
        theirs = handle.get_buffer(peer, (buffer.numel(),), torch.int32)
        theirs[ranks.rank * count : (ranks.rank + 1) * count] = words * 31 + ranks.rank * 7 + peer
    ranks.meet()
    wrong: list[list[Any]] = []
    for source in range(ranks.world):
        own = buffer[source * count : (source + 1) * count]
        if not torch.equal(own, words * 31 + source * 7 + ranks.rank):
            wrong.append([source, "pushed"])
        theirs = handle.get_buffer(source, (buffer.numel(),), torch.int32)
        read = theirs[ranks.rank * count : (ranks.rank + 1) * count]
        if not torch.equal(read, words * 31 + ranks.rank * 7 + source):
            wrong.append([source, "read"])
    ranks.meet()
    return wrong


def peer_memory(ranks: Ranks) -> dict[str, Any]:
    """P4: writes to the memory of a rank that stops for a second, and then of a rank that is killed."""
    import torch

    pg = ranks.join()
    if ranks.cpu:
        return {"failed": "on CPUs there is none"}
    import torch.distributed._symmetric_memory as symm

    buffer = symm.empty(_WORDS, dtype=torch.int32, device=ranks.device)
    handle = symm.rendezvous(buffer, pg.group_name)
    (ranks.folder / f"pid{ranks.rank}").write_text(str(os.getpid()))
    ranks.meet()
    if ranks.rank:
        time.sleep(40)  # it is killed
        return {}
    pid = int((ranks.folder / "pid1").read_text())
    theirs, found = handle.get_buffer(1, (_WORDS,), torch.int32), {}
    found["alive"] = _pushed(theirs, 0.3)
    os.kill(pid, signal.SIGSTOP)
    found["stopped"] = _pushed(theirs, 1.0)
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    found["killed"] = _pushed(theirs, 2.0)
    found["context"] = _tried(lambda: float(torch.ones(8, device=ranks.device).sum()))
    found["new_memory"] = _tried(lambda: float(symm.empty(64, dtype=torch.float32, device=ranks.device).fill_(1).sum()))
    return found


def _pushed(theirs: Any, seconds: float) -> Any:
    """The number of successful writes, or the error."""
    import torch

    def pushes() -> int:
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            theirs.add_(1)
            torch.cuda.synchronize()
            count += 1
        return count

    return _tried(pushes)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:
        return "error: " + str(error).splitlines()[0][:200]


def library(ranks: Ranks) -> dict[str, Any]:
    """P4 with NCCL: a peer dies while this rank waits for it, eagerly or in a replay. Measures the seconds until an abort ends
    the wait."""
    import torch
    import torch.distributed as dist

    pg = ranks.join()
    if ranks.cpu:
        return {"failed": "gloo has waits of its own"}
    x = torch.ones(1 << 16, device=ranks.device)
    dist.all_reduce(x, group=pg)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(3):
            dist.all_reduce(x, group=pg)
    graph.replay()
    ranks.meet()
    if ranks.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    graph.replay()
    done = torch.cuda.Event()
    done.record()
    time.sleep(1.5)
    found: dict[str, Any] = {"waits_until_aborted": not done.query()}
    start = time.monotonic()
    abort = threading.Thread(target=lambda: _tried(pg._get_backend(ranks.device).abort), daemon=True)
    abort.start()
    while not _over(done) and time.monotonic() - start < 10:
        time.sleep(0.01)
    found |= {"ended": _over(done), "abort_seconds": time.monotonic() - start}
    if found["ended"]:
        found["sync"] = _tried(lambda: str(torch.cuda.synchronize()))
        found["context"] = _tried(lambda: float(torch.ones(8, device=ranks.device).sum()))
        abort.join(1.0)
        found["abort_waits_for_graphs"] = abort.is_alive()
        graph.reset()
        abort.join(10.0)
        found["abort_ends_after_reset"] = not abort.is_alive()
    return found


def _over(done: Any) -> bool:
    try:
        return bool(done.query())
    except RuntimeError:
        return True
