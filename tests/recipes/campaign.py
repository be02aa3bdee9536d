"""Random recipes over awkward shapes: `python -m tests.recipes.campaign --seed 1 --count 200 [--compile 20]`.

Needs no GPU. The kernel of each runs in the emulator, on tensors that are compact, transposed, stepped and not contiguous, and
is held to the guarantee and to torch's operator. `--compile` builds the first ones with nvcc as well. The status is 1 where one
is wrong or does not compile.
"""

import argparse
import sys
import time
import types
from contextlib import suppress
from dataclasses import replace

import torch

from bench import strangers
from bench.device_builds import DeviceBuilds
from opfacade import Plan, Preference, Target, recipes
from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import UnsupportedError
from opfacade.recipes import Shaped
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.elementwise.forms import laid_out
from tests.recipes import opinfo
from tests.recipes.test_opinfo import compare

LAYOUTS = ("compact", "transposed", "stepped")


def held(seed):
    """Raises AssertionError where the kernel of a random recipe is wrong."""
    call = strangers.recipe(seed)
    within_its_bound(call.descriptor, seed)
    as_torch(call, seed)


def within_its_bound(problem, seed):
    subject, args = emulator.subject(problem), inputs.make_args(problem, seed)
    read = [name for name, spec in operands_of(problem).items() if spec.role == "in"]
    for layout in LAYOUTS:
        call = replace(args, **{name: laid_out(getattr(args, name), layout) for name in read})
        before = numerics.snapshot(problem, call)
        subject.run(call)
        found = numerics.check(problem, call, subject.plan.sku, before=before)
        assert found.worst <= 1, (layout, found, problem)


def as_torch(call, seed):
    """Against torch's operator of that name, in its own type and in f64."""
    opinfo.infos()
    from torch.testing._internal.opinfo.core import SampleInput

    recipe, draw = recipes.RECIPES[call.name], torch.Generator().manual_seed(seed)
    (info, *_) = [one for name in recipe.names for one in opinfo.variants(name)] or [None]
    operator = getattr(torch, call.name) if info is None else info.op
    first, *rest = [_drawn(argument, draw) for argument in call.arguments]
    sample = SampleInput(first, args=tuple(rest))
    named = types.SimpleNamespace(name=call.name, op=_with_numbers(operator))
    compare(recipe, named, sample, opinfo.Call.of(named, sample), call.descriptor, backend="cuda")


def _with_numbers(operator):
    """torch accepts only tensors in some positions where recipes accept numbers too."""

    def called(first, *rest):
        try:
            return operator(first, *rest)
        except TypeError:
            return operator(first, *(torch.tensor(one, dtype=first.dtype) if type(one) is float else one for one in rest))

    return called


def _drawn(argument, draw):
    if isinstance(argument, list):
        return [_drawn(one, draw) for one in argument]
    if not isinstance(argument, Shaped):
        return argument
    return (2 * torch.randn(argument.shape, generator=draw)).to(torch_dtype(argument.dtype))


def compiled(seeds):
    """{seed: the compiler's output} of the recipes that nvcc refuses."""
    builds, found = DeviceBuilds.by(None), {}
    for seed in seeds:
        with suppress(UnsupportedError):
            plan = Plan.select(strangers.recipe(seed).descriptor, Preference(backend="cuda"), Target.parse("sm_90a"))
            built = builds.build(plan.jit_spec, time.monotonic() + 600)
            found |= {seed: built.failure} if built.failure else {}
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("seed", 0), ("count", 200), ("compile", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options, wrong = parser.parse_args(argv), {}
    seeds = range(options.seed * 10**6, options.seed * 10**6 + options.count)
    for seed in seeds:
        try:
            held(seed)
        except Exception as error:  # any exception of a random recipe is a finding
            wrong[seed] = f"{type(error).__name__}: {error}"
            print(f"WRONG {seed} {strangers.recipe(seed)}: {wrong[seed][:600]}", flush=True)
    refused = compiled(seeds[: options.compile])
    print(f"{options.count} recipes, {len(wrong)} wrong; {options.compile} built, {len(refused)} refused: {refused}")
    return 1 if wrong or refused else 0


if __name__ == "__main__":
    sys.exit(main())
