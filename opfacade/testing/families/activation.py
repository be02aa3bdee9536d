"""Harness of gated activations: the value of each element in fp64 with the bound of the program."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.plans._programs.values import numbers_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs import bound
from opfacade.programs.evaluate import Values
from opfacade.programs.expression import Node
from opfacade.select.registry import examples
from opfacade.testing.batches import changed
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Report, constants, join
from opfacade.testing.families._folds import FoldHarness, least_rows, padding_of
from opfacade.testing.families.attention.inputs import positive
from opfacade.testing.families.elementwise import compared
from opfacade.testing.harness import Harness, HasLengths, Ran, Sample, kept, valid_part
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor


class _Result(NamedTuple):
    """An output in the form that `compared` expects."""

    name: str
    dtype: str
    value: Node


class GatedActivationHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        group = example.quant.group if example.quant is not None and example.quant.scale == "group" else 1
        rows = rng.randint(least_rows(example), max(1, min(60, tokens)))
        return changed(example, total_num_rows=rows, width=group * rng.randint(1, max(1, 90 // group)))

    def inputs(self, draw: Draw) -> None:
        if draw.descriptor.has_scale and draw.descriptor.quant.scale_dtype == "f32":
            positive(draw, ("scale",))

    def unowned(self, descriptor: GatedActivationDescriptor, args: Any, name: str) -> Tensor | None:
        makes = descriptor.makes_scales and name == "scale"
        return padding_of(args.scale, descriptor.quant, descriptor.total_num_rows) if makes else None

    def judge(self, ran: Ran, sample: Sample) -> Report:
        problem = ran.descriptor
        if problem.makes_scales:
            return FoldHarness().judge(ran, sample)
        given, after = valid_part(problem, replace(ran.args, **ran.before)), valid_part(problem, ran.args)
        leaves: dict[Any, Any] = {("input", name): part for name, part in problem.views(given.x).items()}
        leaves |= {("input", "scale"): given.scale} if problem.has_scale else {}
        values = Values(leaves | numbers_of(problem.scalars, given.x.device), given.x.device)
        bounds = bound.Bounds(values, bound.machine_of(constants(ran.sku)))
        got = after.x[:, : problem.width] if problem.in_place else after.out
        report = compared(_Result("out", problem.out_dtype, problem.program()["out"]), got, bounds)
        if problem.in_place and not same_bits(after.x[:, problem.width :], given.x[:, problem.width :]):
            return Report(math.inf, math.inf, "x past its first width elements was written", given.x.numel())
        return join(report, kept(ran))

    def label(self, descriptor: GatedActivationDescriptor, lengths: HasLengths) -> str:
        kind = "expression" if descriptor.expression is not None else descriptor.activation
        return f"{descriptor.op} {kind} {descriptor.total_num_rows}x{descriptor.width} {descriptor.dtype}"


HARNESSES: dict[str, Harness] = {"gated_activation": GatedActivationHarness()}
