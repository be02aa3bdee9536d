"""Rows of odd width in which neighbouring lanes have neighbouring elements: the bits of every path, and which problems use this
path.
"""

import pytest

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds import scatter
from opfacade.plans.reduction import FoldOutput, Stage
from opfacade.programs.expression import stage
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import X, layer, masked, quantised, reducer, rms, rows, softmax
from tests.families.reduction.held import same_on_every_path
from tests.families.reduction.test_fold_kernel import filled, held, moved

SM_90A = Target.parse("sm_90a")


def placed(shape):
    """The index of the maximum, and the distance of each element from the maximum."""
    outputs = (
        FoldOutput(name="at", dtype="i64", value=stage(0, "i64", "index"), over=(0,)),
        FoldOutput(name="y", dtype="f32", value=X - stage(0, "f32", "value")),
    )
    return rows(shape, (1,), (Stage(reducer="argmax", value=X),), outputs)


PROBLEMS = {
    "softmax": softmax((3, 183)),
    "softmax of few lanes": softmax((19, 13)),
    "softmax of warps": softmax((2, 1301)),
    "softmax of pairs": softmax((3, 902)),
    "softmax of words": softmax((3, 66)),
    "softmax of 16 bits": softmax((5, 225), "bf16"),
    "norm": rms((5, 207), "f16", residual=True),
    "norm of fours": rms((3, 332), "bf16", residual=True),
    "bytes": quantised((2, 3, 129)),
    "places": placed((4, 77)),
    "places of what is read once": reducer("argmax", "f32", (3, 701)),
    "deviations": reducer("welford", "f32", (2, 1285)),
    "a place decides": masked((9, 21)),
    "read again": layer((1, 9001)),
}
ARCH = {"read again": "sm_80"}  # a target without clusters


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_scattered_elements_keep_the_bound_and_give_the_bits_of_every_path(name):
    problem = PROBLEMS[name]
    subject, args = emulator.subject(problem, arch=ARCH.get(name, "sm_90a")), filled(problem, 7)
    assert dict(subject.plan.jit_spec.params)["scattered"] is True
    held(subject, moved(problem, filled(problem, 7), "compact"))
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in LAYOUTS])


@pytest.mark.parametrize(
    ("problem", "scattered"),
    [
        (softmax((9, 4)), False),
        (softmax((9, 5)), True),
        (softmax((9, 183)), True),
        (softmax((9, 904)), False),
        (softmax((9, 5003)), True),
        (softmax((9, 151_937)), True),
        (softmax((9, 7), "f16"), False),
        (softmax((9, 9), "f16"), True),
        (softmax((9, 1023), "f16"), True),
        (softmax((9, 1025), "f16"), False),
        (layer((9, 2001)), True),
        (rms((9, 207), "f16", residual=True), True),
        (rms((9, 336), "f16", residual=True), False),
        (rms((9, 207), "f32", residual=True), True),
        (rms((9, 4097), "f32", residual=True), False),
        (reducer("sum", "f32", (9, 333)), False),
        (reducer("sum", "f32", (9, 701)), True),
        (reducer("argmax", "f32", (9, 70_001)), True),
        (reducer("sum", "i8", (9, 333)), False),
        (reducer("sum", "bf16", (9, 50_257)), False),
    ],
)
def test_elements_are_scattered_where_that_is_faster(problem, scattered):
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    assert dict(plan.jit_spec.params).get("scattered", False) is scattered
    assert dict(plan.sku.spec).get("scattered", False) is scattered  # the SKU names the option because the bits depend on it


@pytest.mark.parametrize(
    ("elements", "size", "wanted"),
    [
        (5, 4, (4, 2, 1)),
        (32, 4, (4, 8, 1)),
        (33, 4, (8, 6, 1)),
        (65, 4, (16, 6, 1)),
        (128, 2, (16, 8, 1)),
        (129, 2, (32, 6, 1)),
        (301, 2, (32, 6, 2)),
        (903, 2, (32, 8, 4)),
        (314, 1, (32, 4, 3)),
        (129, 1, (32, 2, 3)),
    ],
)
def test_lanes_have_about_eight_elements_in_long_vectors(elements, size, wanted):
    lanes, vector, pieces = scatter.dealt(elements, size)
    assert (lanes, vector, pieces) == wanted
    assert lanes * vector * pieces >= elements
