"""Code of one rank in tests of ranks that die while a group is created or used, whose store is on rank 0 as under torchrun."""

import os
import signal
from datetime import timedelta

from opfacade.distributed import Group
from opfacade.errors import GroupError
from tests.distributed.scenarios import add, say, sums, wait_for
from tests.distributed.worlds import new_process_group


def dies(rank, pg, folder, stage, victim):
    """[code, ranks, text, the sum that the others then compute in a new group]. stage: what the victim does not do any more."""
    import torch.distributed as dist

    world, group = pg.size(), None
    dist.destroy_process_group()
    pg = stored_on_rank_0(folder, rank, world)
    try:
        _last_act(folder, "group", stage, rank, victim, world)
        group = Group(pg, timeout_s=20)
        _last_act(folder, "reserve", stage, rank, victim, world)
        group.reserve([sums(world)])
        _last_act(folder, "run", stage, rank, victim, world)
        add(sums(world), group)
    except GroupError as error:
        found = [error.code, list(error.ranks), str(error)]
    if group is not None:
        group.abort()
    say(folder, f"aborted {rank}")
    dist.distributed_c10d._abort_process_group()
    again = Group(new_process_group(folder, "after", rank - (rank > victim), world - 1), timeout_s=30)
    again.reserve([sums(world - 1)])
    return [*found, add(sums(world - 1), again).flatten().tolist()]


def _last_act(folder, here, stage, rank, victim, world):
    """The victim dies before `stage`, once all ranks have come there: its last frames may be lost with it."""
    if here != stage:
        return
    say(folder, f"{stage} {rank}")
    wait_for(folder, *(f"{stage} {r}" for r in range(world)))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and here != "group":  # before there is a group, an abort sends no alarm
        (other,) = {0, 1, 2} - {victim, rank}
        wait_for(folder, f"aborted {other}")  # a survivor that has aborted its group must not be blamed


def stored_on_rank_0(folder, rank, world):
    """A process group whose store is a server in rank 0, on a free port."""
    import torch.distributed as dist

    wait, port = timedelta(seconds=60), f"{folder}/port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False, timeout=wait)
        with open(f"{port}.tmp", "w") as file:
            file.write(str(store.port))
        os.rename(f"{port}.tmp", port)
    else:
        wait_for(folder, "port")
        with open(port) as file:
            store = dist.TCPStore("127.0.0.1", int(file.read()), world, is_master=False, timeout=wait)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=wait)
    return dist.group.WORLD
