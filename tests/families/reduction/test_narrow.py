"""Rows of odd width whose lanes load a word or two each: the bits of every path, and where that is so."""

import pytest

from opfacade import Plan, Preference, Target
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import layer, reducer, rms, softmax
from tests.families.reduction.held import same_on_every_path
from tests.families.reduction.test_fold_kernel import filled, held, moved

PROBLEMS = {
    "softmax": softmax((3, 183)),
    "softmax of warps": softmax((2, 1301)),
    "softmax of pairs": softmax((3, 902)),
    "norm": rms((5, 207), "f16", residual=True),
    "norm of fours": rms((3, 332), "bf16", residual=True),
}


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_narrow_loads_keep_the_bound_and_have_the_bits_of_every_path(name):
    problem = PROBLEMS[name]
    subject, args = emulator.subject(problem), filled(problem, 7)
    held(subject, moved(problem, filled(problem, 7), "compact"))
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in LAYOUTS])


@pytest.mark.parametrize(
    ("problem", "vector"),
    [
        (softmax((9, 183)), 2),
        (softmax((9, 902)), 2),
        (softmax((9, 904)), 4),
        (softmax((9, 127)), 4),
        (softmax((9, 5003)), 2),
        (softmax((9, 333), "f16"), 8),
        (layer((9, 2001)), 2),
        (rms((9, 207), "f16", residual=True), 2),
        (rms((9, 332), "f16", residual=True), 4),
        (rms((9, 336), "f16", residual=True), 8),
        (rms((9, 513), "f16", residual=True), 8),
        (rms((9, 207), "f16"), 8),
        (rms((9, 207), "f32", residual=True), 4),
        (reducer("sum", "f32", (9, 333)), 4),
    ],
)
def test_loads_are_narrow_where_that_takes_less_time(problem, vector):
    plan = Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_90a"))
    assert dict(plan.jit_spec.params)["vector"] == vector
