"""Scenarios for the ranks in tests of rounds between GPUs. `link_of` gives a group a link over gloo, on CPU tensors."""

import os
import signal
import threading
import time
from contextlib import suppress

import torch

from opfacade.distributed import Group
from opfacade.distributed.link import Link
from opfacade.distributed.watch import Watch
from opfacade.errors import GroupError
from tests.distributed import calls
from tests.distributed.scenarios import say, wait_for

HASTY = 2.0


def linked(pg, plans, channel=0, **options):
    """A group whose rounds use a link between CPUs."""
    group = Group(pg, channel=channel, **({"timeout_s": 30} | options))
    group.link = Link(pg, torch.device("cpu"))
    group._watch = Watch(group, group._mail, group.link)
    group.reserve(plans)
    return group


def same_bits(rank, pg, folder):
    world = pg.size()
    known = calls.descriptors(world)
    plans = [calls.plan_for(d, "cpu") for d in known.values()]
    by_host = Group(pg, channel=0, timeout_s=30)
    by_host.reserve(plans)
    by_link, differ = linked(pg, plans, 1), []
    for name, descriptor in known.items():
        call = calls.call_of(name, descriptor, rank)
        one, other = (calls.bits(calls.run(call, group, "cpu")) for group in (by_host, by_link))
        if one != other:
            differ.append(name)
    made = by_link.link.ended
    by_link.check()
    return {"differ": differ, "calls": made}


def other_seed(rank, pg, folder):
    descriptor = calls.descriptors(pg.size())["draw"]
    group = linked(pg, [calls.plan_for(descriptor, "cpu")], fill_id=-7)
    call = calls.call_of("draw", descriptor, rank)
    before = calls.run(call, group, "cpu")["token"]
    if rank == 2:
        call.inputs["seed"][3] += 1
    try:
        after = calls.run(call, group, "cpu")["token"].tolist()
    except GroupError:  # the watch reacted quickly
        after = [-7] * 5
    return {"before": bool((before >= 0).all()), "after": after, "told": told(group)[:2]}


def told(group, seconds=20):
    """The failure that the watch reports: (code, ranks, text)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            group.check()
        except GroupError as error:
            return [error.code, list(error.ranks), str(error)]
        time.sleep(0.01)
    return ["none", [], ""]


def skips(rank, pg, folder):
    """Rank 1 skips the second call."""
    descriptor = calls.descriptors(2)["all_reduce"]
    group = linked(pg, [calls.plan_for(descriptor, "cpu")], timeout_s=HASTY)
    call = calls.call_of("all_reduce", descriptor, rank)
    calls.run(call, group, "cpu")
    start = time.monotonic()
    if rank == 0:  # the host blocks in gloo, unlike in NCCL
        threading.Thread(target=quietly, args=(call, group), daemon=True).start()
    code, ranks, text = told(group)
    return {"told": [code, ranks], "text": text, "seconds": time.monotonic() - start}


def quietly(call, group):
    with suppress(GroupError, RuntimeError):
        calls.run(call, group, "cpu")


def killed(rank, pg, folder):
    """Rank 1 dies while rank 0 waits for it."""
    descriptor = calls.descriptors(2)["all_reduce"]
    group = linked(pg, [calls.plan_for(descriptor, "cpu")])
    call = calls.call_of("all_reduce", descriptor, rank)
    calls.run(call, group, "cpu")
    say(folder, f"sound {rank}")
    wait_for(folder, "sound 0", "sound 1")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    threading.Thread(target=quietly, args=(call, group), daemon=True).start()
    code, ranks, text = told(group)
    return {"told": [code, ranks], "text": text, "seconds": time.monotonic() - start}
