"""Seeds and offsets of rows from FlashInfer's `generator`, `seed` and `offset`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from opfacade.compat.constants import multiples
from opfacade.compat.refusals import require_integer, wrong, wrong_shape

Given = int | torch.Tensor
Value = Given | None
ROW = 1 << 40  # distance between the offsets of adjacent rows that share one seed
_WHOLE = (torch.int64, torch.uint64)


class Noise(NamedTuple):
    """Either a generator (None is torch's default generator), or seed and offset as numbers or tensors."""

    generator: torch.Generator | None = None
    seed: Value = None
    offset: Value = None


def noise_of(op: str, given: Noise, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """seed and offset, i64 [rows] each.

    A tensor with a value per row belongs to the rows, independently of their positions in the batch. A single value is shared:
    row b then draws at offset + b * 2^40. A generator gives each row its own seed, on the device."""
    _check(op, given, device)
    if given.seed is None or given.offset is None:
        drawn = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=given.generator, dtype=torch.int64, device=device)
        return drawn, multiples(rows, 0, device)
    seed = _column(op, "seed", given.seed, rows, device)
    offset = _column(op, "offset", given.offset, rows, device)
    shared = rows > 1 and seed.shape[0] == offset.shape[0] == 1
    offset = offset + multiples(rows, ROW, device) if shared else offset
    return seed.expand(rows).contiguous(), offset.expand(rows).contiguous()


def _check(op: str, given: Noise, device: torch.device) -> None:
    numbers = {"seed": given.seed, "offset": given.offset}
    missing = [name for name, value in numbers.items() if value is None]
    if len(missing) == 1:
        raise wrong(op, missing[0], "a value, because seed and offset must be given together", None)
    if not missing and isinstance(given.seed, torch.Tensor) != isinstance(given.offset, torch.Tensor):
        raise wrong(op, "offset", "a number or a tensor, like seed", type(given.offset).__name__)
    if given.generator is not None and not missing:
        raise wrong(op, "generator", "None with seed and offset", "a generator")
    if given.generator is not None and not isinstance(given.generator, torch.Generator):
        raise wrong(op, "generator", "a torch.Generator or None", type(given.generator).__name__)
    if given.generator is not None and given.generator.device.type != device.type:
        raise wrong(op, "generator", f"a generator on {device.type}", given.generator.device)


def _column(op: str, name: str, value: Given, rows: int, device: torch.device) -> torch.Tensor:
    """i64 [1] or [rows]."""
    if not isinstance(value, torch.Tensor):
        signed = (require_integer(op, name, value) + 2**63) % 2**64 - 2**63
        return torch.full((1,), signed, dtype=torch.int64, device=device)
    if value.dim() != 1 or value.shape[0] not in (1, rows):
        raise wrong_shape(op, name, f"[1] or [{rows}]", list(value.shape))
    if value.dtype not in _WHOLE:
        raise wrong(op, name, "dtype int64 or uint64", value.dtype)
    return value.view(torch.int64)
