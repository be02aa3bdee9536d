"""P5, P7 and P8: graphs over ranks, ranks that share a GPU, and bits of sums."""

from __future__ import annotations

import os
from typing import Any

from bench.ranks import sums
from bench.ranks.faults import pairs_that_differ
from bench.ranks.process import Ranks
from opfacade import Plan
from opfacade.distributed import Group
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor

REPLAYS, RUNS, CALLS = 1000, 1000, 3
ROWS = (1, 32, 512)


class Sums:
    """A plan of one group, and its expected result. weight None: no norm."""

    def __init__(self, ranks: Ranks, group: Group, plan: Plan[AllReduceNormArgs]) -> None:
        import torch

        d = plan.descriptor
        assert isinstance(d, AllReduceNormDescriptor)
        self.plan, self.x = plan, sums.part(ranks, ranks.rank, d.total_num_rows)
        self.args = AllReduceNormArgs(x=self.x, weight=sums.part(ranks, 99, 1)[0], out=torch.zeros_like(self.x), group=group)

    def run(self) -> Any:
        self.plan.run(self.args)
        return self.args.out

    def graph(self) -> Any:
        import torch

        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                self.run()
        return made


def _made(ranks: Ranks, pg: Any, channel: int, rows: tuple[int, ...]) -> dict[tuple[int, str], Sums]:
    group = Group(pg, timeout_s=20, channel=channel, peer_memory=ranks.peer_memory)
    fields: dict[str, Any] = {"world": ranks.world, "hidden": sums.HIDDEN, "dtype": "bf16"}
    known = [AllReduceNormDescriptor(total_num_rows=n, steps=step, **fields) for n in rows for step in ("one_shot", "two_shot")]
    plans = {d: Plan.select(d, target=group.target) for d in known}
    group.reserve(list(plans.values()))
    return {(d.total_num_rows, d.steps): Sums(ranks, group, plan) for d, plan in plans.items()}


def replays(ranks: Ranks) -> dict[str, Any]:
    """P5: many replays, two graphs alternately on one channel, and two channels concurrently on two streams; outputs must stay
    the same."""
    import torch

    pg = ranks.join()
    if ranks.cpu:
        return {"failed": "on CPUs there are no graphs"}
    made, other = (_made(ranks, pg, channel, (8, 64)) for channel in range(2))
    want = {key: one.run().clone() for key, one in made.items()}
    first, second = made[8, "one_shot"], made[64, "two_shot"]
    third = other[8, "one_shot"]
    third.run()
    graphs = [one.graph() for one in (first, second, third)]
    ranks.meet()
    for _ in range(REPLAYS):
        graphs[0].replay()
        graphs[1].replay()
    ranks.meet()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(REPLAYS):
        for stream, graph in zip(streams, (graphs[0], graphs[2]), strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    ranks.meet()
    pairs = (("first", first, (8, "one_shot")), ("second", second, (64, "two_shot")), ("channel", third, (8, "one_shot")))
    wrong = [name for name, one, key in pairs if not torch.equal(one.args.out, want[key])]
    first.args.group.check()  # type: ignore[union-attr]
    return {"replays": 2 * REPLAYS, "kernel": first.plan.sku.impl, "wrong": wrong}


def bits(ranks: Ranks) -> dict[str, Any]:
    """P8: compares the bits of one-step and two-step sums, eager and in a graph, over repeated runs; and counts by message size
    the elements in which NCCL's sum differs from the sum in rank order."""
    import torch
    import torch.distributed as dist

    pg, found = ranks.join(), {}
    rows = sums.SMALL if ranks.cpu else ROWS
    made = _made(ranks, pg, 0, rows)
    for count in rows:
        one, two = made[count, "one_shot"], made[count, "two_shot"]
        want, odd = one.run().clone(), 0
        for _ in range(2 if ranks.cpu else RUNS):
            odd += int(not torch.equal(one.run(), want)) + int(not torch.equal(two.run(), want))
        if not ranks.cpu:
            graph = two.graph()
            graph.replay()
            odd += int(not torch.equal(two.args.out, want))
        total = sums.part(ranks, 0, count).float()
        for r in range(1, ranks.world):
            total = total + sums.part(ranks, r, count).float()
        theirs = one.x.clone()
        dist.all_reduce(theirs, group=pg)
        differ = int((theirs != total.to(theirs.dtype)).sum())
        found[str(count * sums.HIDDEN * 2)] = {"wrong": odd, "elements_of_nccl_that_differ": differ, "of": theirs.numel()}
    return {"bytes": found}


def one_gpu(ranks: Ranks) -> dict[str, Any]:
    """P7: whether data arrive through the memory of peers if all ranks share one GPU."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    pg = ranks.join()
    if ranks.cpu:
        return {"failed": "on CPUs there is none"}
    import torch
    import torch.distributed._symmetric_memory as symm

    torch.cuda.set_device(0)
    try:
        buffer = symm.empty(1 << 18, dtype=torch.int32, device="cuda:0")
        handle = symm.rendezvous(buffer, pg.group_name)
        return {"wrong_pairs": pairs_that_differ(ranks, buffer, handle)}
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0][:200]}
