"""Folds of ragged rows: the values of numpy, their bound in every layout, equal bits in any batch, wrong indptr, refusals.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.errors import DescriptorError, IndexDataError, UnsupportedError
from opfacade.plans.reduction import EXAMPLES, FoldDescriptor, FoldOutput, FoldPlan, Stage
from opfacade.programs.expression import apply, coord, extent, stage, value
from opfacade.programs.fields import Input
from opfacade.programs.stages import REDUCERS
from opfacade.testing import determinism
from opfacade.testing.batches import Campaign
from opfacade.testing.families.elementwise import differs
from opfacade.validation.values import ValueGuard, bounded_of
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import FORMS, W, X
from tests.families.reduction.held import builds_without_spills, on_gpu
from tests.families.reduction.test_fold_kernel import filled, held, moved

SM_90A = Target.parse("sm_90a")
SMALL = replace(SM_90A, sm_count=2)  # few CTAs, each of which folds many rows
NAMES = [name for name in REDUCERS if not name.startswith("arg")]
LENGTHS = (0, 1, 31, 32, 33, 300, 1024, 1025, 0, 2100, 7)  # lengths near the size of a warp and of a CTA, and empty rows


MANY = (len(LENGTHS), sum(LENGTHS))


def ragged(shape, stages, outputs, inputs, indptr="i32", fold=(1,), **more):
    return FoldDescriptor(shape=shape, fold=fold, inputs=inputs, stages=stages, outputs=outputs, ragged=indptr, **more)


def flat(dtype="f32", over=(1,)):
    return (Input(name="x", dtype=dtype, over=over),)


def reducer(name, shape=MANY, dtype="f32", over=(1,), fold=(1,)):
    kept = tuple(axis for axis in range(len(shape)) if axis not in fold)
    x = value("x", {"i32": "i32", "f64": "f64", "u64": "u64"}.get(dtype, "f32"))
    made = Stage(reducer=name, value=x > 0 if REDUCERS[name].types == ("bool",) else x)
    outputs = tuple(FoldOutput(name=part, dtype=made.part(part), value=stage(0, made.part(part), part), over=kept)
                    for part in REDUCERS[name].parts)  # fmt: skip
    return ragged(shape, (made,), outputs, flat(dtype, over), fold=fold)


def softmax(shape, dtype="f32", over=(1,), indptr="i32"):
    y = apply("exp", X - stage(0, "f32", "max")) / stage(0, "f32", "sum")
    made = (FoldOutput(name="y", dtype=dtype, value=y, over=over),)
    return ragged(shape, (Stage(reducer="expsum", value=X),), made, flat(dtype, over), indptr)


def centred(shape, over, **more):
    """Deviations from the mean of a row, multiplied by a weight of the row, and the mean of their squares."""
    mean = stage(0, "f32") / apply("f32", extent(1))
    last = tuple(axis for axis in over if axis > 1)
    stages = (Stage(reducer="sum", value=X), Stage(reducer="sum", value=(X - mean) * (X - mean)))
    spread = stage(1, "f32") / apply("f32", extent(1)) + W
    outputs = (FoldOutput(name="y", dtype="bf16", value=(X - mean) * W, over=over),
               FoldOutput(name="spread", dtype="f32", value=spread, over=(*last, 0)))  # fmt: skip
    inputs = (*flat("bf16", over), Input(name="w", dtype="f32", over=(0,)))
    return ragged(shape, stages, outputs, inputs, **more)


def placed():
    """The sum of every second element of a row, by its position in the row."""
    term = apply("select", apply("eq", apply("rem", coord(1), 2), 0), X, 0.0)
    made = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),)
    return ragged(MANY, (Stage(reducer="sum", value=term),), made, flat())


def weighted():
    """The sum over a row of vectors with a weight per feature."""
    made = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),)
    inputs = (*flat("f32", (1, 2)), Input(name="w", dtype="f32", over=(2,)))
    return ragged((6, 700, 3), (Stage(reducer="sum", value=X * W),), made, inputs, fold=(1, 2))


LAST_EXAMPLE = [one for one in EXAMPLES if one.ragged][-1]
PROBLEMS = {
    **{name: reducer(name) for name in NAMES},
    "sum_i32": reducer("sum", dtype="i32"),
    "max_i32": reducer("max", dtype="i32"),
    "min_u64": reducer("min", dtype="u64"),
    "welford_f64": reducer("welford", dtype="f64"),
    "softmax": softmax(MANY, "bf16", indptr="i64"),
    "centred": centred(MANY, (1,)),
    "vectors": reducer("sum", (5, 900, 4), over=(1, 2), fold=(1, 2)),
    "weighted": weighted(),
    "heads": reducer("max", (5, 60, 3, 8), over=(1, 2, 3), fold=(1, 3)),
    "placed": placed(),
    "no_rows": reducer("sum", (0, 5)),
    "no_elements": reducer("max", (3, 0)),
    **{f"columns_{name}": reducer(name, (6, 200, 12), over=(1, 2)) for name in NAMES},
    "columns_bf16": reducer("sum", (6, 200, 24), "bf16", over=(1, 2)),
    "columns_softmax": softmax((6, 150, 10), "f16", (1, 2), "i64"),
    "columns_centred": centred((6, 150, 16), (1, 2)),
}


def drawn(problem, seed):
    """Arguments with rows of LENGTHS if they fit, otherwise of random lengths; some elements belong to no row."""
    args = filled(problem, seed)
    rows, total = problem.shape[:2]
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, total + 1, (rows + 1,), generator=generator).sort().values
    if rows == len(LENGTHS):
        ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    args.indptr.copy_(ends)
    return args


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    subject = emulator.subject(problem)
    args = drawn(problem, 3)
    held(subject, replace(moved(problem, args, layout), indptr=args.indptr))


@emulator.needed
def test_a_fold_without_stages_can_return_the_row_lengths():
    length = apply("f32", extent(1))
    problem = FoldDescriptor(
        shape=(3, 10),
        fold=(1,),
        ragged="i32",
        stages=(),
        inputs=(Input(name="w", dtype="f32", over=(0,)),),
        outputs=(FoldOutput(name="y", dtype="f32", over=(0,), value=value("w", "f32") * length),),
    )
    args = drawn(problem, 3)
    args.indptr.copy_(torch.tensor([0, 2, 2, 9]))
    args.in_0.fill_(1.0)
    held(emulator.subject(problem), args)
    assert args.out_0.tolist() == [2.0, 0.0, 7.0]


@emulator.needed
def test_the_bits_do_not_depend_on_the_path(problem):
    subject, args = emulator.subject(problem), drawn(problem, 4)
    calls = [replace(moved(problem, args, layout), indptr=args.indptr) for layout in LAYOUTS]
    for call in calls:
        for one in problem.written(call):
            one.zero_()
        subject.run(call)
    for one, *others in zip(*(problem.written(call) for call in calls), strict=True):
        for other in others:
            assert not bool(differs(one, other).any())


@emulator.needed
@pytest.mark.parametrize("problem", [softmax((4, 60), "bf16"), reducer("welford", (4, 60)), softmax((4, 60, 6), "f32", (1, 2)),
                                     reducer("sum", (4, 60, 9), "bf16", (1, 2))],
                         ids=["softmax", "welford", "columns_softmax", "columns_sum"])  # fmt: skip
def test_a_row_has_the_same_bits_in_any_batch_and_place(problem):
    """The batches have long and short rows in any order, rows of NaN between them, and elements of no row at the end."""
    subject = emulator.subject(problem)
    assert subject.plan.precision_guarantee.batch_invariant == "composition"
    shown = determinism.batch_invariance(subject, Campaign(needles=4, compositions=3, largest=6, longest=2500), seed=2)
    assert shown.compared >= 12
    assert shown.different == 0, shown


def _rows(x, indptr):
    return [x[a:b] for a, b in pairwise(indptr)]


@emulator.needed
@pytest.mark.parametrize("run", ["emulated", "reference"])
@pytest.mark.parametrize("width", [None, 7])
def test_the_results_equal_numpy(run, width):
    """An independent oracle computes each row in long doubles."""
    more, over = ((), (1,)) if width is None else ((width,), (1, 2))
    shape = (len(LENGTHS), sum(LENGTHS), *more)
    kept = (0, *(2 for _ in more))
    names = ("sum", "max", "expsum")
    stages = tuple(Stage(reducer=name, value=X) for name in names)
    outputs = (FoldOutput(name="total", dtype="f32", value=stage(0, "f32"), over=kept),
               FoldOutput(name="most", dtype="f32", value=stage(1, "f32"), over=kept),
               FoldOutput(name="mean", dtype="f32", value=stage(0, "f32") / apply("f32", extent(1)), over=kept),
               FoldOutput(name="y", dtype="f32", over=over,
                          value=apply("exp", X - stage(2, "f32", "max")) / stage(2, "f32", "sum")))  # fmt: skip
    problem = ragged(shape, stages, outputs, flat("f32", over))
    args = drawn(problem, 7)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(1)))
    (emulator.subject(problem) if run == "emulated" else FoldPlan.select(problem)).run(args)
    x = args.in_0.numpy().astype(np.longdouble)
    parts = _rows(x, args.indptr.tolist())
    none = np.zeros((0, *more), np.longdouble)
    np.testing.assert_allclose(args.out_0.numpy(), [one.sum(0) for one in parts], rtol=1e-5, atol=2e-4)
    want = [one.max(0) if len(one) else np.full(more, -np.inf) for one in parts]
    assert np.array_equal(args.out_1.numpy(), np.array(want, np.float32))
    means = np.array([one.mean(0) if len(one) else np.full(more, np.nan) for one in parts], np.float64)
    np.testing.assert_allclose(args.out_2.numpy(), means, rtol=1e-4, atol=2e-6)
    shares = [np.exp(one - one.max(0)) / np.exp(one - one.max(0)).sum(0) if len(one) else none for one in parts]
    np.testing.assert_allclose(args.out_3.numpy(), np.concatenate(shares).astype(np.float64), rtol=2e-5)


@emulator.needed
@pytest.mark.parametrize("run", ["emulated", "reference"])
def test_an_empty_row_gives_the_identity_of_the_reducer(run):
    want = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf, "any": False, "all": True}
    for name, expected in want.items():
        problem = reducer(name, (2, 3))
        args = filled(problem, 1)
        args.indptr.copy_(torch.tensor([2, 2, 3]))
        (emulator.subject(problem) if run == "emulated" else FoldPlan.select(problem)).run(args)
        assert args.out_0[0].item() == expected
    problem = reducer("max", (2, 3), "i32")
    args = filled(problem, 1)
    args.indptr.copy_(torch.tensor([2, 2, 3]))
    (emulator.subject(problem) if run == "emulated" else FoldPlan.select(problem)).run(args)
    assert args.out_0[0].item() == -(2**31)


@emulator.needed
@pytest.mark.parametrize("layout", ["compact", "stepped"])
def test_a_cta_that_folds_many_short_and_a_few_long_rows(layout):
    """A CTA takes 64 short rows; among the rows are empty rows and three long rows of the same CTA."""
    rows = 64 * 8 * SMALL.sm_count + 5
    lengths = torch.randint(0, 3, (rows,), generator=torch.Generator().manual_seed(2))
    ctas = -(-rows // 64)
    lengths[[3, 3 + 40 * ctas, 3 + 41 * ctas]] = torch.tensor([1500, 1300, 1100])
    problem = reducer("sum", (rows, int(lengths.sum())))
    args = filled(problem, 1)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(1)))
    args.indptr.copy_(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
    call = replace(moved(problem, args, layout), indptr=args.indptr)
    emulator.subject(problem, device_like=SMALL).run(call)
    want = torch.segment_reduce(args.in_0.double(), "sum", offsets=args.indptr.long())
    torch.testing.assert_close(call.out_0.double(), want, rtol=1e-5, atol=1e-3)


def averages():
    """The mean of a row of vectors of two elements, multiplied by a weight of the row: an output uses the length, and a stage
    uses an input of the row."""
    made = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32") / apply("f32", extent(1)), over=(0,)),)
    inputs = (*flat("bf16", (1, 2)), Input(name="w", dtype="f32", over=(0,)))
    return lambda rows, total: ragged((rows, total, 2), (Stage(reducer="sum", value=X * W),), made, inputs, fold=(1, 2))


GROUPED = {
    "sum": lambda rows, total: reducer("sum", (rows, total), "bf16"),
    "welford": lambda rows, total: reducer("welford", (rows, total)),
    "averages": averages(),
}


@emulator.needed
@pytest.mark.parametrize("name", GROUPED)
def test_rows_that_a_warp_folds_together_have_the_bits_of_single_rows(name):
    """The lengths of rows range from 0 to several batches of a group, and some rows are long; strided rows are folded one at a
    time."""
    rows = 64 * 8 * SMALL.sm_count + 3
    lengths = torch.randint(0, 3, (rows,), generator=torch.Generator().manual_seed(4))
    lengths[::7] += torch.arange(len(lengths[::7])) * 2
    lengths[[2, 5, rows - 2]] = torch.tensor([1300, 1024, 1100])
    problem = GROUPED[name](rows, int(lengths.sum()))
    subject = emulator.subject(problem, device_like=SMALL)
    assert dict(subject.plan.jit_spec.params)["grouped"]
    args = filled(problem, 1)
    args.indptr.copy_(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
    calls = [replace(moved(problem, args, layout), indptr=args.indptr) for layout in ("compact", "stepped")]
    for call in calls:
        subject.run(call)
    for one, other in zip(*(problem.written(call) for call in calls), strict=True):
        assert not bool(differs(one, other).any())
    held(subject, calls[0])


WRONG = ([0, 5, 99, 20, 40], [-7, 3, -1, 8, 2**31 - 1], [40, 30, 20, 10, 0], [0, 0, 2**31 - 1, -(2**31), 40])


@emulator.needed
@pytest.mark.parametrize("indptr", WRONG)
@pytest.mark.parametrize("name", ["rows", "columns"])
def test_invalid_entries_of_indptr_access_nothing_outside_the_tensors(name, indptr):
    more, over = ((), (1,)) if name == "rows" else ((4,), (1, 2))
    problem = softmax((4, 40, *more), "f32", over)
    shape = (40, *more)
    size = math.prod(shape)
    whole = torch.full((size + 4096,), float("nan"))
    x = whole[2048 : 2048 + size].view(shape).copy_(torch.randn(shape))
    memory = torch.full((size + 4096,), 77.0)
    y = memory[2048 : 2048 + size].view(shape)
    args = replace(filled(problem, 1), in_0=x, out_0=y, indptr=torch.tensor(indptr, dtype=torch.int32))
    emulator.subject(problem).run(args)
    assert bool((memory[:2048] == 77).all())
    assert bool((memory[2048 + size :] == 77).all())
    assert not bool(y.isnan().any())
    other = replace(args, out_0=torch.full(shape, 77.0))
    FoldPlan.select(problem).run(other)
    torch.testing.assert_close(y, other.out_0, rtol=1e-5, atol=0)


@emulator.needed
def test_elements_outside_all_rows_are_neither_read_nor_written():
    problem = softmax((2, 50), "f32")
    args = filled(problem, 1)
    args.indptr.copy_(torch.tensor([10, 20, 40]))
    args.in_0[:10] = args.in_0[40:] = float("nan")
    args.in_0[10:40] = 1.0
    args.out_0.fill_(3.0)
    emulator.subject(problem).run(args)
    assert args.out_0.tolist() == pytest.approx([3.0] * 10 + [0.1] * 10 + [0.05] * 20 + [3.0] * 10)


def test_validation_reports_entries_of_indptr_outside_the_tensor():
    problem = reducer("sum", (3, 10))
    args = filled(problem, 1)
    args.indptr.copy_(torch.tensor([0, 4, 11, 10]))
    with pytest.raises(IndexDataError, match=r"indptr\[2\].*\[0, 11\).*OPF-V001"):
        ValueGuard("fold", bounded_of(problem)).judge(args)


OF_ROW = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),)
SUM = (Stage(reducer="sum", value=X),)


@pytest.mark.parametrize(
    ("make", "path", "word"),
    [
        (lambda: ragged((2, 3), SUM, OF_ROW, flat(), fold=(0,)), "fold", "axis 1"),
        (lambda: ragged((2, 3), SUM, OF_ROW, flat(over=None)), "inputs.0.over", "either axis 0"),
        (lambda: ragged((2, 3), SUM, OF_ROW, flat(over=(0, 1))), "inputs.0.over", "either axis 0"),
        (lambda: ragged((2, 3), SUM, (FoldOutput(name="y", dtype="f32", value=X),), flat()), "outputs.0.over", "either axis 0"),
        (lambda: reducer("argmax", (2, 3)), "stages.0.reducer", "value for an empty row"),
        (lambda: ragged((2, 3), SUM, OF_ROW, flat(), split="auto"), "split", "off with ragged"),
        (lambda: ragged((2, 3), SUM, OF_ROW, flat(), num_valid=True), "num_valid", "False with ragged"),
        (lambda: ragged((2, 3), (Stage(reducer="sum", value=X * apply("f32", coord(0))),), OF_ROW, flat()),
         "stages.0.value.args.1.args.0.axis", "other than the ragged axis"),
        (lambda: ragged((2, 3, 4), (Stage(reducer="sum", value=X, axes=(2,)), *SUM), OF_ROW, flat(over=(1, 2)), fold=(1, 2)),
         "stages.0.axes", "all folded axes"),
        (lambda: ragged((2, 3), SUM, (FoldOutput(name="y", dtype="f32", value=X * stage(0, "f32"), over=(0,)),), flat()),
         "outputs.0.value", "constant along the axes [1]"),
    ],
)  # fmt: skip
def test_an_invalid_program_is_refused_with_the_path_to_its_node(make, path, word):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)


def test_the_last_axis_selects_the_kernel_and_lengths_do_not():
    plan = Plan.select(PROBLEMS["softmax"], Preference(backend="cuda"), SM_90A)
    assert "/ragged@1/in.x=bf16,indptr=i64,out.y=bf16/" in plan.sku.id
    same = Plan.select(softmax((70000, 10**7), "bf16", indptr="i64"), Preference(backend="cuda"), SM_90A)
    assert (same.sku.id, same.jit_spec) == (plan.sku.id, plan.jit_spec)
    columns = Plan.select(PROBLEMS["columns_bf16"], Preference(backend="cuda"), SM_90A)
    assert columns.sku.impl == "ragged_columns"
    assert ",groups=8,math=device,rows=4,stream=true,vector=8/" in columns.sku.id
    with pytest.raises(UnsupportedError, match="ragged"):
        Plan.select(FORMS["rms"], Preference(backend="cuda", forbid=("rows", "general")), SM_90A)


def test_a_serialised_descriptor_is_equal_and_the_default_of_ragged_is_not_serialised(problem):
    assert load_descriptor(problem.canonical_json()) == problem
    assert "ragged" not in FORMS["rms"].model_dump_json()


PLAINER = [pytest.param(name, marks=pytest.mark.heavy) for name in ("sum", "softmax", "placed", "columns_bf16")]


# the programs with the most stages and the largest states
@pytest.mark.parametrize("name", ["centred", "welford_f64", "columns_centred", *PLAINER])
def test_the_largest_programs_compile_without_spills(name):
    builds_without_spills(PROBLEMS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    args = drawn(problem, 3)
    on_gpu(problem, replace(moved(problem, args, layout), indptr=args.indptr))


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [softmax((300, 400000), "bf16"), reducer("welford", (100, 900000)),
                                     softmax((200, 5000, 136), "bf16", (1, 2)), LAST_EXAMPLE])  # fmt: skip
def test_many_rows_keep_the_bound_on_a_gpu(problem):
    on_gpu(problem, drawn(problem, 5))
