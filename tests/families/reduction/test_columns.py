"""The fold kernels in columns: their bound, equal bits on every path and for each column alone, memory that they must not
touch, compilation, and whole vectors.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.plans.reduction import FoldOutput, Stage
from opfacade.plans.softmax import SoftmaxDescriptor
from opfacade.programs.expression import apply, coord, read, stage
from opfacade.programs.fields import Input
from opfacade.programs.stages import REDUCERS
from opfacade.testing.families.elementwise import differs
from opfacade.testing.families.reduction import resized
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS
from tests.families.reduction.forms import FORMS, R, W, X, reducer, rows, softmax
from tests.families.reduction.held import builds_without_spills, on_gpu, same_on_every_path
from tests.families.reduction.test_fold_kernel import filled, held, moved

SM_90A = Target.parse("sm_90a")


def centred(shape, dtype="f32", **more):
    """Each element minus the mean of its column, multiplied by a factor of its row and a factor of its column."""
    mean = stage(0, "f32") / float(shape[1])
    stages = (Stage(reducer="sum", value=X), Stage(reducer="sum", value=(X - mean) * (X - mean)))
    inputs = (Input(name="x", dtype=dtype), Input(name="w", dtype="f16", over=(0, 1)), Input(name="r", dtype="f32", over=(2,)))
    outputs = (FoldOutput(name="y", dtype=dtype, value=(X - mean) * W * R),
               FoldOutput(name="m2", dtype="f32", value=stage(1, "f32") + R, over=(2, 0)))  # fmt: skip
    return rows(shape, (1,), stages, outputs, inputs, **more)


def placed(shape):
    """The sum of the part on and below the diagonal, plus the table entry at the index of the first maximum."""
    stages = (Stage(reducer="sum", value=apply("select", coord(1) <= coord(0), X, 0.0)), Stage(reducer="argmax", value=X))
    found = read("t", "f32", (stage(1, "i64", "index"),)) + stage(0, "f32")
    inputs = (Input(name="x", dtype="f32"), Input(name="t", dtype="f32", shape=(shape[0],)))
    return rows(shape, (0,), stages, (FoldOutput(name="y", dtype="f32", value=found, over=(1,)),), inputs)


COLUMNS = {
    **{f"{name}_f32": reducer(name, "f32", (37, 12), (0,)) for name in REDUCERS},
    "sum_bf16": reducer("sum", "bf16", (130, 40), (0,)),
    "sum_i8": reducer("sum", "i8", (300, 24), (0,)),
    "welford_f64": reducer("welford", "f64", (50, 6), (0,)),
    "argmin_u64": reducer("argmin", "u64", (40, 5), (0,)),
    "any_bool": reducer("any", "bool", (33, 17), (0,)),
    "middle": reducer("expsum", "f32", (3, 65, 10), (1,)),
    "several": reducer("sum", "f16", (5, 3, 6, 7), (0, 2)),
    "two_columns_axes": reducer("max", "f32", (9, 4, 6), (0,)),
    "one_column": reducer("argmax", "f32", (9, 70, 1), (1,)),
    "empty": reducer("sum", "f32", (0, 9), (0,)),
    "none": reducer("sum", "f32", (7, 0), (0,)),
    "one": reducer("welford", "f32", (1, 9), (0,)),
    "softmax": softmax((9, 20), "bf16", 0),
    "softmax_long": softmax((300, 16), "f32", 0),
    "softmax_middle": softmax((2, 40, 24), "f16", 1),
    "centred": centred((3, 50, 16)),
    "centred_in_place": centred((3, 9, 7), in_place=(("y", "x"),)),
    "centred_valid": centred((6, 20, 8), "bf16", num_valid=True),
    "placed": placed((12, 9)),
}
LENGTHS = (1, 2, 7, 8, 9, 31, 33, 63, 255, 256, 257, 1023, 1025)


@pytest.fixture(params=COLUMNS)
def problem(request):
    return COLUMNS[request.param]


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == "columns"
    held(subject, moved(problem, filled(problem, 3), layout))


@emulator.needed
def test_bits_do_not_depend_on_the_path_nor_on_other_columns(problem):
    subject, args = emulator.subject(problem), filled(problem, 4)
    calls = [moved(problem, args, layout) for layout in LAYOUTS]
    same_on_every_path(subject, args, calls)


@emulator.needed
@pytest.mark.parametrize("name", ["sum_bf16", "softmax_long", "welford_f32", "argmax_f32", "expsum_f32"])
def test_a_single_column_has_the_same_bits_as_among_others(name):
    problem = COLUMNS[name]
    subject, args = emulator.subject(problem), filled(problem, 5)
    subject.run(args)
    alone = resized(problem, (problem.shape[0], 1))
    assert emulator.subject(alone).plan.sku.id == subject.plan.sku.id
    for column in (0, problem.shape[1] - 1):
        cut = {n: getattr(args, n).narrow(-1, column, 1) for n in operands_of(problem)}
        call = type(args)(**{n: t.clone().contiguous() if n.startswith("in") else torch.zeros_like(t) for n, t in cut.items()})
        emulator.subject(alone).run(call)
        for n in (n for n in cut if n.startswith("out")):
            assert not bool(differs(getattr(call, n), cut[n].contiguous()).any())


@emulator.needed
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: softmax((n, 9), "f32", 0),
        lambda n: reducer("argmin", "bf16", (n, 9), (0,)),
        lambda n: reducer("welford", "f32", (n, 9), (0,)),
    ],
    ids=["softmax", "argmin", "welford"],
)
def test_columns_of_each_length_keep_the_bound(make, length):
    problem = make(length)
    held(emulator.subject(problem), filled(problem, length))


CLUSTERS = {
    "softmax": softmax((700, 9), "f32", 0),
    "sum": reducer("sum", "f32", (4100, 5), (0,)),
    "welford": reducer("welford", "bf16", (4100, 3), (0,)),
    "argmax": reducer("argmax", "f32", (8200, 3), (0,)),
    "centred": centred((1, 1000, 5)),
}


@emulator.needed
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_that_shares_a_column_keeps_the_bound(name, monkeypatch):
    problem = CLUSTERS[name]
    subject = emulator.subject(problem)
    assert "cluster=" in subject.plan.sku.id
    held(subject, filled(problem, 2))
    emulator.last_first(monkeypatch)
    held(subject, filled(problem, 2))


@emulator.needed
@pytest.mark.parametrize("name", ["softmax", "centred"])
def test_columns_that_exceed_shared_memory_are_read_again(name):
    """Devices without clusters read such columns twice."""
    problem = CLUSTERS[name]
    subject = emulator.subject(problem, arch="sm_80")
    assert "stream=true" in subject.plan.sku.id
    held(subject, filled(problem, 2))


@emulator.needed
def test_sums_of_integers_equal_numpy():
    """An independent oracle: sums of integers below 2^20 are exact in f32."""
    problem = reducer("sum", "f32", (257, 20), (0,))
    args = filled(problem, 1)
    args.in_0.copy_(torch.randint(-99, 99, (257, 20)).float())
    emulator.subject(problem).run(args)
    assert np.array_equal(args.out_0.numpy(), args.in_0.numpy().astype(np.int64).sum(0).astype(np.float32))
    places = reducer("argmin", "f32", (257, 20), (0,))
    call = replace(filled(places, 1), in_0=args.in_0)
    emulator.subject(places).run(call)
    assert np.array_equal(call.out_1.numpy(), args.in_0.numpy().argmin(0))


@emulator.needed
@pytest.mark.parametrize("width", [1, 3, 4, 8, 9, 33])
def test_nothing_is_written_after_the_end_of_the_output(width):
    problem = softmax((10, width), "f32", 0)
    subject, args = emulator.subject(problem), filled(problem, width)
    wide = torch.full((10 * width + 40,), 77.0)
    for shift in (0, 4, 1):
        wide.fill_(77)
        held(subject, replace(args, out_0=wide[shift : shift + 10 * width].view(10, width)))
        assert bool((wide[:shift] == 77).all())
        assert bool((wide[shift + 10 * width :] == 77).all())


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    problem = COLUMNS["centred_valid"]
    subject = emulator.subject(problem)
    for layout in LAYOUTS:
        for count in (0, 4, 6, -1, 7):
            args = moved(problem, filled(problem, 6, valid=6), layout)
            args.num_valid.fill_(count)
            args.out_0.fill_(3.0), args.out_1.fill_(3.0)
            subject.run(args)
            valid = count if 0 <= count <= 6 else 0
            assert bool((args.out_0[valid:] == 3).all())
            assert bool((args.out_1[:, valid:] == 3).all())
            assert valid == 0 or not bool((args.out_1[:, :valid] == 3).any())


@emulator.needed
@pytest.mark.parametrize("width", [1, 4])
def test_an_input_without_the_column_axis_is_read_correctly(width):
    """x is contiguous along axis 0; w does not have the axis of the columns."""
    inputs = (Input(name="x", dtype="f32"), Input(name="w", dtype="f32", over=(0, 1)))
    outputs = (FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0, 2)),)
    problem = rows((3, 5, width), (1,), (Stage(reducer="sum", value=X * W),), outputs, inputs)
    args = filled(problem, 8)
    x = torch.randn(5, 3, width).transpose(0, 1)
    y = torch.zeros(3, width)
    emulator.subject(problem).run(replace(args, in_0=x, out_0=y))
    torch.testing.assert_close(y.double(), (x.double() * args.in_1.double()[..., None]).sum(1), rtol=1e-5, atol=1e-5)


@emulator.needed
def test_nan_affects_only_its_column():
    problem = COLUMNS["softmax_long"]
    subject, args = emulator.subject(problem), filled(problem, 1)
    subject.run(args)
    clean = args.out_0.clone()
    args.in_0[200, 5] = float("nan")
    subject.run(args)
    assert differs(clean, args.out_0).any(0).tolist() == [column == 5 for column in range(16)]


def test_the_order_of_axes_selects_the_kernel_and_sizes_and_strides_do_not():
    plan = Plan.select(reducer("sum", "bf16", (8192, 512), (0,)), Preference(backend="cuda"), SM_90A)
    assert plan.sku.id.startswith("reduction/fold/cuda/sm_90a/columns@1/in.x=bf16,out.value=f32/strided/cluster=4,expr=v")
    assert ",groups=32,math=device,rows=4,stream=true,vector=8/g2." in plan.sku.id
    for width in (1, 513):
        same = Plan.select(reducer("sum", "bf16", (8192, width), (0,)), Preference(backend="cuda"), SM_90A)
        assert (same.sku.id, same.jit_spec) == (plan.sku.id, plan.jit_spec)
    constants = dict(plan.sku.precision_guarantee.error_model.constants)
    assert constants["lanes"] == 32 * 4
    turned = Plan.select(reducer("sum", "bf16", (512, 8192), (1,)), Preference(backend="cuda"), SM_90A)
    assert turned.sku.impl == "rows"
    along = SoftmaxDescriptor(shape=(3, 63, 5), axis=1, dtype="f32")
    assert Plan.select(along, Preference(backend="cuda"), SM_90A).sku.impl == "columns"
    kept = Plan.select(COLUMNS["softmax_middle"], Preference(backend="cuda"), SM_90A).sku.precision_guarantee
    assert kept.batch_invariant == "composition"


def test_stages_over_some_of_the_folded_axes_are_declined_with_a_reason():
    stages = (Stage(reducer="sum", value=X, axes=(1,)),)
    problem = rows((3, 4, 5), (0, 1), stages, (FoldOutput(name="y", dtype="f32", value=X * stage(0, "f32")),))
    assert Plan.select(problem, Preference(backend="cuda"), SM_90A).sku.impl == "rows"
    with pytest.raises(UnsupportedError, match="all folded axes"):
        Plan.select(problem, Preference(backend="cuda", forbid=("rows", "general")), SM_90A)
    with pytest.raises(UnsupportedError, match="a last axis that is kept"):
        Plan.select(FORMS["rms"], Preference(backend="cuda", forbid=("rows", "general")), SM_90A)


@pytest.mark.parametrize("name", ["sum_bf16", "welford_f64", "softmax", "centred", "argmax_f32", "placed", "expsum_f32"])
def test_each_program_compiles_without_spills(name):
    builds_without_spills(COLUMNS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    on_gpu(problem, moved(problem, filled(problem, 3), layout))


@pytest.mark.gpu
@pytest.mark.parametrize("folded", [64, 500, 2048, 8192, 100003])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: softmax((n, 264), "bf16", 0),
        lambda n: reducer("welford", "f32", (n, 301), (0,)),
        lambda n: reducer("sum", "bf16", (2, n, 96), (1,)),
    ],
    ids=["softmax", "welford", "sum"],
)
def test_long_columns_keep_the_bound_on_a_gpu(make, folded):
    problem = make(folded)
    on_gpu(problem, filled(problem, 3))
