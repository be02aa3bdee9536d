"""Code of one rank in each test of failures; results are values that JSON can represent."""

import os
import signal
import threading
import time
import warnings

import torch

from opfacade import Plan
from opfacade.distributed import Group
from opfacade.errors import GroupError, LagWarning
from opfacade.plans.collective import (
    CollectiveArgs,
    CollectiveDescriptor,
    LogprobAcrossArgs,
    LogprobAcrossDescriptor,
    SampleAcrossArgs,
    SampleAcrossDescriptor,
)
from tests.distributed.worlds import new_process_group

HASTY = 4  # s: a loaded machine may stop a healthy rank for one or two seconds


def sums(world, width=5):
    counts = (2,) + (0,) * (world - 1)
    return Plan.select(CollectiveDescriptor(world=world, kind="all_reduce", counts=counts, width=width, dtype="f32"))


def gathers(world):
    return Plan.select(CollectiveDescriptor(world=world, kind="all_gather", counts=(1,) * world, width=3, dtype="f32"))


def logprobs(world):
    return Plan.select(LogprobAcrossDescriptor(world=world, total_num_rows=2, vocab=4 * world, shard=4, dtype="f32", tile=4))


def add(plan, group):
    """The sum of rank + 1 over all ranks, computed by the plan."""
    args = CollectiveArgs(
        x=torch.full((2, plan.descriptor.width), group.rank + 1.0), out=torch.zeros(2, plan.descriptor.width), group=group
    )
    plan.run(args)
    return args.out


def failure(call):
    """[code, ranks] of the GroupError that a call raises."""
    try:
        call()
    except GroupError as error:
        return [error.code, list(error.ranks)]
    return None


def failed_run(plan, group):
    """[failure, whether outputs are NaN, failure of check, failure of the next run]"""
    args = CollectiveArgs(x=torch.zeros(2, 5), out=torch.zeros(2, 5), group=group)
    if plan.descriptor.kind == "all_gather":
        args = CollectiveArgs(x=torch.zeros(1, 3), out=torch.zeros(group.world, 3), group=group)
    first = failure(lambda: plan.run(args))
    return [first, bool(args.out.isnan().all()), failure(group.check), failure(lambda: plan.run(args))]


def reserved(pg, channel, *plans, **options):
    group = Group(pg, channel=channel, **{"timeout_s": 30} | options)
    group.reserve(plans)
    return group


def together(rank, pg, folder):
    """Groups on one process group: valid uses, and errors before or instead of a call."""
    world, found = pg.size(), {}
    group = Group(pg, timeout_s=30, name="first")
    a = sums(world)
    found["members"] = [[m.rank, m.pid == os.getpid()] for m in group.members]
    found["before_reserve"] = failure(lambda: add(a, group))
    found["same_channel"] = failure(lambda: Group(pg))
    group.reserve([a])
    found["sum"] = add(a, group).flatten().tolist()
    found["by_name"] = by_name(a, rank)
    found["again"] = add(a, group).flatten().tolist()
    found["not_reserved"] = failure(lambda: add(sums(world, 3), group))
    found["reserve_again"] = failure(lambda: group.reserve([a]))
    found["counts"] = [group.statistics.calls > 3, group.statistics.bytes > 0]
    found["two_threads"] = two_threads(a, group)
    group.close()
    found["closed"] = failure(lambda: add(a, group))
    small = Group(pg, max_bytes=100, channel=1)
    found["too_large"] = failure(lambda: small.reserve([a]))
    found["other_bytes"] = failure(lambda: Group(pg, max_bytes=1000 + (rank == 1), channel=2, timeout_s=30))
    found["other_world"] = failure(lambda: Group(pg, channel=3).reserve([sums(world + 1)]))
    return found


def elsewhere(rank, pg, folder):
    """Calls of a group that is created within a default device."""
    from tests.distributed import link_scenarios

    plan, cpu = sums(2), torch.device("cpu")
    with torch.device("meta"):
        group = Group(pg, timeout_s=30)
        group.reserve([plan])
        gathered = link_scenarios.linked(pg, [plan], 1)
        x, out = torch.full((2, 5), float(rank + 1), device=cpu), [torch.zeros(2, 5, device=cpu) for _ in range(2)]
        for own, to in zip((group, gathered), out, strict=True):
            plan.run(CollectiveArgs(x=x, out=to, group=own))
            own.check()
    return {"by_host": out[0].flatten().tolist(), "by_link": torch.equal(*out)}


def by_name(plan, rank):
    """The same through a torch op, which takes the name of the group."""
    import opfacade.torch_ops  # noqa: F401

    x, out = torch.full((2, 5), rank + 1.0), torch.zeros(2, 5)
    torch.ops.opfacade.collective(plan.handle, x, out, group="first")
    return out.flatten().tolist()


def two_threads(plan, group):
    """A second thread's call while the first one waits for rank 0."""
    if group.rank == 0:
        time.sleep(0.5)
        add(plan, group)
        return ["OPF-N003", []]
    caught = []
    first = threading.Thread(target=lambda: add(plan, group))
    first.start()
    while not group._busy.locked():
        time.sleep(0.001)
    caught = failure(lambda: add(plan, group))
    first.join(30)
    return caught


def apart(rank, pg, folder):
    """Ranks that make different calls: one channel for each case."""
    world, found = pg.size(), {}
    a, b = sums(world), gathers(world)
    other = Group(pg, channel=1, timeout_s=30)
    found["other_plan"] = failure(lambda: other.reserve([b if rank == 1 else a]))
    group = reserved(pg, 2, a, b)
    found["other_call"] = failed_run(b if rank == 2 else a, group)
    group = reserved(pg, 3, a, timeout_s=HASTY)
    if rank == 1:  # this rank makes one call fewer, and reads the failure later
        found["fewer_calls"] = told_later(group)
    else:
        found["fewer_calls"] = failed_run(a, group)
    group = reserved(pg, 4, a)
    if rank == 0:
        group.close()
    found["closed"] = [["OPF-N001", [0]], True, ["OPF-N004", [0]], ["OPF-N004", []]] if rank == 0 else failed_run(a, group)
    found["other_target"] = other_target(rank, pg)
    found["other_seeds"] = other_seeds(rank, pg, 7)
    found["in_range"] = other_seeds(rank, pg, 8, fill_id=3)
    found["late"] = late(rank, pg, a)
    return found


def told_later(group):
    end = time.monotonic() + 20
    while failure(group.check) is None and time.monotonic() < end:
        time.sleep(0.01)
    return failure(group.check)


def other_target(rank, pg):
    """Rank 2 passes other targets than the other ranks."""
    plan = logprobs(pg.size())
    group = reserved(pg, 5, plan)
    target = torch.tensor([1, 2 + (rank == 2)], dtype=torch.int32)
    args = LogprobAcrossArgs(logits=torch.zeros(2, 4), label=target, out=torch.zeros(2), lse=torch.zeros(2), group=group)
    return [failure(lambda: plan.run(args)), bool(args.out.isnan().all() and args.lse.isnan().all())]


def ends(rank, pg, folder):
    """Rank 0 closes after equal calls, and the others read the state before they close; then rank 1 closes late, and then
    never.
    """
    from opfacade.distributed import mailbox

    plan, found = sums(pg.size()), []
    groups = [reserved(pg, channel, plan) for channel in range(3)]
    for number, group in enumerate(groups):
        add(plan, group)
        if (number, rank) in ((1, 1), (2, 1)):
            wait_for(folder, f"{number} closed")
        elif number == 0 and rank:
            wait_for(folder, "0 closes")
            assert group._mail.wait(lambda group=group: group._mail.first(0) is not None, 30)  # its last frame has arrived
        found.append(failure(group.check))
        if rank == 0:
            say(folder, f"{number} closes")
        if (number, rank) != (2, 1):
            group.close()
        if rank == 0:
            say(folder, f"{number} closed")
    mailbox._end_all()
    return [found, [t.name for t in threading.enumerate() if t.name.startswith("opfacade-from-")]]


def draws(world):
    return Plan.select(
        SampleAcrossDescriptor(world=world, total_num_rows=3, vocab=4 * world, shard=4, temperature=False, top_p=True)
    )


def other_seeds(rank, pg, channel, **options):
    """A draw in which rank 2 has another seed for one row, after a valid draw: tokens are then fill_id."""
    plan = draws(pg.size())
    group = reserved(pg, channel, plan, **options)
    found = []
    for other in (0, 1):
        token, valid = torch.full((3,), 99, dtype=torch.int32), torch.full((3,), 99, dtype=torch.uint8)
        logits = torch.zeros(3, 4)
        logits[0] = -torch.inf
        args = SampleAcrossArgs(
            logits=logits, seed=torch.tensor([7, 8, 9 + other * (rank == 2)]), offset=torch.arange(3), token=token, valid=valid,
            top_p=torch.full((3,), 0.5), group=group,
        )  # fmt: skip
        found += [failure(lambda args=args: plan.run(args)), token.tolist()]
    drawn = found[1]
    return [found[0], drawn[0], all(0 <= t < 4 * pg.size() for t in drawn[1:]), *found[2:]]


def late(rank, pg, plan):
    """Rank 1 is late: this is reported, and the bits are the same."""
    group = reserved(pg, 6, plan, warn_s=0.1)
    if rank == 1:
        time.sleep(0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = add(plan, group).flatten().tolist()
    told = [str(w.message) for w in caught if issubclass(w.category, LagWarning)]
    return [out, group.statistics.lags, bool(told) and "rank 1" in told[0]]


def killed(rank, pg, folder):
    """Rank 0 of 4 dies, then the last of the other three; the survivors continue in new groups of the same process."""
    import torch.distributed as dist

    found, world = [], 4
    for number in range(3):
        plan, own = sums(world), pg.rank()
        group = reserved(pg, number, plan)
        assert add(plan, group).flatten().tolist() == [world * (world + 1) / 2] * 10
        if number == 2:
            break
        say(folder, f"{number} sound {own}")
        if own == (0, world - 1)[number]:
            wait_for(folder, *(f"{number} sound {r}" for r in range(world)))  # otherwise its last frames may be lost with it
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        found.append([failed_run(plan, group), time.monotonic() - start < 20])
        group.abort()
        dist.distributed_c10d._abort_process_group()
        world -= 1
        pg = new_process_group(folder, f"after-{number}", own - (number == 0), world)
    second = reserved(pg, 7, plan)
    found.append([add(plan, g).flatten().tolist() for g in (group, second, group)])
    return found


def stopped(rank, pg, folder):
    """Rank 0 stops the last rank: first for a moment, without effect, and then longer than the others wait."""
    last, plan, found = pg.size() - 1, sums(pg.size()), []
    patient, hasty = reserved(pg, 1, plan), reserved(pg, 2, plan, timeout_s=HASTY)
    for number, (group, call) in enumerate([(patient, add), (hasty, failed_run)]):
        say(folder, f"{number} ready {rank}")
        if rank == 0:
            wait_for(folder, *(f"{number} ready {r}" for r in range(last + 1)))
            os.kill(group.members[last].pid, signal.SIGSTOP)
            say(folder, f"{number} stopped")
        wait_for(folder, f"{number} stopped")
        goes_on = threading.Thread(target=resume, args=(folder, number, group.members[last].pid, last))
        if rank == 0:
            goes_on.start()
        out = call(plan, group)
        say(folder, f"{number} done {rank}")
        found.append(out.flatten().tolist() if number == 0 else out)
        if rank == 0:
            goes_on.join(60)
    if rank == last:  # all data for its call had arrived, so it may succeed; then it receives the failure
        found[1] = told_later(hasty)
    return found


def resume(folder, number, pid, last):
    """After a moment, or once the others have given up."""
    time.sleep(0.3)
    if number == 1:
        wait_for(folder, *(f"{number} done {r}" for r in range(last)))
    os.kill(pid, signal.SIGCONT)


def say(folder, what):
    with open(f"{folder}/{what}", "w"):
        pass


def wait_for(folder, *what):
    end = time.monotonic() + 30
    while time.monotonic() < end and not all(os.path.exists(f"{folder}/{w}") for w in what):
        time.sleep(0.01)
