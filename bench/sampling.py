"""Sampling on one GPU compared with torch and FlashInfer: `python -m bench.sampling [--out FILE] [--vocab N] [--rows N]
[--no-peers]`.

Microseconds from logits to tokens, L2 cold, per problem and library, in one run. "peaked" logits are normal with sigma 4 (a
nucleus of hundreds of tokens), "flat" ones with sigma 1 (most of the vocabulary). Our outputs are checked against fp64 before
they are timed. If a peer raises, or draws tokens outside the kept set of fp64, its row has the reason instead of a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bench import records
from bench.attention import machine
from opfacade import Plan, Preference
from opfacade.plans.sampling import SampleArgs, SampleDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.families.sampling.adjusted import Row
from opfacade.testing.families.sampling.kept import Margins, RaceRow
from opfacade.testing.timing import time_gpu

CUDA = Preference(backend="cuda")
VOCABS, ROWS, DTYPES = (128256, 151936), (1, 16, 64, 256), ("f32", "bf16")
SIGMAS = {"peaked": 4.0, "flat": 1.0}
TOP_K, TOP_P = 50, 0.9
FILTERS: dict[str, dict[str, Any]] = {"none": {}, "k and p": {"top_k": True, "top_p": True}, "p": {"top_p": True}}
# Each is timed together with the same problem without it.
ADJUSTMENTS: dict[str, dict[str, Any]] = {
    "penalties": {"penalties": True}, "bitmask": {"bitmask": True}, "soft cap": {"soft_cap": 30.0},
    "dense bias": {"bias": "dense"}, "300 biases": {"bias": "sparse", "num_biases": 300},
}  # fmt: skip
LOWERING = {"repetition": 1.2, "frequency": 0.5, "presence": 0.5}  # as in most requests to a server
CHECKED = 12  # rows that are compared with fp64


@dataclass(frozen=True)
class Problem:
    name: str
    descriptor: SampleDescriptor
    sigma: float
    lowers: bool = False  # penalties from LOWERING; otherwise penalties of some rows raise logits

    @property
    def checked(self) -> int:
        """The rows that are compared with fp64."""
        return min(CHECKED, self.descriptor.total_num_rows)

    def args(self) -> SampleArgs:
        args = inputs.make_args(self.descriptor, seed=1, device="cuda")
        args.logits.normal_().mul_(self.sigma)
        for name, value in (("temperature", 1.0), ("top_k", TOP_K), ("top_p", TOP_P)):
            if getattr(args, name) is not None:
                getattr(args, name).fill_(value)
        for name, value in LOWERING.items() if self.lowers else ():
            getattr(args, name).fill_(value)
        return args


def problems(vocabs: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[Problem]:
    for vocab, count, dtype, (kind, sigma) in itertools.product(vocabs, rows, DTYPES, SIGMAS.items()):
        for filters, fields in FILTERS.items():
            descriptor = SampleDescriptor(total_num_rows=count, vocab=vocab, dtype=dtype, **fields)
            yield Problem(f"{count} x {vocab} {dtype} {kind}, filters {filters}", descriptor, sigma)
    for name, fields in ADJUSTMENTS.items():
        yield Problem(f"64 x 128256 f32 peaked, with {name}", SampleDescriptor(total_num_rows=64, vocab=128256, **fields), 4.0)
    lowering = SampleDescriptor(total_num_rows=64, vocab=128256, penalties=True)
    yield Problem("64 x 128256 f32 peaked, with penalties that lower", lowering, 4.0, lowers=True)


def first_rows(problem: Problem, args: SampleArgs) -> tuple[SampleDescriptor, SampleArgs]:
    """The call cut to the rows that are checked."""
    count = problem.checked
    given = {name: getattr(args, name) for name in SampleArgs.__slots__ if getattr(args, name) is not None}
    cut = SampleDescriptor.model_validate(problem.descriptor.model_dump() | {"total_num_rows": count})
    return cut, replace(args, **{name: tensor[:count] for name, tensor in given.items()})


def ours(problem: Problem, args: SampleArgs) -> tuple[str, Callable[[], object]]:
    plan: Plan[Any] = Plan.select(problem.descriptor, CUDA)
    plan.run(args)
    report = numerics.check(*first_rows(problem, args), plan.sku)
    if not report.worst <= 1:
        raise SystemExit(f"{problem.name}: wrong result, not timed: {report}")
    return plan.sku.id, lambda: plan.run(args)


def torch_sampler(args: SampleArgs) -> torch.Tensor:
    """The common implementation: sort, cumulative sum, mask, and an exponential race in f32."""
    logits = args.logits.float() / args.temperature[:, None]
    if args.top_p is not None:
        values, ids = logits.sort(dim=-1)
        if args.top_k is not None:
            values = values.masked_fill(values < values[:, -TOP_K, None], -torch.inf)
        low = values.softmax(-1).cumsum(-1) <= 1 - args.top_p[:, None]
        low[:, -1] = False
        logits = torch.empty_like(logits).scatter_(1, ids, values.masked_fill(low, -torch.inf))
    return (logits.softmax(-1) / torch.empty_like(logits).exponential_()).argmax(-1)


def flashinfer_sampler(args: SampleArgs) -> torch.Tensor:
    from flashinfer import sampling

    logits = args.logits.float() / args.temperature[:, None]
    if args.top_k is not None:
        return sampling.top_k_top_p_sampling_from_logits(logits, args.top_k, args.top_p, deterministic=True)
    if args.top_p is not None:
        return sampling.top_p_sampling_from_probs(logits.softmax(-1), args.top_p, deterministic=True)
    return sampling.sampling_from_logits(logits, deterministic=True)


PEERS: dict[str, Callable[[SampleArgs], torch.Tensor]] = {"torch": torch_sampler, "flashinfer": flashinfer_sampler}


def outside(problem: Problem, args: SampleArgs, tokens: torch.Tensor) -> int:
    """How many of the first rows' tokens are outside the kept set of fp64."""
    return sum(not np.any(kept == token) for kept, token in zip(kept_sets(problem, args), tokens.tolist(), strict=False))


def kept_sets(problem: Problem, args: SampleArgs) -> Iterator[Any]:
    """The tokens that may be drawn in the first rows, from fp64 with the error margins of f32."""
    margins = Margins(key=2.0**-17, roundoff=2.0**-24, exp2=2.0**-20, tanh=2.0**-21)
    cut, given = first_rows(problem, args)
    names = [name for name, spec in cut.operands().items() if not spec.written]
    arrays = {name: getattr(given, name).float().cpu().numpy() if name in ("logits", "temperature", "top_p", "min_p")
              else getattr(given, name).cpu().numpy() for name in names}  # fmt: skip
    for at in range(cut.total_num_rows):
        row = RaceRow(Row(cut, {name: array[at] for name, array in arrays.items()}), margins)
        yield row.order[row.kept[0]]


def peer(problem: Problem, args: SampleArgs, name: str) -> dict[str, Any]:
    try:
        tokens = PEERS[name](args)
        torch.cuda.synchronize()
    except (ImportError, RuntimeError, TypeError, AttributeError, OSError) as error:
        return {"declined": f"{type(error).__name__}: {error}"[:200]}
    wrong = outside(problem, args, tokens)
    if wrong:
        return {"wrong": f"{wrong} tokens outside of the kept set"}
    return time_gpu(lambda: PEERS[name](args)).as_dict()


def measured(problem: Problem, peers: bool) -> dict[str, Any]:
    args = problem.args()
    sku, run = ours(problem, args)
    size = problem.descriptor.total_num_rows * problem.descriptor.vocab * args.logits.element_size()
    timing = time_gpu(run).as_dict()
    row: dict[str, Any] = {"problem": problem.name, "sku": sku, "us": timing, "TBs": round(size / timing["median"] * 1e-6, 3)}
    plain = not any((problem.descriptor.penalties, problem.descriptor.bitmask, problem.descriptor.soft_cap))
    if peers and plain and problem.descriptor.bias == "none":
        row["peers"] = {name: peer(problem, args, name) for name in PEERS}
    return row


def shown(row: dict[str, Any]) -> str:
    others = {name: round(found["median"], 1) if "median" in found else found for name, found in row.get("peers", {}).items()}
    return f"{row['problem']}: {row['us']['median']:.1f} us, {row['TBs']} TB/s, {json.dumps(others)}"


def versions() -> dict[str, str]:
    try:
        import flashinfer
    except ImportError:
        return {}
    return {"flashinfer": flashinfer.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="recorded in place of git's answer")
    parser.add_argument("--vocab", type=int, action="append", help="only these; 128256 and 151936 by default")
    parser.add_argument("--rows", type=int, action="append", help="only these; 1, 16, 64 and 256 by default")
    parser.add_argument("--no-peers", action="store_true")
    records.add_out(parser, "sampling")
    options = parser.parse_args()
    out = records.place(options.out, "sampling", not (options.vocab or options.rows or options.no_peers))
    record: dict[str, Any] = {"machine": machine() | versions(), "top_k": TOP_K, "top_p": TOP_P, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    for problem in problems(tuple(options.vocab or VOCABS), tuple(options.rows or ROWS)):
        record["rows"].append(measured(problem, not options.no_peers))
        print(shown(record["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
        records.write(out, record)


if __name__ == "__main__":
    main()
