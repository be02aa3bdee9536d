"""Harness of qkv_prepare: each element must be the rounding of a number within the f32 error of the exact value."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import torch_dtype
from opfacade.programs.evaluate import stored
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, changed
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Bounded, Report, compare, join
from opfacade.testing.families._qkv_batches import batches
from opfacade.testing.families._request_inputs import paged
from opfacade.testing.families._requests import RequestsHarness
from opfacade.testing.families.attention import oracle
from opfacade.testing.families.attention.inputs import positive
from opfacade.testing.harness import Amount, HasLengths, Ran, Sample
from opfacade.testing.inputs import Draw, DrawnLengths

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args
    from opfacade.plans._rotary.call import RotaryCall
    from opfacade.plans.rotary import QkvPrepareDescriptor
    from opfacade.testing.subject import Subject

_U, POSITIONS = 2.0**-24, 50


def angles(draw: Draw) -> None:
    """The angles of a model, as a table that ends with the last position."""
    import torch

    problem, half = draw.descriptor, draw.descriptor.rotary_dim // 2
    speed = 10000.0 ** (-torch.arange(half, device=draw.device) / half)
    angle = torch.arange(POSITIONS, device=draw.device)[:, None] * speed
    draw.values["cos_sin_cache"] = torch.cat([angle.cos(), angle.sin()], -1).to(torch_dtype(problem.table_dtype))
    given = draw.values["positions"]
    draw.values["positions"] = draw.integers(-1 if problem.in_place else 0, POSITIONS, tuple(given.shape)).to(given.dtype)


class QkvPrepareHarness(RequestsHarness):
    rows, rows_are_keys = "append_indptr", True

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        pages = max(0, example.paged_kv.num_total_pages - example.batch_size)
        rows = rng.randint(0, min(tokens, pages * example.paged_kv.page_size // 2))
        return changed(example, total_num_rows=rows, num_qo_heads=rng.choice((1, 3, 8, 17)))

    def inputs(self, draw: Draw) -> None:
        if draw.descriptor.page_table != "slots":
            super().inputs(draw)
            return
        import torch

        pools = {name: value for name, value in paged(draw, []).items() if name in ("k_data", "v_data")}
        draw.values.update(pools)
        total = draw.descriptor.paged_kv.num_total_pages * draw.descriptor.paged_kv.page_size
        order = torch.randperm(max(total, 1), generator=torch.Generator().manual_seed(draw.rng.randrange(2**31)))
        slots = torch.full((draw.descriptor.total_num_rows,), -1, dtype=torch.int64)
        slots[: min(total, len(slots))] = order[: len(slots)]
        slots[::5] = -1
        draw.values["slots"] = slots.to(draw.device)
        self.request_inputs(draw, [])

    def request_inputs(self, draw: Draw, requests: Sequence[tuple[int, int]]) -> None:
        angles(draw)
        positive(draw, ("k_scale", "v_scale"))

    def lengths(self, descriptor: Any) -> DrawnLengths:
        return DrawnLengths() if descriptor.page_table == "slots" else super().lengths(descriptor)

    def lengths_of_call(self, descriptor: Any, args: Args) -> DrawnLengths | None:
        return None if descriptor.page_table == "slots" else super().lengths_of_call(descriptor, args)

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        return batches(subject, campaign.needles, rng)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        problem, args = ran.descriptor, ran.args
        rows, kept, place = destinations(problem, args)
        out, q = (args.q, ran.before["q"]) if problem.in_place else (args.q_out, args.q)
        report = near("q", problem.dtype, expected(problem, args, "q", q[rows], rows), out[rows])
        if problem.in_place:
            report = join(report, _unchanged("q", out, q, rows))
        for name in ("k", "v"):
            pool, before = (
                oracle.by_token(one, problem) for one in (getattr(args, f"{name}_data"), ran.before[f"{name}_data"])
            )
            want = expected(problem, args, name, getattr(args, name)[rows], rows)
            report = join(report, near(name, problem.paged_kv.dtype, (want[0][kept], want[1][kept]), pool[place]))
            rest = pool.clone()
            rest[place] = before[place]
            if not same_bits(rest, before):
                return Report(math.inf, math.inf, f"{name}_data: a token that is not new changed", rest.numel())
        return report

    def amount(self, descriptor: QkvPrepareDescriptor, lengths: HasLengths) -> Amount:
        cache, size = descriptor.paged_kv, torch_dtype(descriptor.dtype).itemsize
        kv = 2 * cache.num_kv_heads * (size + torch_dtype(cache.dtype).itemsize)
        return Amount(float(descriptor.total_num_rows * cache.head_dim * (2 * descriptor.num_qo_heads * size + kv)), 0.0)


def _unchanged(name: str, out: Tensor, before: Tensor, rows: Tensor) -> Report:
    import torch

    rest = torch.ones(out.shape[0], dtype=torch.bool, device=out.device)
    rest[rows] = False
    wrong = 0.0 if same_bits(out[rest], before[rest]) else math.inf
    return Report(wrong, wrong, f"{name}: a row that is left alone was written", int(rest.sum()))


def destinations(problem: QkvPrepareDescriptor, args: RotaryCall) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(the prepared rows, a mask of the rows that are stored, their (page, token))."""
    import torch

    count, size = args.q.shape[0], problem.paged_kv.page_size
    where = torch.full((count,), -2, dtype=torch.int64, device=args.q.device)
    if args.slots is not None:
        total = problem.paged_kv.num_total_pages * size
        where = torch.where((args.slots >= 0) & (args.slots < total), args.slots, -1)
    for request in range(0 if args.slots is not None else problem.batch_size):
        first, stop = args.append_indptr[request : request + 2].tolist()
        page, token = oracle.token_places(problem, args, request)
        start = page.numel() - (stop - first)
        where[first:stop] = page[start:] * size + token[start:]
    if args.num_valid is not None:
        valid = int(args.num_valid[0])
        where[valid if 0 <= valid <= count else 0 :] = -2
    known = (args.positions.reshape(problem.groups, -1) >= 0).all(0) & (where > -2)
    rows = (known & (args.cos_sin_cache.shape[0] > 0)).nonzero()[:, 0]
    kept = (where[rows] >= 0).nonzero()[:, 0]
    at = where[rows][kept]
    return rows, kept, (at // size, at % size)


def expected(problem: QkvPrepareDescriptor, args: RotaryCall, name: str, given: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The exact numbers in fp64, and bounds on the error of f32 arithmetic."""
    import torch

    x = given.double()
    slack = torch.zeros_like(x)
    if name != "v" and problem.norm != "none":
        weight = getattr(args, f"{name}_weight").double() + (problem.norm == "rms_one_plus")
        x = x * (x.square().mean(-1, keepdim=True) + problem.eps).rsqrt() * weight
        slack = (problem.paged_kv.head_dim / 2 + 10) * _U * x.abs()
    if name != "v":
        x, slack = _rotated(problem, args, x, slack, rows)
    scale = getattr(args, f"{name}_scale", None)
    if scale is not None:
        factor = scale.double()[:, None]
        x, slack = x / factor, slack / factor + 3 * _U * (x / factor).abs()
    return x, slack.nan_to_num(0.0, posinf=0.0)


def _rotated(problem: QkvPrepareDescriptor, args: RotaryCall, x: Tensor, slack: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates each head pair by pair."""
    out, error, half = x.clone(), slack.clone(), problem.rotary_dim // 2
    at = args.positions.reshape(problem.groups, -1).long()[:, rows].clamp(max=args.cos_sin_cache.shape[0] - 1)
    for pair in range(half):
        row = at[problem.section_of(pair)]
        cos, sin = (args.cos_sin_cache[row, pair + column].double()[:, None] for column in (0, half))
        i, j = (2 * pair, 2 * pair + 1) if problem.interleaved else (pair, pair + half)
        a, b = (problem.rotary_offset + k for k in (i, j))
        for to, own, other, sign in ((a, a, b, -1), (b, b, a, 1)):
            out[..., to] = x[..., own] * cos + sign * (x[..., other] * sin)
            size = (x[..., own] * cos).abs() + (x[..., other] * sin).abs()
            error[..., to] = slack[..., own] * cos.abs() + slack[..., other] * sin.abs() + 4 * _U * size
    return out, error


def near(name: str, dtype: str, want: tuple[Tensor, Tensor], got: Tensor) -> Report:
    """Checks that each element is the rounding of a number within the slack of the exact value."""
    import torch

    exact, slack = want
    low, high = (stored(exact + off, dtype).double() for off in (-slack, slack))
    middle = torch.where(low.isinf() | high.isinf(), high, (low + high) / 2)
    bound = ((high - low) / 2).abs().nan_to_num(0.0)
    return compare([Bounded(name, middle, bound, bound)], {name: got})
