"""Worlds of processes on gloo, or on NCCL with a GPU each.

Every wait ends: at the deadline the remaining processes are killed, and their state is reported. The time of a scenario begins
when all ranks have started: on a busy machine that takes longer than most scenarios."""

import faulthandler
import json
import multiprocessing
import os
import signal
import time
import traceback
from datetime import timedelta

_PRELOAD = ["torch", "torch.distributed", "tests.distributed.scenarios", "tests.distributed.link_scenarios"]
NCCL = "cpu:gloo,cuda:nccl"
_START = 120  # seconds until all ranks have started
_context = None


def _server():
    """Processes are forked from a clean one that has imported everything, which makes a start ten times as fast."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(_PRELOAD)
    return _context


def new_process_group(folder, name, rank, world, backend="gloo"):
    """A process group over a new store in a file, which survives the death of any rank."""
    import torch.distributed as dist

    dist.init_process_group(
        backend,
        store=dist.FileStore(f"{folder}/store-{name}", world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    return dist.group.WORLD


def _on_gpu(rank):
    """Selects this rank's GPU, without multicast. torch's watchdog would end the process if a peer dies."""
    import torch

    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
    torch.cuda.set_device(rank)


def _main(folder, rank, world, scenario, deadline, dead, backend):
    import torch

    torch.set_num_threads(1)
    if "nccl" in backend:
        _on_gpu(rank)
    with open(f"{folder}/{rank}.stack", "w") as stack:
        try:
            group = new_process_group(folder, "first", rank, world, backend)
            _say(folder, f"{rank}.started", None)
            _wait_for(folder, "started", range(world), _START)
            faulthandler.dump_traceback_later(deadline, file=stack)
            found = scenario(rank, group, folder)
        except BaseException:
            found = {"error": traceback.format_exc()}
        _say(folder, f"{rank}.json", found)
        # A process that ends immediately may discard frames for which others still wait.
        _wait_for(folder, "json", [r for r in range(world) if r not in dead], 30)
        os._exit(0)  # threads that wait for dead ranks end with the process


def _say(folder, name, what):
    with open(f"{folder}/{name}", "w") as file:
        json.dump(what, file)


def _wait_for(folder, what, ranks, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(os.path.exists(f"{folder}/{r}.{what}") for r in ranks):
        time.sleep(0.01)


def run(folder, world, scenario, dead=(), seconds=60, backend="gloo"):
    """The results of `scenario(rank, process_group, folder)` by rank, which may take `seconds`; none of ranks in `dead`."""
    processes = [
        _server().Process(target=_main, args=(str(folder), r, world, scenario, seconds - 2, dead, backend), daemon=True)
        for r in range(world)
    ]
    for process in processes:
        process.start()
    try:
        _wait_for(folder, "started", range(world), _START)
        end = time.monotonic() + seconds
        for rank, process in enumerate(processes):
            if rank not in dead:
                process.join(max(0.0, end - time.monotonic()))
        stacks = {r: (folder / f"{r}.stack").read_text()[-3000:] for r in range(world) if (folder / f"{r}.stack").exists()}
        return {r: _result(folder, r, stacks) for r in range(world) if r not in dead}
    finally:
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(5)


def _result(folder, rank, stacks):
    path = folder / f"{rank}.json"
    told = "".join(f"\nrank {r}: {stack or 'no stack'}" for r, stack in stacks.items())
    assert path.exists(), f"rank {rank} did not end{told}"
    found = json.loads(path.read_text())
    assert not isinstance(found, dict) or "error" not in found, f"rank {rank}: {found['error']}"
    return found
