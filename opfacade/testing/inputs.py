"""Random arguments for a descriptor. Memory that a kernel must not use (invalid rows, outputs) is NaN.

A harness draws operands whose TensorSpec does not determine their values (`Harness.inputs`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.core.operands import TensorSpec, split_rows
from opfacade.select import registry
from opfacade.testing.bits import drawn, fill

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DrawnLengths:
    """Rows of q (or new rows) and of K for each request; None: random. Requests share pages if the pool has too few. valid: the
    number of valid rows, limited to the number of rows; None: random."""

    q: Sequence[int] | None = None
    kv: Sequence[int] | None = None
    valid: int | None = None


@dataclass(frozen=True)
class Draw:
    """A bundle under construction. values: the operands drawn so far, starting with those that specs determine."""

    descriptor: Any
    rng: random.Random
    generator: torch.Generator
    device: torch.device
    lengths: DrawnLengths
    interleaved: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def normal(self, shape: Sequence[int]) -> Tensor:
        import torch

        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """A random number in [0, 1)."""
        import torch

        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, first: int, stop: int, shape: Sequence[int]) -> Tensor:
        import torch

        return torch.randint(first, stop, shape, generator=self.generator, device=self.device)

    def i32(self, values: Sequence[int]) -> Tensor:
        import torch

        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def nan(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        import torch

        return torch.full(shape, float("nan"), dtype=torch.float32, device=self.device).to(dtype)


def make_args(
    descriptor: Descriptor[Any],
    seed: int = 0,
    device: str | torch.device = "cpu",
    lengths: DrawnLengths | None = None,
    interleaved: bool = False,
) -> Any:
    """A bundle of arguments that `run` accepts.

    interleaved: pools of pages are views of one buffer, and a block table is a slice of a wider one, so that no stride is
    contiguous.
    """
    import torch

    rng, generator, place = random.Random(seed), torch.Generator(device=device).manual_seed(seed), torch.device(device)
    draw = Draw(descriptor, rng, generator, place, lengths or DrawnLengths(), interleaved)
    operands = operands_of(descriptor)
    for name, spec in operands.items():
        if None not in sizes(spec):
            draw.values[name] = _tensor(draw, spec)
    registry.harness_for(descriptor.op).inputs(draw)
    _count_valid(draw, operands)
    return descriptor.args_type(**draw.values)


def _tensor(draw: Draw, spec: TensorSpec) -> Tensor:
    import torch

    shape, dtype = sizes(spec), torch_dtype(spec.dtype)
    if spec.role == "out":
        return fill(torch.empty(shape, dtype=dtype, device=draw.device), math.nan)
    if spec.contents.values is not None:
        first, stop = spec.contents.values
        return draw.integers(first, max(stop, first + 1), shape).to(dtype)
    if spec.role == "index":
        return torch.zeros(shape, dtype=dtype, device=draw.device)
    return drawn(shape, dtype, draw.generator)


def _count_valid(draw: Draw, operands: Mapping[str, TensorSpec]) -> None:
    """Draws counts such that most rows are valid; invalid rows hold NaN and invalid indices."""
    valid = draw.lengths.valid if isinstance(draw.lengths, DrawnLengths) else None  # workload lengths have no counts
    for counted in {spec.valid_rows for spec in operands.values() if spec.valid_rows}:
        _, past = operands[counted].contents.values or (0, 1)
        rows = past - 1
        count = draw.rng.choice((draw.rng.randint(rows // 2, max(rows // 2, rows - 1)), draw.rng.randint(0, rows)))
        draw.values[counted].fill_(count if valid is None else min(valid, rows))
    for name, spec in operands.items():
        if not spec.valid_rows:
            continue
        _, rest = split_rows(spec, draw.values[name], int(draw.values[spec.valid_rows][0]))
        if rest.dtype.is_floating_point:
            rest.fill_(float("nan"))
        elif spec.contents.values is not None:
            rest.fill_(min(spec.contents.values[1] + 2**20, _largest(rest)))


def _largest(tensor: Tensor) -> int:
    """The largest integer of its dtype."""
    import torch

    return int(torch.iinfo(tensor.dtype).max)


def sizes(spec: TensorSpec) -> tuple[Any, ...]:
    """Size of each dimension; None if the caller chooses it."""
    return tuple(dim.size for dim in spec.shape)
