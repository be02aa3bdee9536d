"""Harness of weight conversions: computes, for every code of a checkpoint, its column and its index along k."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.plans.weights import PackWeightsArgs, PackWeightsDescriptor, UnpackWeightsDescriptor
from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.bounds import Bounded
from opfacade.testing.harness import Harness
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

Layouts = PackWeightsDescriptor | UnpackWeightsDescriptor


class LayoutHarness(Harness):
    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        """Draws n as a multiple of 8, and k as a multiple of tiles and groups."""
        example = rng.choice([example for example in examples() if isinstance(example, Layouts) and example.op == op])
        most, step = max(1, min(40, tokens // 8)), 128 if example.source in ("hqq", "tinygemm", "mxfp4", "nvfp4") else 8
        return changed(example, n=8 * rng.randint(1, most), k=step * rng.randint(1, most if step == 8 else 3))

    def inputs(self, draw: Draw) -> None:
        """Random codes; words may be negative."""
        for name, tensor in list(draw.values.items()):
            spec = operands_of(draw.descriptor)[name]
            if spec.role == "in" and not tensor.is_floating_point():
                first, stop = (0, 16) if name == "weight_zero" else (0, 256) if spec.dtype == "u8" else (-(2**31), 2**31)
                tensor.copy_(draw.integers(first, stop, tensor.shape))

    def expected(self, descriptor: Layouts, args: PackWeightsArgs, c: dict[str, float]) -> list[Bounded]:
        import torch

        d, names = descriptor, [name for name, spec in operands_of(descriptor).items() if spec.written]
        given = {name: getattr(args, name) for name in operands_of(d)}
        found: dict[str, Any] = {name: [] for name in names if "groups" not in name}
        for one in range(d.batch):
            part = {name: t[one] if d.batch > 1 and "groups" not in name else t for name, t in given.items()}
            for name in found:
                found[name].append(_one(d, part, name))
        made = {name: torch.stack(each) if d.batch > 1 else each[0] for name, each in found.items()}
        for name in set(names) - set(found):
            made[name] = given["stored_groups" if name == "weight_groups" else "weight_groups"].double()
        return [Bounded(name, made[name], made[name] * 0, made[name] * 0) for name in names]


def _one(d: Layouts, part: dict[str, Tensor], name: str) -> Tensor:
    import torch

    kind = name.partition("_")[2] if name.startswith("stored") else name.partition("_")[2] or "weight"
    stored, ours = part[f"stored_{kind}"], part["weight" if kind == "weight" else f"weight_{kind}"]
    if kind == "scale" or (kind == "zero" and d.weight_format.zero != "int"):
        column, group = _of_scale(d, _places(stored))
        made = torch.zeros(part[name].shape, dtype=torch.float64, device=stored.device)
        if name.startswith("stored"):
            return ours.double()[column, group]
        made[column, group] = stored.double()
        return made
    words, many = (stored, 8 if stored.itemsize == 4 else 2)
    which = torch.arange(many, device=stored.device)
    column, k = (_of_code if kind == "weight" else _of_zero)(d, [place[..., None] for place in _places(words)], which)
    column, k = column + 0 * k, k + 0 * column
    less, flip = 1 if kind == "zero" and d.source == "gptq" else 0, _flip(d) if kind == "weight" else 0
    if name.startswith("stored"):
        codes = ours[column, k // 2].long() >> 4 * (k % 2) & 15 if kind == "weight" else ours[column, k].long()
        word = ((codes - less) % 16 ^ flip).bitwise_left_shift(4 * which).sum(-1)
        return (word - 2**32 * (word >= 2**31)).double()
    codes = (words.long()[..., None] >> 4 * which) % 16
    codes = (codes ^ flip) + less & 15
    table = torch.zeros((d.n, d.k if kind == "weight" else ours.shape[1]), dtype=torch.float64, device=stored.device)
    table[column, k] = codes.double()
    return table[:, ::2] + 16 * table[:, 1::2] if kind == "weight" else table


def _places(stored: Tensor) -> list[Tensor]:
    """The index of each element along each axis."""
    import torch

    return list(torch.meshgrid(*(torch.arange(size, device=stored.device) for size in stored.shape), indexing="ij"))


def _of_scale(d: Layouts, at: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The column and the group of each scale."""
    if d.source == "hqq":
        many = d.k // (d.weight_format.group or d.k)
        return at[0] // many, at[0] % many
    return (at[0], at[1]) if d.source in ("compressed_tensors", "mxfp4", "nvfp4") else (at[1], at[0])


def _of_zero(d: Layouts, at: list[Tensor], which: Tensor) -> tuple[Tensor, Tensor]:
    """The column and the group of each zero point in a 32-bit word."""
    if d.source == "compressed_tensors":
        return at[0] * 8 + which, at[1]
    return at[1] * 8 + (_awq(which) if d.source == "awq" else which), at[0]


def _awq(which: Tensor) -> Tensor:
    """The column of each code in a word of AWQ."""
    import torch

    return torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=which.device)[which]


def _of_code(d: Layouts, at: list[Tensor], which: Tensor) -> tuple[Tensor, Tensor]:
    """The column and the index along k of each code in a 32-bit word."""
    if d.source in ("gptq", "gptq_v2"):
        return at[1], at[0] * 8 + which
    if d.source == "awq":
        return at[1] * 8 + _awq(which), at[0]
    if d.source == "hqq":
        group = d.weight_format.group or d.k
        element = (at[0] + (which == 0) * (d.n * d.k // group // 2)) * group + at[1]
        return element // d.k, element % d.k
    if d.source == "tinygemm":
        tile = at[1] * d.inner_k_tiles + 2 * at[3] + which % 4 // 2
        return at[0] * 8 + at[2] // 4, tile * 16 + which % 2 * 8 + at[2] % 4 * 2 + which // 4
    if d.source == "mxfp4":
        return at[0], at[1] * 32 + at[2] * 2 + which
    return at[0], at[1] * (8 if d.source == "compressed_tensors" else 2) + which


def _flip(d: Layouts) -> int:
    return 8 * (d.source in ("compressed_tensors", "tinygemm") and d.weight_format.dtype == "int4")


HARNESSES: dict[str, Harness] = {"pack_weights": LayoutHarness(), "unpack_weights": LayoutHarness()}
