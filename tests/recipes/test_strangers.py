"""Random recipes over awkward shapes are right: their kernels in the emulator, inputs compact, with gaps and transposed.

`python -m bench.random_builds --engine recipes` compiles any number for a GPU. `--heavy` runs more here.
"""

from dataclasses import replace

import pytest

from bench import strangers
from opfacade.core.descriptor import operands_of
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.elementwise.forms import laid_out

QUICK, HEAVY = (7, 20, 31, 44), range(200, 300)
LAYOUTS = ("compact", "transposed")


def held(seed):
    problem = strangers.draw("recipes", seed)
    subject, args = emulator.subject(problem), inputs.make_args(problem, seed)
    read = [name for name, spec in operands_of(problem).items() if spec.role == "in"]
    for layout in LAYOUTS:
        call = replace(args, **{name: laid_out(getattr(args, name), layout) for name in read})
        before = numerics.snapshot(problem, call)
        subject.run(call)
        found = numerics.check(problem, call, subject.plan.sku, before=before)
        assert found.worst <= 1, (layout, found, problem)


@emulator.needed
@pytest.mark.parametrize("seed", QUICK)
def test_a_random_recipe_is_right(seed):
    held(seed)


@emulator.needed
@pytest.mark.heavy
@pytest.mark.parametrize("seed", HEAVY)
def test_many_random_recipes_are_right(seed):
    held(seed)


def test_the_shapes_are_awkward():
    drawn = [strangers.draw("recipes", seed) for seed in range(200)]
    assert sum(0 in one.shape for one in drawn) > 20
    assert sum(1 in one.shape for one in drawn) > 40
    assert sum(any(given.over is not None for given in one.inputs) for one in drawn) > 20
