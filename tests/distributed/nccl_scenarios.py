"""Scenarios for the ranks in tests of NCCL, with one GPU each."""

import os
import signal
import time
from contextlib import suppress

import torch

from opfacade import Plan
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.distributed.link import Link
from opfacade.distributed.peers import PeerLink
from opfacade.errors import GroupError
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from tests.distributed import calls
from tests.distributed.link_scenarios import HASTY, told
from tests.distributed.scenarios import say, wait_for
from tests.distributed.worlds import NCCL, new_process_group
from tests.support.local_ranks import on_ranks

_ROUNDED = ("merge", "norm", "fp8", "logprob")  # kernels and the host round differently


EAGER = ("skips", "stops", "dies", "first dies")


def group_of(pg, descriptors, peer_memory=False, **options):
    """peer_memory "kernels": plans are selected for the links of the group, so that one kernel computes a norm and its sum."""
    group = Group(pg, peer_memory=bool(peer_memory), **({"timeout_s": 30} | options))
    assert type(group.link) is (PeerLink if peer_memory else Link)
    group.plans = {
        d: Plan.select(d, target=group.target if peer_memory == "kernels" else Target.current()) for d in descriptors
    }
    for descriptor, plan in group.plans.items():
        fused = peer_memory == "kernels" and descriptor.op in ("all_reduce_norm", "merge_across")
        assert (plan.sku.impl, plan.precision_guarantee.bounded_wait) == (("peers", "kernel") if fused else ("nccl", "abort"))
    group.reserve(list(group.plans.values()))
    return group


def every_op(rank, pg, folder, peer_memory):
    """{op: what is wrong} of each op, eager and captured."""
    device, known = torch.device("cuda", rank), calls.descriptors(pg.size())
    group, found = group_of(pg, known.values(), peer_memory=peer_memory), {}
    for name, descriptor in known.items():
        call = calls.call_of(name, descriptor, rank)
        got = calls.run(call, group, device)
        torch.cuda.synchronize()
        wrong = [unlike(name, descriptor, rank, got), on_one_gpu(name, descriptor, got, device), captured(call, group, got)]
        found[name] = {"wrong": [w for w in wrong if w], "bits": calls.bits(got)}
    group.check()
    return found


def unlike(name, descriptor, rank, got):
    """Outputs that differ from the reference on the host."""
    want = on_ranks(descriptor.world, lambda group: calls.run(calls.call_of(name, descriptor, group.rank), group, "cpu"))[rank]
    near = {"rtol": 0.02, "atol": 0.02} if name.startswith(_ROUNDED) else {"rtol": 0, "atol": 0}
    for output, tensor in got.items():
        with suppress(AssertionError):
            torch.testing.assert_close(tensor.cpu().double(), want[output].double(), **near)
            continue
        return f"{output} is not that of the host"
    return ""


def on_one_gpu(name, descriptor, got, device):
    """Results whose bits differ from a computation of all ranks' inputs on this GPU."""
    inputs = [calls.call_of(name, descriptor, r).inputs for r in range(descriptor.world)]
    if name.startswith(("norm", "fp8")):
        total = inputs[0]["x"].float()
        for one in inputs[1:]:
            total = total + one["x"].float()
        alone = {"x": total.to(inputs[0]["x"].dtype), "residual": inputs[0]["residual"], "weight": inputs[0]["weight"]}
        problem = descriptor.normed_rows(calls.ROWS)
        plan, own = Plan.select(problem), calls.Call(problem, alone)
        args = problem.args_type(**own.filled(device))
        plan.run(args)
    elif name == "merge":
        stacked = {k: torch.stack([one[k] for one in inputs], 1).flatten(0, 1).to(device) for k in ("o_part", "lse_part")}
        shape = {"total_num_rows": calls.ROWS, "num_heads": descriptor.num_heads, "head_dim": descriptor.head_dim}
        problem = MergeStatesDescriptor(num_states=2 * descriptor.world, dtype=descriptor.dtype, **shape)
        args = MergeStatesArgs(
            states_o=stacked["o_part"], states_lse=stacked["lse_part"],
            o=torch.zeros_like(got["o"]), lse=torch.zeros_like(got["lse"]),
        )  # fmt: skip
        Plan.select(problem).run(args)
    else:
        return ""
    want = {output: getattr(args, output) for output in got}
    return "" if calls.bits(want) == calls.bits(got) else "bits are not those of one GPU"


def captured(call, group, want):
    """Replays of a graph, each on new inputs, whose bits differ from a call."""
    args = call.with_group(group, group.link.device)
    before = {name: getattr(args, name).clone() for name in (*call.inputs, *want)}
    graph = graph_of(call, args)
    for number in range(3):
        for name, tensor in before.items():
            getattr(args, name).copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        if calls.bits(call.written(args)) != calls.bits(want):
            return f"replay {number} has other bits"
    return ""


def fails(rank, pg, folder, act, peer_memory=False):
    """A valid call, then a call that rank 1, or the first rank, does not join; the others continue in a new group."""
    odd, dies = (0 if act.startswith("first") else 1), "dies" in act
    world = pg.size()
    descriptor = calls.descriptors(world)["norm/one"]
    group = group_of(pg, [descriptor], timeout_s=HASTY, peer_memory=peer_memory)
    call = calls.call_of("norm/one", descriptor, rank)
    calls.run(call, group, group.link.device)
    torch.cuda.synchronize()
    args = call.with_group(group, group.link.device)
    graph = None if act in EAGER else graph_of(call, args)
    say(folder, f"sound {rank}")
    wait_for(folder, *(f"sound {r}" for r in range(world)))
    if rank == odd and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    start, out = time.monotonic(), None
    stopped = group.members[1].pid if rank == 0 and act == "stops" else None
    if stopped:
        os.kill(stopped, signal.SIGSTOP)
    if rank != odd:
        with suppress(GroupError):
            group.plans[descriptor].run(args) if graph is None else graph.replay()
        torch.cuda.synchronize()
        out = call.written(args)
    code, ranks, text = told(group)
    if stopped:
        os.kill(stopped, signal.SIGCONT)
    found = {"told": [code, ranks], "text": text, "seconds": time.monotonic() - start}
    found["filled"] = out is None or all(bool(t.float().isnan().all()) for t in out.values())
    found["works"] = float(torch.ones(8, device=group.link.device).sum())
    if graph is not None:
        graph.reset()
    return found | ({} if dies else {"again": again(rank, group, folder, descriptor)})


def differs(rank, pg, folder, act, peer_memory):
    """A valid call; then rank 1 makes another call, or has another seed for one row."""
    known = calls.descriptors(pg.size())
    names = {"other call": ("norm/one", "merge"), "other seed": ("draw_list", "draw_list")}[act]
    group = group_of(pg, [known[name] for name in dict.fromkeys(names)], timeout_s=HASTY, peer_memory=peer_memory)
    calls.run(calls.call_of(names[0], known[names[0]], rank), group, group.link.device)
    torch.cuda.synchronize()
    call = calls.call_of(names[rank == 1], known[names[rank == 1]], rank)
    if act == "other seed" and rank == 1:
        call.inputs["seed"][3] += 1
    args = call.with_group(group, group.link.device)
    with suppress(GroupError):
        group.plans[call.descriptor].run(args)
    torch.cuda.synchronize()
    code, _, text = told(group)
    out = [t for name, t in call.written(args).items() if name in ("out", "o", "token")]
    filled = all(bool((t.float().isnan() if t.is_floating_point() else t == -1).all()) for t in out)
    return {"code": code, "text": text, "filled": filled}


def graph_of(call, args):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        args.group.plans[call.descriptor].run(args)
    return graph


def again(rank, group, folder, descriptor):
    """A call of a new group in the same processes."""
    import torch.distributed as dist

    group.abort()
    dist.distributed_c10d._abort_process_group()
    say(folder, f"left {rank}")
    world = descriptor.world
    wait_for(folder, *(f"left {r}" for r in range(world)))
    second = group_of(new_process_group(folder, "again", rank, world, NCCL), [descriptor])
    out = calls.run(calls.call_of("norm/one", descriptor, rank), second, second.link.device)
    torch.cuda.synchronize()
    second.check()
    return bool(out["out"].float().isfinite().all())
