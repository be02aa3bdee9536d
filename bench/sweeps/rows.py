"""Random shapes of sums, argmax, norms, quantisation, gated activations and maps of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, Literal

import torch
import torch.nn.functional as F

from bench import rows as benched
from bench.maps import Problem, elementwise
from bench.sweeps import shapes
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.norm import Quant
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.programs.expression import apply, extent, stage, value
from opfacade.programs.fields import Input

DType = Literal["f32", "f16", "bf16"]
HIDDEN = (333, 4097, 50257, 2560, 128, 6144, 18432, 5120, 7168)
WIDEST_NORM, WIDEST_MAP = 65536, 200_000
LARGEST = 127.0


def dtype(draw: Random) -> DType:
    return draw.choice(("f32", "f16", "bf16"))


def fold(draw: Random, reducer: str, result: Any, eager: Callable[[torch.Tensor], torch.Tensor], made: str = "f32") -> Problem:
    """A result of each row."""
    rows, width = shapes.shape(draw)
    of = dtype(draw)
    told, lie = shapes.laid_out(draw, "in_0")
    described = FoldDescriptor(
        shape=(rows, width),
        fold=(1,),
        inputs=(Input(name="x", dtype=of),),
        stages=(Stage(reducer=reducer, value=value("x", "f32")),),
        outputs=(FoldOutput(name="y", dtype=made, value=result, over=(0,)),),
        split="auto",
    )
    name = {"expsum": "logsumexp", "welford": "variance"}.get(reducer, reducer)
    return Problem(f"{name} {of} {rows} x {width}{told}", described, lie, lambda args: eager(args.in_0), rows)


def total(draw: Random) -> Problem:
    return fold(draw, "sum", stage(0, "f32"), lambda x: x.sum(-1, dtype=torch.float32))


def logsumexp(draw: Random) -> Problem:
    result = stage(0, "f32", "max") + apply("log", stage(0, "f32", "sum"))
    return fold(draw, "expsum", result, lambda x: x.float().logsumexp(-1))


def place(draw: Random) -> Problem:
    return fold(draw, "argmax", stage(0, "i64", "index"), lambda x: x.argmax(-1), "i64")


def variance(draw: Random) -> Problem:
    result = stage(0, "f32", "m2") / apply("f32", extent(1))
    return fold(draw, "welford", result, lambda x: x.float().var(-1, correction=0))


def norm(draw: Random) -> Problem:
    hidden = draw.choice(HIDDEN) if draw.random() < 0.5 else shapes.between(draw, 16, WIDEST_NORM)
    rows = shapes.between(draw, 1, shapes.ELEMENTS // 2 // hidden)
    of, make = dtype(draw), draw.choice((benched.rms, benched.add_rms, benched.layer))
    found = make(rows, hidden)
    weight = {} if make is benched.layer else {"weight_dtype": of}
    described = found.descriptor.model_copy(update={"dtype": of} | weight)
    build = found.flashinfer if of != "f32" else None
    return replace(found, name=found.name.replace("norm ", f"norm {of} "), descriptor=described, flashinfer=build)


def quantised(draw: Random) -> Problem:
    """8 bits with one scale per row."""
    rows, width = shapes.shape(draw, WIDEST_MAP)
    of = dtype(draw)
    described = QuantizeDescriptor(total_num_rows=rows, hidden=width, dtype=of, quant=Quant(dtype="i8", scale="token"))

    def eager(args: Any) -> None:
        x = args.x.float()
        scale = x.abs().amax(-1).clamp(min=1e-10) / LARGEST
        args.scale.copy_(scale)
        args.out.copy_((x / scale[:, None]).round().clamp(-128, LARGEST))

    return Problem(f"quantise i8 a row {of} {rows} x {width}", described, lambda args: args, eager, rows)


def activation(draw: Random) -> Problem:
    rows, width = shapes.shape(draw, WIDEST_MAP)
    of, rows = dtype(draw), max(1, rows // 2)

    def eager(args: Any) -> torch.Tensor:
        gate, up = args.x.chunk(2, -1)
        return F.silu(gate) * up

    described = GatedActivationDescriptor(total_num_rows=rows, width=width, dtype=of)
    return Problem(f"silu_and_mul {of} {rows} x {width}", described, lambda args: args, eager, rows)


def added(draw: Random) -> Problem:
    """A map whose rows are parts of longer ones."""
    rows, width = shapes.shape(draw, WIDEST_MAP)
    described = elementwise(rows, width, value("x", "f32") + value("y", "f32"))
    return Problem(
        f"x + y bf16 {rows} x {width}, rows apart",
        described,
        lambda args: shapes.apart(args, "in_0"),
        lambda args: args.in_0 + args.in_1,
        rows,
    )


KINDS = (total, logsumexp, place, variance, norm, norm, norm, quantised, activation, added)


def problems(draw: Random) -> Iterator[Problem]:
    while True:
        yield draw.choice(KINDS)(draw)
