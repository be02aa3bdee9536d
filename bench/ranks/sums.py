"""Probes of sums over ranks, alone and followed by a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bench.ranks.process import Ranks
from bench.ranks.race import race
from opfacade import Plan
from opfacade.backends.cuda.collective import sum_fold
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor

HIDDEN = 4096
ROWS = (1, 8, 32, 128, 512)  # of 8 KB
SMALL = (1, 3)


def curves(ranks: Ranks) -> dict[str, Any]:
    """Short P2: all-reduce by NCCL and by torch's symmetric memory, and NCCL's all-gather, by bytes per rank."""
    import torch
    import torch.distributed as dist

    pg = ranks.join()
    found = {}
    for rows in (*ROWS, 2048) if not ranks.cpu else SMALL:
        x = part(ranks, ranks.rank, rows)
        want = sum(part(ranks, r, rows).float() for r in range(ranks.world))
        y, wide = x.clone(), x.new_empty(ranks.world * rows, HIDDEN)
        calls = {
            "nccl all_reduce": lambda y=y: dist.all_reduce(y, group=pg),
            "nccl all_gather": lambda wide=wide, x=x: dist.all_gather_into_tensor(wide, x, group=pg),
        }
        wrong = _check_sum(calls["nccl all_reduce"], y, want)
        calls["nccl all_gather"]()
        if not torch.equal(wide, torch.cat([part(ranks, r, rows) for r in range(ranks.world)])):
            wrong = wrong or "all_gather"
        y.zero_()
        symmetric, refused = _symmetric(ranks, pg, x, want)
        found[str(x.numel() * 2)] = {"wrong": wrong} if wrong else race(ranks, calls | symmetric, 20) | refused
        ranks.keep({"bytes": found})
    return {"bytes": found}


def windows(ranks: Ranks) -> dict[str, Any]:
    """NCCL's kernels for symmetric memory, without multicast: an all-reduce in an NCCL window, alone and followed by our norm,
    compared with one in ordinary memory."""
    import torch
    import torch.distributed as dist

    pg, found = ranks.join(), {}
    if ranks.cpu:
        return {"failed": "on CPUs there is none"}
    dist.all_reduce(torch.ones(1, device=ranks.device), group=pg)
    backend: Any = pg._get_backend(ranks.device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        made = [torch.empty(rows, HIDDEN, dtype=torch.bfloat16, device=ranks.device) for rows in ROWS]
    backend.register_mem_pool(pool, symm=True)
    for rows, window in zip(ROWS, made, strict=True):
        found[str(window.numel() * 2)] = _in_window(ranks, pg, rows, window)
        ranks.keep({"bytes": found})
    return {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "bytes": found}


def _in_window(ranks: Ranks, pg: Any, rows: int, window: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    x = part(ranks, ranks.rank, rows)
    want = torch.stack([part(ranks, r, rows).float() for r in range(ranks.world)]).sum(0)
    window.copy_(x)

    def summed() -> None:
        dist.all_reduce(window, group=pg)

    wrong = _check_sum(summed, window, want)
    d = descriptors(ranks.world, ranks.cpu)[rows, "one_shot"]
    _, normed = _alone(ranks, d, want.to(x.dtype), part(ranks, 99, 1)[0])
    calls = {
        "nccl all_reduce": lambda: dist.all_reduce(x, group=pg),
        "nccl symmetric all_reduce": summed,
        "nccl symmetric all_reduce + norm": lambda: (summed(), normed(window)),
    }
    return {"wrong": wrong} if wrong else race(ranks, calls, 20)


def part(ranks: Ranks, rank: int, rows: int) -> Any:
    import torch

    random = torch.Generator().manual_seed(17 * rank + rows)
    return torch.randn(rows, HIDDEN, generator=random).to(torch.bfloat16).to(ranks.device)


def _check_sum(call: Any, y: Any, want: Any) -> str:
    import torch

    call()
    close = torch.allclose(y.float(), want, rtol=0.01, atol=0.05)
    return "" if close else "all_reduce"


def _symmetric(ranks: Ranks, pg: Any, x: Any, want: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The all-reduces of torch's symmetric memory, or the reason why there are none."""
    if ranks.cpu:
        return {}, {"symm_mem": {"failed": "on CPUs there is none"}}
    import torch
    import torch.distributed._symmetric_memory as symm

    try:
        buffer = symm.empty(x.numel(), dtype=x.dtype, device=x.device)
        symm.rendezvous(buffer, pg.group_name)
        buffer.copy_(x.flatten())
        ranks.meet()
        got = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", pg.group_name)
        ranks.meet()
        if not torch.allclose(got.float(), want.flatten(), rtol=0.01, atol=0.05):
            return {}, {"symm_mem": {"failed": "wrong data"}}
    except (RuntimeError, AttributeError) as error:
        return {}, {"symm_mem": {"failed": str(error).splitlines()[0][:200]}}
    return {
        "symm_mem one_shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", pg.group_name),
        "symm_mem two_shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", pg.group_name),
    }, {}


def descriptors(world: int, cpu: bool) -> dict[tuple[int, str], AllReduceNormDescriptor]:
    steps = ("one_shot", "two_shot")
    fields: dict[str, Any] = {"world": world, "hidden": HIDDEN, "dtype": "bf16", "residual": "replicated"}
    return {
        (rows, step): AllReduceNormDescriptor(total_num_rows=rows, steps=step, **fields)
        for rows in (SMALL if cpu else ROWS)
        for step in steps
    }


def norms(ranks: Ranks) -> dict[str, Any]:
    """`all_reduce_norm`, by rounds of the link and by one kernel, compared with an all-reduce followed by our norm."""
    pg, known = ranks.join(), descriptors(ranks.world, ranks.cpu)
    groups = [Group(pg, timeout_s=20, channel=i, peer_memory=ranks.peer_memory) for i in range(2)]
    of_all: dict[int, dict[str, Ready]] = {}
    for group, target in zip(groups, (Target.current(), groups[1].target), strict=True):
        plans = {d: Plan.select(d, target=target) for d in known.values()}
        group.reserve(list(plans.values()))
        for (rows, step), descriptor in known.items():
            plan = plans[descriptor]
            of_all.setdefault(rows, {})[f"all_reduce_norm {step}, {plan.sku.impl}"] = Ready(plan, group)
    found = {}
    for rows, ready in sorted(of_all.items()):
        found[str(rows * HIDDEN * 2)] = _normed(ranks, ready, rows)
        ranks.keep({"bytes": found})
    return {"link": type(groups[0].link).__name__, "bytes": found}


def forms(module: Any, call: Callable[[], None]) -> dict[str, Callable[[], None]]:
    """The call with flagged lines wherever they fit, and with bulk data. module: contains MOST_LINES, which decides."""

    def within(most: int) -> Callable[[], None]:
        def run() -> None:
            known, module.MOST_LINES = module.MOST_LINES, most
            try:
                call()
            finally:
                module.MOST_LINES = known

        return run

    return {"lines": within(1 << 30), "bulk": within(0)}


class Ready(NamedTuple):
    plan: Plan[AllReduceNormArgs]
    group: Group


def _normed(ranks: Ranks, known: dict[str, Ready], rows: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    x, weight = part(ranks, ranks.rank, rows), part(ranks, 99, 1)[0]
    total = part(ranks, 0, rows).float()
    for r in range(1, ranks.world):
        total = total + part(ranks, r, rows).float()
    first = next(iter(known.values()))
    want, plain = _alone(ranks, first.plan.descriptor, total.to(x.dtype), weight)
    calls, wrong = {}, []
    for name, (plan, group) in known.items():
        residual, out = part(ranks, 50, rows), torch.zeros_like(x)
        args = AllReduceNormArgs(x=x, weight=weight, residual=residual, out=out, group=group)
        plan.run(args)
        if not torch.equal(out, want):
            wrong.append(name)
        calls[name] = lambda plan=plan, args=args: plan.run(args)
        if plan.sku.impl == "peers" and "one_shot" in name:
            calls |= {f"{name}, {form}": call for form, call in forms(sum_fold, calls[name]).items()}
    summed = x.clone()

    def library() -> None:
        dist.all_reduce(summed, group=first.group.process_group)
        plain(summed)

    calls["nccl all_reduce + norm"] = library
    symmetric, refused = _symmetric(ranks, first.group.process_group, x, total)
    if symmetric:
        calls["symm_mem one_shot + norm"] = lambda: plain(symmetric["symm_mem one_shot"]().view(x.shape))
    return {"wrong": wrong} if wrong else race(ranks, calls, 20) | refused


def _alone(ranks: Ranks, descriptor: AllReduceNormDescriptor, total: Any, weight: Any) -> tuple[Any, Any]:
    """The norm of a sum on one rank: its result, and a call that applies it to other sums."""
    import torch

    problem = descriptor.normed_rows(len(total))
    plan, out, residual = Plan.select(problem), torch.zeros_like(total), part(ranks, 50, len(total))

    def normed(x: Any) -> None:
        plan.run(problem.args_type(x=x, weight=weight, residual=residual, out=out))

    normed(total)
    return out.clone(), normed
