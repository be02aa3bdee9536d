"""Harness of rotary embeddings: each element must have the exact bits, which a complex multiplication of pairs gives."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import torch_dtype
from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Report
from opfacade.testing.families._qkv_prepare import QkvPrepareHarness, angles
from opfacade.testing.families.elementwise import differs
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._rotary.call import RotaryCall
    from opfacade.plans.rotary import RotaryDescriptor


class RotaryHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        heads = {"num_qo_heads": rng.choice((1, 3, 9)), "num_kv_heads": rng.choice((0, 1, 2)) if example.num_kv_heads else 0}
        return changed(example, total_num_rows=rng.randint(0, min(60, tokens)), **heads)

    def inputs(self, draw: Draw) -> None:
        """The angles of a model, and positions up to the end of the table; if in place, some rows are skipped."""
        angles(draw)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        problem, wrong, elements = ran.descriptor, 0, 0
        for name, out in problem.written(ran.args).items():
            given = ran.before.get(name, getattr(ran.args, name))
            want, rows = expected(problem, ran.args, given)
            bad = differs(out[rows], want)
            wrong, elements = wrong + int(bad.sum()), elements + bad.numel()
            if problem.in_place and not _kept(out, given, rows):
                return Report(math.inf, math.inf, f"{name}: a row that is skipped was written", out.numel())
        return Report(float(wrong > 0) * 2, float(wrong > 0) * 2, f"{wrong} elements have other bits", elements)

    def amount(self, descriptor: RotaryDescriptor, lengths: HasLengths) -> Amount:
        """The minimal traffic: heads are read and written once, and each row reads one row of the table."""
        heads = descriptor.num_qo_heads + descriptor.num_kv_heads
        dim = descriptor.rotary_dim if descriptor.in_place else descriptor.head_dim
        size = torch_dtype(descriptor.dtype).itemsize
        return Amount(2.0 * descriptor.total_num_rows * heads * dim * size, 0.0)

    def label(self, descriptor: RotaryDescriptor, lengths: HasLengths) -> str:
        heads = f"{descriptor.num_qo_heads}/{descriptor.num_kv_heads}x{descriptor.head_dim}"
        return f"{descriptor.op} {descriptor.total_num_rows} rows {heads}, {descriptor.rotary_dim} rotated, {descriptor.dtype}"


def expected(problem: RotaryDescriptor, args: RotaryCall, given: Tensor) -> tuple[Tensor, Tensor]:
    """(the rotated rows of a tensor, their indices)."""
    import torch

    positions = args.positions.reshape(problem.groups, -1).long()
    rows = _rows(args, positions, given.shape[0])
    out, half, last = given[rows].float(), problem.rotary_dim // 2, args.cos_sin_cache.shape[0] - 1
    for pair in range(half):
        at = positions[problem.section_of(pair), rows].clamp(max=last)
        cos, sin = (args.cos_sin_cache[at, pair + column].float()[:, None] for column in (0, half))
        turn = torch.complex(cos, -sin if problem.inverse else sin)
        i, j = (2 * pair, 2 * pair + 1) if problem.interleaved else (pair, pair + half)
        x, y = (given[rows, :, problem.rotary_offset + k].float() for k in (i, j))
        out[..., problem.rotary_offset + i] = x * turn.real - y * turn.imag
        out[..., problem.rotary_offset + j] = y * turn.real + x * turn.imag
    return out.to(given.dtype), rows


def _rows(args: RotaryCall, positions: Tensor, count: int) -> Tensor:
    """The rows that are rotated."""
    import torch

    valid = count if args.num_valid is None else int(args.num_valid[0])
    chosen = (positions >= 0).all(0) & (torch.arange(count, device=positions.device) < (valid if 0 <= valid <= count else 0))
    found: Tensor = (chosen & (args.cos_sin_cache.shape[0] > 0)).nonzero()[:, 0]
    return found


def _kept(out: Tensor, given: Tensor, rows: Tensor) -> bool:
    """True if the other rows are unchanged."""
    import torch

    rest = torch.ones(out.shape[0], dtype=torch.bool, device=out.device)
    rest[rows] = False
    return same_bits(out[rest], given[rest])


HARNESSES: dict[str, Harness] = {"rotary": RotaryHarness(), "qkv_prepare": QkvPrepareHarness()}
