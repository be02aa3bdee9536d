"""Tests functions of the language over all inputs: the bound for 16-bit and 8-bit types, the largest error for f32.

A map measures the f32 error: it compares the function in f32 with the function in f64, which is 2^29 times more precise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.dtypes import ITEMSIZE, torch_dtype
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import Node, apply, constant, value
from opfacade.programs.fields import Input, Output
from opfacade.programs.operations import UNARY_FUNCTIONS
from opfacade.programs.types import LARGEST, NARROW
from opfacade.programs.ulps import ABSOLUTE, DEVICE, LGAMMA_OUTSIDE, documented
from opfacade.testing import numerics, prebuilt

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**25  # elements per launch
UNIT, TINY = 2.0**-23, 2.0**-149
APPLIED = (*UNARY_FUNCTIONS, "sqrt")
Make = Callable[[Any], Any]  # makes a Subject from a descriptor


class Exhausted(NamedTuple):
    """The result of one function over all inputs of a type.

    worst: the largest error relative to the bound, if there is one. ulps: the largest error in units of 2^-23 of the value,
    beyond the smallest subnormal. at: the input of this error.
    """

    function: str
    dtype: str
    inputs: int
    wrong: tuple[str, ...]
    worst: float | None = None
    ulps: float | None = None
    at: float | None = None


def of_dtype(op: str, dtype: str) -> MapDescriptor:
    """The map z = op(x) with one dtype, over all bit patterns of the dtype."""
    made = Output(name="z", dtype=dtype, value=apply(op, value("x", "f32")))
    return MapDescriptor(shape=(2 ** (8 * ITEMSIZE[dtype]),), inputs=(Input(name="x", dtype=dtype),), outputs=(made,))


def patterns(dtype: str, device: str) -> Tensor:
    """Every value of a 16 or 8-bit dtype."""
    import torch

    bits = 8 * ITEMSIZE[dtype]
    whole = torch.arange(2**bits, device=device).to(torch.int16 if bits == 16 else torch.uint8)
    return whole.view(torch_dtype(dtype))


def judged(make: Make, op: str, dtype: str) -> Exhausted:
    """Checks the bound of a kernel over every value of a dtype."""
    import torch

    subject = make(of_dtype(op, dtype))
    x = patterns(dtype, subject.device)
    args = subject.descriptor.args(x=x, z=torch.empty_like(x))
    subject.run(args)
    report = numerics.check(subject.descriptor, args, subject.plan.sku)
    wrong = () if report.worst <= 1 else (f"{report.worst:.3g} of the bound at {report.where}",)
    return Exhausted(op, dtype, x.numel(), wrong, worst=report.worst)


def error(op: str, root: Callable[[Node], Node] | None = None) -> MapDescriptor:
    """The error of an f32 function at x, minus TINY and the absolute error, in units of UNIT times the value; infinite if only
    one result is NaN.

    root: an expression that is measured instead of the function.
    """
    x = value("x", "f32")
    got = apply("f64", root(x) if root else apply(op, x))
    want = apply(op, apply("f64", x))
    zero, inf = constant(0.0, "f64"), constant("inf", "f64")
    beyond = apply("f64", abs(apply("f32", want))) > LARGEST["f32"]  # the nearest f32 is infinite: any large number is accepted
    apart = apply("maximum", abs(got - want) - (TINY + ABSOLUTE.get(op, (0.0, 0.0))[0]), zero)
    size = apply("select", apply("eq", apart, 0.0), zero, apart / (abs(want) * UNIT))
    found = apply("select", apply("isnan", want), apply("select", apply("isnan", got), zero, inf), size)
    found = apply("select", apply("eq", got, want), zero, apply("select", apply("isnan", found), inf, found))
    found = apply("select", beyond, apply("select", apply("isnan", got), inf, zero), found)
    if op == "lgamma":
        least, most = LGAMMA_OUTSIDE["f32"]
        inside = apply("and", x > least, x < most)
        found = apply("select", inside, zero, found)
    outputs = (Output(name="error", dtype="f64", value=found),)
    return MapDescriptor(shape=(CHUNK,), inputs=(Input(name="x", dtype="f32"),), outputs=outputs)


def every_f32(device: str) -> Iterator[Tensor]:
    """All 2^32 bit patterns."""
    import torch

    for first in range(-(2**31), 2**31, CHUNK):
        yield torch.arange(first, first + CHUNK, dtype=torch.int64, device=device).to(torch.int32).view(torch.float32)


def measured(make: Make, op: str, chunks: Iterable[Tensor], root: Callable[[Node], Node] | None = None) -> Exhausted:
    """Measures the largest error of an f32 function over some inputs. An error above the documented one is a failure."""
    import torch

    problem, most, at, count = error(op, root), 0.0, 0.0, 0
    for x in chunks:
        subject = make(problem.model_copy(update={"shape": (x.numel(),)}).revalidated())
        found = torch.empty(x.shape, dtype=torch.float64, device=x.device)
        subject.run(subject.descriptor.args(x=x, error=found))
        place = int(found.argmax())
        if float(found[place]) > most:
            most, at = float(found[place]), float(x[place])
        count += x.numel()
    limit = documented(op, "f32") if op in DEVICE else 0.5
    wrong = () if most <= limit else (f"{most:.4g} ulps at {at!r}, documented are {limit}",)
    return Exhausted(op, "f32", count, wrong, ulps=most, at=at)


def exhausted(make: Make, heavy: bool, ops: Sequence[str] = APPLIED, dtypes: Sequence[str] = NARROW) -> Iterator[Exhausted]:
    """Tests all functions. heavy: also over all f32 numbers, which needs a GPU."""
    problems = [
        problem for op in ops for problem in (*(of_dtype(op, dtype) for dtype in dtypes), *([error(op)] if heavy else []))
    ]
    if make(problems[0]).device == "cuda":
        prebuilt.build(problems)
    for op in ops:
        for dtype in dtypes:
            if not make(of_dtype(op, dtype)).declined:
                yield judged(make, op, dtype)
        subject = make(error(op))
        if heavy and subject.device == "cuda":
            yield measured(make, op, every_f32(subject.device))
