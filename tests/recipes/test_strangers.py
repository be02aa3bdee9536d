"""Random recipes over awkward shapes are correct: `--heavy` runs more, `python -m tests.recipes.campaign` any number."""

import pytest

from bench import strangers
from tests import emulator
from tests.recipes.campaign import held

QUICK, HEAVY = (7, 20, 31, 44), range(200, 300)


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
