"""Harness of maps: the value of each output in fp64 with the bound of the program."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.plans._programs.values import values_of
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import bound
from opfacade.programs.evaluate import stored
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.families._functions import Exhausted, exhausted
from opfacade.testing.harness import Harness, HasLengths, Ran, Sample, kept, valid_part

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.testing.subject import Subject


class MapHarness(Harness):
    unit = "shape[0]"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        example: Any = rng.choice([example for example in examples() if example.op == op])
        return resized(example, [rng.randint(0, min(40, tokens)) for _ in example.shape])

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """Exact outputs must have equal bits, and an infinite bound accepts any value."""
        given, after = valid_part(ran.descriptor, replace(ran.args, **ran.before)), valid_part(ran.descriptor, ran.args)
        outputs = ran.descriptor.written(after)
        problem = resized(ran.descriptor, tuple(outputs[0].shape))
        values, machine = values_of(problem, replace(given, out_0=after.out_0)), bound.machine_of(constants(ran.sku))
        bounds, report = bound.Bounds(values, machine), kept(ran)
        for output, got in zip(problem.outputs, outputs, strict=True):
            report = join(report, compared(output, got, bounds))
        return report

    def exhaustive(self, make: Callable[[Any], Any], heavy: bool) -> Iterator[Exhausted]:
        return exhausted(make, heavy)

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        def of_rows(problem: MapDescriptor, count: int) -> Any:
            return resized(problem, (count, *problem.shape[1:]))

        return DenseBatches.drawn(subject, self.unit, campaign.needles, rng, of_rows)

    def label(self, descriptor: MapDescriptor, lengths: HasLengths) -> str:
        dtypes = [*(one.dtype for one in descriptor.inputs), *(one.dtype for one in descriptor.outputs)]
        return " ".join([descriptor.op, "x".join(map(str, descriptor.shape)), *dtypes])


def resized(descriptor: MapDescriptor, shape: Sequence[int]) -> Any:
    """The same map with other extents; an input with its own shape keeps that shape."""
    return changed(descriptor, shape=tuple(shape))


def compared(output: Any, got: Tensor, bounds: bound.Bounds) -> Report:
    """Compares one output with its expected value; exact values must be equal bit for bit, except that all NaNs are equal."""
    import torch

    if got.numel() == 0:
        return Report(0.0, 0.0, "", 0)
    if output.value.exact:
        want = stored(bounds.exact.own(output.value), output.dtype).expand(got.shape)
        wrong, none = differs(got, want).double(), torch.zeros(got.shape, dtype=torch.float64, device=got.device)
        return compare([Bounded(output.name, none, none, none)], {output.name: wrong}, "1 is a wrong bit pattern:")
    ball = bounds(output.value)
    ball = bound.stored(ball, output.dtype) if got.is_floating_point() else ball
    v, r, value = ball.v.expand(got.shape), 1.02 * ball.r.expand(got.shape), got.double()
    return compare([Bounded(output.name, torch.where(r.isinf(), value, v), r, r)], {output.name: value})


def differs(a: Tensor, b: Tensor) -> Tensor:
    """A mask of the elements that differ; all NaNs are equal, and -0 differs from 0."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = [one.contiguous().view(kinds[one.element_size()]) for one in (a, b)]
    if not a.is_floating_point():
        return bits[0] != bits[1]
    nan = [(one.float() if one.itemsize == 1 else one).isnan() for one in (a, b)]
    return (bits[0] != bits[1]) & ~(nan[0] & nan[1])


HARNESSES: dict[str, Harness] = {"map": MapHarness()}
