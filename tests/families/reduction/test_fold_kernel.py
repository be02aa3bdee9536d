"""The fold kernels: their bound, equal bits on every path and in every batch, memory that they must not touch, and compilation.

In the emulator on a CPU; on a GPU the same problems and larger ones.
"""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import operands_of
from opfacade.errors import UnsupportedError
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from opfacade.testing.families.reduction import resized
from tests import emulator
from tests.families.elementwise.forms import LAYOUTS, laid_out, random_of
from tests.families.reduction.forms import FORMS, grouped, layer, reducer, rms, softmax
from tests.families.reduction.held import builds_without_spills, same_on_every_path

SM_90A = Target.parse("sm_90a")
KERNELS = {name: one for name, one in FORMS.items() if name != "two_levels"}
# Row lengths near the limits of each class: one warp, one CTA, one cluster, and rows that are read twice.
LENGTHS = (1, 2, 7, 8, 9, 63, 64, 65, 255, 257, 1023, 1025, 4097)


WIDE = {
    "rms": rms((1, 30000)),
    "softmax": softmax((1, 40000), "bf16"),
    "layer": layer((1, 18000)),
    "of_60_warps": rms((1, 60000)),
}
ONCE = {name: reducer(name, "f32", (1, 36000)) for name in ("welford", "argmax")}  # programs whose elements are used only once
LONG = {"rms": rms((2, 30000)), "softmax": softmax((1, 50000)), "layer": layer((1, 40000))}


def filled(problem, seed, valid=None):
    """Arguments with values of many magnitudes; outputs are filled with NaN."""
    args = inputs.make_args(problem, seed, lengths=inputs.DrawnLengths(valid=valid))
    drawn = {name: random_of(spec.dtype, tuple(getattr(args, name).shape), seed + i)
             for i, (name, spec) in enumerate(operands_of(problem).items()) if spec.role in ("in", "inout")}  # fmt: skip
    return replace(args, **drawn)


def moved(problem, args, layout):
    names = [name for name in operands_of(problem) if name != "num_valid"]
    return replace(args, **{name: laid_out(getattr(args, name), layout) for name in names})


def held(subject, args):
    before = numerics.snapshot(subject.descriptor, args)
    subject.run(args)
    found = numerics.check(subject.descriptor, args, subject.plan.sku, before=before)
    assert found.worst <= 1, found
    return subject.descriptor.written(args)


@pytest.fixture(params=KERNELS)
def problem(request):
    return KERNELS[request.param]


@emulator.needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_keeps_its_bound_on_every_layout(problem, layout):
    held(emulator.subject(problem), moved(problem, filled(problem, 3), layout))


@emulator.needed
def test_bits_do_not_depend_on_the_path_nor_on_other_rows(problem):
    """The paths are aligned vectors, contiguous elements and any strides; each row is also computed alone."""
    subject, args = emulator.subject(problem), filled(problem, 4)
    calls = [moved(problem, args, layout) for layout in LAYOUTS]
    same_on_every_path(subject, args, calls)


@emulator.needed
@pytest.mark.parametrize("name", ["rms", "softmax", "grouped", "quantised", "layer", "welford_f32", "argmax_f32"])
def test_a_single_row_has_the_same_bits_as_among_others(name):
    problem = KERNELS[name]
    subject, args = emulator.subject(problem), filled(problem, 5)
    subject.run(args)
    alone = resized(problem, (1, *problem.shape[1:]))
    assert emulator.subject(alone).plan.sku.id == subject.plan.sku.id
    every = range(len(problem.shape))
    axes = {f"in_{i}": tuple(every if one.over is None else one.over) for i, one in enumerate(problem.inputs)}
    axes |= {f"out_{i}": problem.axes_of(one) for i, one in enumerate(problem.outputs)}
    for row in (0, problem.shape[0] - 1):
        cut = {name: _row(getattr(args, name), own, row) for name, own in axes.items()}
        call = type(args)(**{n: t.clone().contiguous() if n.startswith("in") else torch.zeros_like(t) for n, t in cut.items()})
        emulator.subject(alone).run(call)
        for name in (name for name in axes if name.startswith("out")):
            assert not bool(differs(getattr(call, name), cut[name].contiguous()).any())


def _row(tensor, axes, row):
    return tensor.narrow(axes.index(0), row, 1) if 0 in axes else tensor


@emulator.needed
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("make", [lambda n: rms((3, n)), lambda n: softmax((2, n)), lambda n: reducer("argmin", "f32", (2, n))],
                         ids=["rms", "softmax", "argmin"])  # fmt: skip
def test_rows_of_each_length_keep_the_bound(make, length):
    problem = make(length)
    held(emulator.subject(problem), filled(problem, length))


@emulator.needed
@pytest.mark.parametrize("length", [3, 40, 300, 1025, 4097])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_return_the_first_nan_or_the_first_extremum(name, length):
    """The equal values and NaN are in one lane's vector, and in different chains, lanes and warps."""
    problem, most = reducer(name, "f32", (6, length)), 9.0 if name == "argmax" else -9.0
    args = filled(problem, length)
    x = args.in_0.copy_(torch.rand(6, length))
    for row, wins in enumerate(([0, 1, 2], [length - 2, length - 1], [1, length // 2, length - 1])):
        x[row, wins] = most
        x[row + 3, 0], x[row + 3, wins] = most, torch.nan
    subject = emulator.subject(problem)
    subject.run(args)
    value, index = problem.written(args)
    assert index.flatten().tolist() == [0, length - 2, 1] * 2
    assert value[:3].flatten().tolist() == [most] * 3
    assert bool(value[3:].isnan().all())


@emulator.needed
@pytest.mark.parametrize("name", WIDE)
def test_a_cluster_that_shares_a_row_keeps_the_bound(name, monkeypatch):
    problem = WIDE[name]
    subject = emulator.subject(problem)
    assert "cluster=" in subject.plan.sku.id
    held(subject, filled(problem, 2))
    emulator.last_first(monkeypatch)
    held(subject, filled(problem, 2))


@emulator.needed
@pytest.mark.parametrize("name", ONCE)
def test_one_cta_reads_a_long_row_whose_elements_are_used_once(name):
    subject = emulator.subject(ONCE[name])
    assert "stream=true" in subject.plan.sku.id
    held(subject, filled(ONCE[name], 2))


@emulator.needed
@pytest.mark.parametrize("name", ["sum", "argmax", "welford"])
def test_vectors_that_are_loaded_in_batches_give_the_bits_of_single_vectors(name):
    """Aligned rows consist of several batches and a remainder; the other rows are unaligned."""
    problem = reducer(name, "f32", (2, 24700))
    subject, args = emulator.subject(problem), filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(1)))
    assert "stream=true" in subject.plan.sku.id
    held(subject, args)
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in ("compact", "shifted")])


@emulator.needed
@pytest.mark.parametrize("make", [softmax, rms, layer])
def test_vectors_that_are_stored_in_batches_give_the_bits_of_single_vectors(make):
    """Rows that are read again, from their end on, with whole batches and a remainder; without clusters they are shorter."""
    problem = make((2, 41000), "bf16")
    subject, args = emulator.subject(problem, arch="sm_80"), filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(1)))
    assert "stream=true" in subject.plan.sku.id
    held(subject, args)
    same_on_every_path(subject, args, [moved(problem, args, layout) for layout in ("compact", "shifted")])


@emulator.needed
@pytest.mark.parametrize("name", LONG)
def test_a_row_that_exceeds_shared_memory_is_read_again(name):
    """Devices without clusters read such a row twice."""
    problem = LONG[name]
    subject = emulator.subject(problem, arch="sm_80")
    assert "stream=true" in subject.plan.sku.id
    held(subject, filled(problem, 2))


@emulator.needed
@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 1, 128), (1, 40, 128), (2, 5, 100), (1, 3, 700), (1, 300, 16), (1, 2, 9000)])
def test_groups_of_each_length_keep_the_bound(shape):
    problem = grouped(shape)
    held(emulator.subject(problem), filled(problem, 3))


@emulator.needed
def test_unaligned_groups_in_aligned_rows_are_accessed_by_elements():
    problem = grouped((2, 8, 128))
    args = filled(problem, 3)
    apart = {name: torch.zeros(2, 8, 129, dtype=getattr(args, name).dtype)[..., :128] for name in ("in_0", "out_0")}
    apart["in_0"].copy_(args.in_0)
    assert [tensor.stride(0) * tensor.itemsize % 8 for tensor in apart.values()] == [0, 0]
    held(emulator.subject(problem), replace(args, **apart))


@emulator.needed
@pytest.mark.parametrize("size", [1, 7, 8, 16, 17, 264, 600])
def test_nothing_is_written_after_the_end_of_the_output(size):
    problem = rms((2, size))
    subject, args = emulator.subject(problem), filled(problem, size)
    wide = torch.full((2 * size + 40,), 77, dtype=args.in_0.dtype)
    for shift in (0, 8, 1):
        wide.fill_(77)
        held(subject, replace(args, out_0=wide[shift : shift + 2 * size].view(2, size)))
        assert bool((wide[:shift] == 77).all())
        assert bool((wide[shift + 2 * size :] == 77).all())


@emulator.needed
def test_rows_past_num_valid_are_not_written_and_a_wrong_count_writes_no_row():
    problem = rms((9, 40), "f32", num_valid=True)
    subject = emulator.subject(problem)
    for layout in LAYOUTS:
        for count in (0, 5, 9, -1, 10, 2**31 - 1):
            args = moved(problem, filled(problem, 6, valid=9), layout)
            args.num_valid.fill_(count)
            args.out_0.fill_(3.0)
            subject.run(args)
            rows = count if 0 <= count <= 9 else 0
            assert bool((args.out_0[rows:] == 3).all())
            assert rows < 2 or bool((args.out_0[:rows] != 3).any())


@emulator.needed
def test_nan_affects_only_its_row():
    for problem in (rms((4, 520)), softmax((4, 300)), grouped((4, 3, 128))):
        subject, args = emulator.subject(problem), filled(problem, 1)
        subject.run(args)
        clean = [tensor.clone() for tensor in problem.written(args)]
        args.in_0[2].view(-1)[5] = float("nan")
        subject.run(args)
        for one, other in zip(clean, problem.written(args), strict=True):
            wrong = differs(one, other).flatten(1).any(1)
            assert wrong.tolist() == [False, False, True, False]


def test_the_sku_depends_on_the_length_class_and_not_on_the_number_of_rows():
    plan = Plan.select(rms((64, 4096)), Preference(backend="cuda"), SM_90A)
    assert plan.sku.id.startswith("reduction/fold/cuda/sm_90a/rows@1/in.w=bf16,in.x=bf16,out.y=bf16/strided/expr=v")
    assert ",math=approx,pieces=4,span=128,vector=8,waves=1/g2." in plan.sku.id
    same = Plan.select(rms((7, 4096)), Preference(backend="cuda"), SM_90A)
    assert (same.sku.id, same.jit_spec) == (plan.sku.id, plan.jit_spec)
    near = Plan.select(rms((7, 4090)), Preference(backend="cuda"), SM_90A)  # a length of the same class
    assert (near.sku.id, near.jit_spec) == (plan.sku.id, plan.jit_spec)
    assert Plan.select(rms((7, 4104)), Preference(backend="cuda"), SM_90A).sku.id != plan.sku.id
    guarantee = plan.sku.precision_guarantee
    assert guarantee.batch_invariant == "composition"
    assert guarantee.error_model.id == "fold-f32"
    assert dict(guarantee.error_model.constants)["lanes"] == 4 * 128
    exact = Plan.select(FORMS["quantised"], Preference(backend="cuda"), SM_90A).sku.precision_guarantee
    assert exact.error_model.id == "exact"
    assert Plan.select(FORMS["masked"], Preference(backend="cuda"), SM_90A).sku.precision_guarantee.batch_invariant == "none"


def test_a_program_that_the_kernel_does_not_support_is_declined_with_a_reason():
    with pytest.raises(UnsupportedError, match="stages along whole rows first"):
        Plan.select(FORMS["two_levels"], Preference(backend="cuda", forbid=("levels", "general")), SM_90A)
    with pytest.raises(UnsupportedError, match="sm_89 and later for f8"):
        Plan.select(FORMS["quantised"], Preference(backend="cuda"), Target.parse("sm_80"))


@pytest.mark.parametrize("name", ["rms", "softmax", "grouped", "quantised", "argmax_f32", "masked"])
def test_each_program_compiles_without_spills(name):
    builds_without_spills(FORMS[name])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_the_error_bound_on_a_gpu(problem, layout):
    args = moved(problem, filled(problem, 3), layout)
    call = replace(args, **{name: getattr(args, name).cuda() for name in operands_of(problem)})
    plan = Plan.select(problem, Preference(backend="cuda"))
    before = numerics.snapshot(problem, call)
    plan.run(call)
    assert numerics.check(problem, call, plan.sku, before=before).worst <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("width", [4096, 7168, 16384, 65536, 131072, 262144, 300001])
@pytest.mark.parametrize("make", [rms, softmax, layer])
def test_long_rows_keep_the_bound_on_a_gpu(make, width):
    problem = make((5, width), "bf16")
    args = filled(problem, 3)
    call = replace(args, **{name: getattr(args, name).cuda() for name in operands_of(problem)})
    plan = Plan.select(problem, Preference(backend="cuda"))
    plan.run(call)
    assert numerics.check(problem, call, plan.sku).worst <= 1
