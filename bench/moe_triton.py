"""A layer of experts in Triton, as in frameworks: rows are sorted by expert and padded to blocks, and one kernel serves both
products.

The kernel was written for this benchmark. The number of rows in a block follows from the expected rows of an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from bench.moe_peers import activated, by_k
from bench.moe_problems import Problem
from opfacade.plans.moe import FusedMoeArgs


@triton.jit
def _product(
    x, weight, bias, factors, out, rows, blocks, n, k, x_row, w_expert, w_k, w_n, choices,
    DIVIDE: tl.constexpr, BIAS: tl.constexpr, FACTORS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[r] = x[r // DIVIDE] @ weight[expert of the block] for the choices r of a block; those past `choices` are padding."""
    block, part = tl.program_id(1), tl.program_id(0)
    expert = tl.load(blocks + block)
    if expert < 0:
        return
    of_block = tl.load(rows + block * M + tl.arange(0, M))
    kept = of_block < choices
    columns = part * N + tl.arange(0, N)
    inside, steps = columns < n, tl.arange(0, K)
    a = x + (of_block // DIVIDE).to(tl.int64)[:, None] * x_row + steps[None, :]
    b = weight + expert.to(tl.int64) * w_expert + steps[:, None] * w_k + columns[None, :].to(tl.int64) * w_n
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        left = k - first
        tile = tl.load(a, mask=kept[:, None] & (steps[None, :] < left), other=0.0)
        total = tl.dot(tile, tl.load(b, mask=(steps[:, None] < left) & inside[None, :], other=0.0), total)
        a += K
        b += K * w_k
    if BIAS:
        total += tl.load(bias + expert * n + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if FACTORS:
        total *= tl.load(factors + of_block, mask=kept, other=0.0)[:, None]
    to = out + of_block.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=kept[:, None] & inside[None, :])


def aligned(ids: torch.Tensor, experts: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(choice of each padded row, expert of each block), computed without synchronisation."""
    flat, most = ids.flatten(), ids.numel()
    sorted_ids, order = flat.sort(stable=True)
    ends = torch.searchsorted(sorted_ids, torch.arange(experts, device=ids.device, dtype=ids.dtype), right=True)
    counts = ends.diff(prepend=ends.new_zeros(1))
    padded = (counts + size - 1) // size * size
    stops = padded.cumsum(0)
    blocks = min(most, -(-most // size) + experts)
    place = (stops - padded)[sorted_ids.long()] + torch.arange(most, device=ids.device) - (ends - counts)[sorted_ids.long()]
    rows = torch.full((blocks * size,), most, device=ids.device, dtype=torch.int32)
    rows[place] = order.int()
    begins = torch.arange(blocks, device=ids.device) * size
    found = torch.searchsorted(stops, begins, right=True).int()
    return rows, torch.where(begins < stops[-1], found, -1)


def layer(problem: Problem, args: FusedMoeArgs) -> Callable[[], torch.Tensor]:
    d = problem.descriptor
    if d.scaling is not None:
        raise NotImplementedError("this kernel has no scaled blocks")
    each = problem.tokens * d.top_k / d.experts
    size = 16 if each <= 16 else 64 if each <= 64 else 128
    up, down, choices = by_k(d, args.up), by_k(d, args.down), problem.tokens * d.top_k
    both, y = (args.x.new_empty(choices, n) for n in (up.shape[-1], d.hidden))
    wide, warps = (128, 4) if size < 128 else (256, 8)

    def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, found: tuple[torch.Tensor, ...], first: bool) -> None:
        rows, blocks = found
        n, k, bias = weight.shape[-1], weight.shape[-2], args.up_bias if first else args.down_bias
        grid = (-(-n // wide), len(blocks))
        _product[grid](
            x, weight, bias if d.bias else x, args.weights, out, rows, blocks, n, k, x.stride(0), *weight.stride(), choices,
            DIVIDE=d.top_k if first else 1, BIAS=d.bias, FACTORS=not first, M=size, N=wide, K=64, num_warps=warps, num_stages=4,
        )  # fmt: skip

    def call() -> torch.Tensor:
        found = aligned(args.ids, d.experts, size)
        product(args.x, up, both, found, True)
        product(activated(d, both), down, y, found, False)
        return y.view(problem.tokens, d.top_k, d.hidden).sum(1)

    return call
