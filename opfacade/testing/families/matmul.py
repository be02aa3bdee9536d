"""Harness of products: sums in fp64 with a bound for any order of k, followed by the epilogue's program."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from opfacade.core.descriptor import operands_of
from opfacade.core.operands import valid_count
from opfacade.plans._matmul.program import epilogue
from opfacade.plans._matmul.values import cut, leaves_of
from opfacade.programs import bound
from opfacade.programs.ball import Ball
from opfacade.programs.evaluate import Values
from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.families._matmul_grouped import GroupedHarness
from opfacade.testing.families._matmul_sums import sums_of
from opfacade.testing.families._matmul_weights import draw_weight
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample, kept
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.plans._matmul.fields import ProductCall
    from opfacade.plans.matmul import MatmulDescriptor


class MatmulHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        most = min(150, tokens)
        sizes = {"total_num_rows": rng.randint(0, most), "n": rng.randint(0, most), "k": rng.randint(0, 2 * most)}
        if example.batch > 1:
            sizes["batch"] = rng.randint(2, 4)
        return changed(example, **sizes)

    def inputs(self, draw: Draw) -> None:
        draw_scales(draw)
        if draw.descriptor.weight_format is not None:
            draw_weight(draw)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        problem, args = ran.descriptor, ran.args
        rows = valid_count(args.num_valid, problem.total_num_rows) if problem.num_valid else None
        given, after = (cut(problem, one, rows) for one in (replace(args, **ran.before), args))
        chosen = _chosen(given.out.shape[-2], sample)
        given, after = (_with_rows(problem, one, chosen) for one in (given, after))
        want = _expected(problem, given, after.out, constants(ran.sku))
        return join(compare([want], {"out": after.out}, index_of=_places(chosen)), kept(ran))

    def amount(self, descriptor: Any, lengths: HasLengths) -> Amount:
        products = descriptor.batch * descriptor.total_num_rows * descriptor.n * descriptor.columns * descriptor.k
        return Amount(super().amount(descriptor, lengths).bytes, 2.0 * products)

    def label(self, descriptor: Any, lengths: HasLengths) -> str:
        many = f"{descriptor.batch} x " if descriptor.batch > 1 else ""
        sizes = f"{many}{descriptor.total_num_rows} x {descriptor.n} x {descriptor.k}"
        scaled = f" {descriptor.scaling.kind}" if descriptor.scaling is not None else ""
        scaled += "" if descriptor.weight_format is None else f" {descriptor.weight_format.dtype}"
        return f"{descriptor.op} {sizes} {descriptor.dtype}{scaled} to {descriptor.result}"


def draw_scales(draw: Draw) -> None:
    """Scales as in a quantised model: positive, and powers of two if stored as f8_e8m0. Zero points are in the range of i8."""
    for name, most in (("x_zero", 127), ("weight_sum", 5000)):
        if name in draw.values:
            draw.values[name] = draw.integers(-most - 1, most, draw.values[name].shape).int()
    for name in ("x_scale", "weight_scale", "out_scale"):
        if name in draw.values:
            shape, dtype = draw.values[name].shape, draw.values[name].dtype
            draw.values[name] = (draw.integers(-8, 0, shape).float().exp2() * (1 + draw.uniform(shape))).to(dtype)


def _expected(problem: MatmulDescriptor, args: Args, got: Tensor, c: dict[str, float]) -> Bounded:
    """The expected out with its bounds. An infinite bound accepts any value, so `got` is then the expected value."""
    import torch

    call = cast("ProductCall", args)
    sums = sums_of(problem, call, c)
    if problem.result == "i32":
        return Bounded("out", sums.value.to(torch.int32), sums.hard, sums.tight)
    leaves = leaves_of(problem, call)
    hard, tight = (behind(problem, leaves, (sums.value, radius), c) for radius in (sums.hard, sums.tight))
    want = torch.where(hard.r.isinf(), got.double(), hard.v)
    radii = [1.02 * one.r for one in (hard, tight)]
    if sums.lost is not None and _keeps_infinities(problem):
        wrong = sums.lost & got.isfinite()
        want, *radii = want.masked_fill(wrong, math.nan), *(radius.masked_fill(wrong, 0.0) for radius in radii)
    return Bounded("out", want, *radii)


def _keeps_infinities(problem: MatmulDescriptor) -> bool:
    """Whether the result of every sum that is infinite or NaN is too."""
    return (
        problem.activation == "none" and not problem.gated and problem.alpha != 0 and problem.result in ("f16", "bf16", "f32")
    )


def behind(problem: MatmulDescriptor, leaves: dict[Any, Tensor], sums: tuple[Tensor, Tensor], c: dict[str, float]) -> Ball:
    """The results of the epilogue for the given sums and radii."""
    columns = problem.columns
    balls = {(part, "value"): Ball(*(one[..., part::columns] for one in sums)) for part in range(columns)}
    bounds = bound.Bounds(Values(leaves, sums[0].device), bound.machine_of(c), balls)  # type: ignore[arg-type]
    found = bounds(epilogue(problem))
    # the program of an i8 result ends with the conversion
    return found if problem.result == "i8" else bound.stored(found, problem.result)


def _chosen(rows: int, sample: Sample) -> list[int] | None:
    """The rows of a sample, or None for all rows."""
    if sample.rows is None or sample.rows >= rows:
        return None
    return sorted(random.Random(sample.seed).sample(range(rows), sample.rows))


def _with_rows(problem: Descriptor[Any], args: Any, chosen: list[int] | None) -> Any:
    """The call restricted to the given rows."""
    import torch

    if chosen is None:
        return args
    parts = {}
    for name, spec in operands_of(problem).items():
        axis = next((at for at, dim in enumerate(spec.shape) if dim.name.startswith("total_num_rows")), None)
        if axis is not None:
            tensor = getattr(args, name)
            raw = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor  # torch cannot index 8-bit floats
            parts[name] = raw.index_select(axis, torch.tensor(chosen, device=raw.device)).view(tensor.dtype)
    return replace(args, **parts)


def _places(chosen: list[int] | None) -> Any:
    """Maps the index of an element in the sample to the index in out."""
    return list if chosen is None else lambda index: [*index[:-2], chosen[index[-2]], index[-1]]


HARNESSES: dict[str, Harness] = {"matmul": MatmulHarness(), "grouped_matmul": GroupedHarness(_expected, draw_scales)}
