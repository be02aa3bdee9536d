"""Samplers of random rows: without filters, with p or min_p alone, with a long k and p, and with a short k.

A peer's tokens cannot be compared with ours, so each peer is checked against the kept set of fp64 instead. `over_goal` is our
time divided by (2.5 reads of the logits + 6 us).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import torch

from bench import sampling
from bench.sweeps import contest, shapes
from opfacade.plans.sampling import SampleArgs, SampleDescriptor
from opfacade.testing import inputs
from opfacade.testing.timing import time_gpu

FILTERS: dict[str, tuple[str, ...]] = {
    "none": (), "min_p": ("min_p",), "p": ("top_p",), "p and min_p": ("top_p", "min_p"), "k": ("top_k",),
    "k and p": ("top_k", "top_p"),
}  # fmt: skip
WIDEST, NARROWEST, MOST_ROWS, ELEMENTS = 262_144, 1000, 1000, 2**27
CHECKED = 2**19  # maximum number of logits compared with fp64 on the CPU; whole rows, at least one
LEAST, SLOW = 5, 1000.0  # fewer samples for a peer above this many microseconds; others get 30
READ, REST = 4.2e6, 6.0  # bytes per microsecond of an H200, and the time of a launch with several passes
DType = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True)
class Problem(sampling.Problem):
    """values: the filters' parameters, for every row."""

    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def checked(self) -> int:
        return max(1, min(super().checked, CHECKED // self.descriptor.vocab))

    def args(self, device: str = "cuda") -> SampleArgs:
        args: SampleArgs = inputs.make_args(self.descriptor, seed=1, device=device)
        args.logits.normal_().mul_(self.sigma)
        for name, value in {"temperature": 1.0, **self.values}.items():
            getattr(args, name).fill_(value)
        return args


def problem(draw: Random) -> Problem:
    dtypes: tuple[DType, ...] = ("f32", "f16", "bf16")
    rows, of = shapes.between(draw, 1, MOST_ROWS), draw.choice(dtypes)
    vocab = min(shapes.between(draw, NARROWEST, WIDEST), ELEMENTS // rows)
    vocab += vocab % 2 == 0 and draw.random() < shapes.ODD
    sigma, kind = draw.choice((1.0, 2.0, 4.0)), draw.choice(tuple(FILTERS))
    drawn = {
        "top_p": draw.choice((0.5, 0.9, 0.95)),
        "min_p": draw.choice((0.02, 0.1)),
        "top_k": draw.choice((1, 5, 50, 500, 1000)),
    }
    values = {name: drawn[name] for name in FILTERS[kind]}
    told = ", ".join(f"{name} {value}" for name, value in values.items()) or "no filter"
    descriptor = SampleDescriptor(
        total_num_rows=rows, vocab=vocab, dtype=of, top_k="top_k" in values, top_p="top_p" in values, min_p="min_p" in values
    )
    return Problem(f"{rows} x {vocab} {of}, sigma {sigma:g}, {told}", descriptor, sigma, values=values)


def problems(draw: Random) -> Iterator[Problem]:
    while True:
        yield problem(draw)


def by_torch(args: SampleArgs) -> torch.Tensor:
    """top-k by a threshold, top-p by a sort, min_p by the maximum, then an exponential race in f32."""
    logits = args.logits.float() / args.temperature[:, None]
    if args.top_k is not None:
        least = logits.topk(int(args.top_k[0]), -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if args.top_p is not None:
        values, ids = logits.sort(dim=-1)
        low = values.softmax(-1).cumsum(-1) <= 1 - args.top_p[:, None]
        low[:, -1] = False
        logits = torch.empty_like(logits).scatter_(1, ids, values.masked_fill(low, -torch.inf))
    shares = logits.softmax(-1)
    if args.min_p is not None:
        shares = shares.masked_fill(shares < args.min_p[:, None] * shares.amax(-1, keepdim=True), 0.0)
    return (shares / torch.empty_like(shares).exponential_()).argmax(-1)


def by_flashinfer(args: SampleArgs) -> torch.Tensor:
    from flashinfer import sampling as theirs

    logits = args.logits.float() / args.temperature[:, None]
    if args.top_k is not None and args.top_p is not None:
        return theirs.top_k_top_p_sampling_from_logits(logits, args.top_k, args.top_p, deterministic=True)
    if args.top_k is not None:
        return theirs.top_k_sampling_from_probs(logits.softmax(-1), args.top_k, deterministic=True)
    if args.top_p is not None and args.min_p is not None:
        shares = theirs.top_p_renorm_probs(logits.softmax(-1), args.top_p)
        return theirs.min_p_sampling_from_probs(shares, args.min_p, deterministic=True)
    if args.top_p is not None:
        return theirs.top_p_sampling_from_probs(logits.softmax(-1), args.top_p, deterministic=True)
    if args.min_p is not None:
        return theirs.min_p_sampling_from_probs(logits.softmax(-1), args.min_p, deterministic=True)
    return theirs.sampling_from_logits(logits, deterministic=True)


PEERS: dict[str, Callable[[SampleArgs], torch.Tensor]] = {"torch": by_torch, "flashinfer": by_flashinfer}


def floors(problem: Problem, args: SampleArgs) -> list[float]:
    """The smallest kept logit in each of the first rows."""
    return [float(args.logits[row, ids.tolist()].min()) for row, ids in enumerate(sampling.kept_sets(problem, args))]


def outside(kept: Sequence[float], args: SampleArgs, tokens: torch.Tensor) -> int:
    """How many of the first rows' tokens are less likely than all kept tokens; with ties at the cut, peers may keep any of
    them."""
    return sum(float(args.logits[row, tokens[row]]) < least for row, least in enumerate(kept))


def peer(kept: Sequence[float], args: SampleArgs, call: Callable[[SampleArgs], torch.Tensor]) -> float | str:
    """The microseconds, or the reason why there are none."""
    try:
        tokens = call(args)
        torch.cuda.synchronize()
    except (ImportError, RuntimeError, TypeError, ValueError, AttributeError, OSError) as error:
        return f"it cannot run: {error}"[:200]
    wrong = outside(kept, args, tokens)
    if wrong:
        return f"{wrong} tokens outside of the kept set"
    first = time_gpu(lambda: call(args), samples=1, warmup=0).median
    again = {"samples": LEAST, "warmup": 1} if first > SLOW else {}
    return round(time_gpu(lambda: call(args), **again).median, 3)


def measured(problem: Problem, index: int) -> dict[str, Any]:
    """The row of a problem. index: not used, because no peer compiles per shape."""
    with contest.spending("check"):
        args = problem.args()
        sku, run = sampling.ours(problem, args)
        kept = floors(problem, args)
    moved = args.logits.numel() * args.logits.element_size()
    with contest.spending("timing"):
        us: dict[str, float] = {"opfacade": round(time_gpu(run).median, 3)}
    refused: dict[str, str] = {}
    with contest.spending("peers"):
        for name, call in PEERS.items():
            found = peer(kept, args, call)
            if isinstance(found, str):
                refused[name] = found
            else:
                us[name] = found
    row: dict[str, Any] = {"problem": problem.name, "bytes": moved, "us": us, "sku": sku}
    row["over_goal"] = round(us["opfacade"] / (2.5 * moved / READ + REST), 3)
    row |= {"ratio": round(min(us[name] for name in us if name != "opfacade") / us["opfacade"], 3)} if len(us) > 1 else {}
    return row | ({"refused": refused} if refused else {})
