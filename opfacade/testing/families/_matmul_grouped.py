"""Harness of grouped products: the rows of each group are judged as a separate product."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Report, compare, constants, join
from opfacade.testing.families._matmul_batches import GroupedBatches
from opfacade.testing.families._matmul_weights import draw_weight
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from opfacade.plans._matmul.groups import GroupedCall
    from opfacade.testing.inputs import Draw
    from opfacade.testing.numerics import Bounded
    from opfacade.testing.subject import Subject


class GroupedHarness(Harness):
    """expected_of: (descriptor, args, actual out, constants) -> the result of one product with its bounds."""

    def __init__(
        self,
        expected_of: Callable[[MatmulDescriptor, MatmulArgs, Tensor, dict[str, float]], Bounded],
        draw_scales: Callable[[Draw], None],
    ) -> None:
        self._expected_of, self._draw_scales = expected_of, draw_scales

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        most = min(90, tokens)
        sizes = {"total_num_rows": rng.randint(0, most), "n": rng.randint(0, most), "k": rng.randint(0, 2 * most)}
        sizes |= {"groups": rng.randint(1, 6)}
        if example.gather:
            sizes["num_x_rows"] = rng.randint(1, most)
        return changed(example, **sizes)

    def inputs(self, draw: Draw) -> None:
        """Draws groups, some of them empty, with rows of NaN before, between and after them."""
        self._draw_scales(draw)
        if draw.descriptor.weight_format is not None:
            draw_weight(draw)
        if "indptr" in draw.values:
            draw.values["indptr"] = draw.values["indptr"].sort().values
        for name, axis in (_axes_of_rows(draw.descriptor) or _axes_of_k(draw.descriptor)).items():
            if name in ("x", "weight", "add") and name in draw.values and draw.values[name].is_floating_point():
                _spoil(draw, name, axis)

    def in_any_batch(self, descriptor: GroupedMatmulDescriptor) -> Any:
        """A unit is a row of layout ragged; in layout masked, all groups have the same size."""
        return changed(descriptor, layout="ragged") if descriptor.layout == "masked" else descriptor

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        """With layout k, each group has all rows."""
        if subject.descriptor.layout == "k":
            return DenseBatches.drawn(subject, "total_num_rows", campaign.needles, rng)
        return GroupedBatches.of(subject, campaign.needles, rng)

    def unowned(self, descriptor: GroupedMatmulDescriptor, args: GroupedCall, name: str) -> Tensor | None:
        """The rows of out outside every group and the rows with ids out of range. With zero_tail, only the latter are unowned,
        and the harness never draws such rows."""
        if descriptor.layout == "k" or descriptor.zero_tail:
            return None
        free: Tensor = _outside(descriptor, args)[..., None].expand(args.out.shape)
        return free

    def judge(self, ran: Ran, sample: Sample) -> Report:
        problem, before = ran.descriptor, replace(ran.args, **ran.before)
        one, report = product_of(problem), self._untouched(ran)
        for group, places in enumerate(places_of(problem, ran.args)):
            chosen = _sampled(problem, places, sample)
            given, after = (part_of(problem, call, group, chosen) for call in (before, ran.args))
            want = self._expected_of(one, given, after.out, constants(ran.sku))
            report = join(report, compare([want], {"out": after.out}, f"group {group}"))
        return report

    def _untouched(self, ran: Ran) -> Report:
        """Checks rows outside all groups: they must be 0 with zero_tail, otherwise unchanged if their previous contents are
        known."""
        if ran.descriptor.layout == "k":
            return Report(0.0, 0.0, "", 0)
        free = _outside(ran.descriptor, ran.args)
        rest = ran.args.out[free]
        was = ran.before["out"][free] if "out" in ran.before else rest.new_zeros(rest.shape)
        judged = ran.descriptor.zero_tail or "out" in ran.before
        worst = math.inf if judged and not same_bits(rest, was) else 0.0
        return Report(worst, worst, "out outside every group", rest.numel() if judged else 0)

    def amount(self, descriptor: GroupedMatmulDescriptor, lengths: HasLengths) -> Amount:
        rows = descriptor.total_num_rows * (descriptor.groups if descriptor.layout == "masked" else 1)
        flops = 2.0 * rows * descriptor.n * descriptor.columns * descriptor.k
        return Amount(super().amount(descriptor, lengths).bytes, flops)

    def label(self, descriptor: GroupedMatmulDescriptor, lengths: HasLengths) -> str:
        sizes = f"{descriptor.groups} {descriptor.layout} {descriptor.total_num_rows} x {descriptor.n} x {descriptor.k}"
        scaled = f" {descriptor.scaling.kind}" if descriptor.scaling is not None else ""
        scaled += "" if descriptor.weight_format is None else f" {descriptor.weight_format.dtype}"
        return f"{descriptor.op} {sizes} {descriptor.dtype}{scaled} to {descriptor.result}{' gather' * descriptor.gather}"


def product_of(problem: GroupedMatmulDescriptor) -> MatmulDescriptor:
    """The product of one group."""
    layout: dict[str, Any] = {"x_layout": problem.x_layout, "weight_layout": problem.weight_layout, "scaling": problem.scaling}
    layout["weight_format"] = problem.weight_format
    if problem.scaling is not None and problem.scaling.x_scale_layout == "column_padded4":
        layout["scaling"] = changed(cast("Any", problem.scaling), x_scale_layout="column")
    epilogue = ("bias", "bias_dtype", "activation", "gated", "add", "accumulate", "alpha", "beta", "dtype", "out_dtype")
    sizes = {"total_num_rows": problem.total_num_rows, "n": problem.n, "k": problem.k}
    return MatmulDescriptor(**sizes, **layout, **{name: getattr(problem, name) for name in epilogue})


def places_of(problem: GroupedMatmulDescriptor, args: GroupedCall) -> list[list[int]]:
    """The rows (with layout k, the elements of k) of each group, computed only from the bounds of the group."""
    if problem.layout == "masked":
        return [
            [r for r in range(problem.total_num_rows) if r < count <= problem.total_num_rows] for count in args.counts.tolist()
        ]
    bounds, total = args.indptr.tolist(), problem.k if problem.layout == "k" else problem.total_num_rows
    return [[r for r in range(total) if bounds[g] <= r < bounds[g + 1]] for g in range(problem.groups)]


def part_of(problem: GroupedMatmulDescriptor, args: GroupedCall, group: int, places: Sequence[int]) -> Any:
    """Copies of the tensors of one group."""
    if problem.layout == "k":
        axes = _axes_of_k(problem).items()
        picked: dict[str, Any] = {name: _picked(getattr(args, name), axis, places) for name, axis in axes}
        own = {name: _of(getattr(args, name), group) for name in ("bias", "add", "out")}
        return MatmulArgs(**picked, **own, x_scale=args.x_scale, weight_scale=args.weight_scale)
    masked = problem.layout == "masked"
    of_group = ("weight", "bias", "weight_scale", "weight_zero")
    found: dict[str, Any] = {name: _of(getattr(args, name), group) for name in of_group}
    found["out_scale"] = args.out_scale
    found["weight_global"] = None if args.weight_global is None else args.weight_global[group : group + 1]
    ids = [(args.x_rows[group] if masked else args.x_rows).tolist()[r] for r in places] if problem.gather else places
    for name, axis in _axes_of_rows(problem).items():
        tensor = getattr(args, name)
        if tensor is not None:
            of_x = name in ("x", "x_scale")
            mine = tensor[group] if masked and not (of_x and problem.gather) else tensor
            found[name] = _picked(mine, axis, ids if of_x else places)
    if problem.scaling is not None and problem.scaling.kind == "tensor":
        found["x_scale"] = args.x_scale
    return MatmulArgs(**found)


def _axes_of_rows(problem: GroupedMatmulDescriptor) -> dict[str, int]:
    """The row axis of each operand that has one, after the axis of groups."""
    if problem.layout == "k":
        return {}
    axes = {"x": 0, "add": 0, "out": 0}
    if problem.scaling is not None and problem.scaling.kind != "tensor":
        axes["x_scale"] = 0 if problem.scaling.x_scale_layout == "row" else 1
    return axes


def _axes_of_k(problem: GroupedMatmulDescriptor) -> dict[str, int]:
    """The axis of k of each operand, for layout k."""
    return {"x": 1 if problem.x_layout == "mk" else 0, "weight": 1 if problem.weight_layout == "nk" else 0}


def _of(tensor: Tensor | None, group: int) -> Tensor | None:
    return None if tensor is None else tensor[group]


def _picked(tensor: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    import torch

    raw = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor  # torch cannot index 8-bit floats
    index = torch.tensor(places, dtype=torch.int64, device=raw.device)
    return raw.index_select(axis, index).view(tensor.dtype)


def _sampled(problem: GroupedMatmulDescriptor, places: list[int], sample: Sample) -> list[int]:
    """A sample of a group's rows; each row is judged whole."""
    if sample.rows is None or problem.layout == "k" or sample.rows >= len(places):
        return places
    return sorted(random.Random(sample.seed).sample(places, sample.rows))


def _outside(problem: GroupedMatmulDescriptor, args: GroupedCall) -> Tensor:
    """A mask of the rows of out (with layout k, of the elements of k) that belong to no group."""
    import torch

    shape = (problem.k,) if problem.layout == "k" else args.out.shape[:-1]
    free = torch.ones(shape, dtype=torch.bool, device=args.out.device)
    for group, places in enumerate(places_of(problem, args)):
        (free[group] if problem.layout == "masked" else free)[places] = False
    return free


def _spoil(draw: Draw, name: str, axis: int) -> None:
    """Writes NaN to rows (layout k: elements of k) of an operand outside groups; with gather, to rows of x that are not
    used."""
    import torch

    problem, tensor, holder = draw.descriptor, draw.values[name], draw.descriptor.args_type(**draw.values)
    free = _outside(problem, holder)
    if name == "x" and problem.gather:
        taken = set(holder.x_rows[~free].tolist())
        free = torch.tensor([row not in taken for row in range(tensor.shape[0])], dtype=torch.bool, device=tensor.device)
    if problem.layout == "k":
        tensor = tensor.movedim(axis, 0)
    for place in free.nonzero().tolist():
        tensor[tuple(place)].copy_(torch.tensor(math.nan).expand(tensor.shape[len(place) :]))
