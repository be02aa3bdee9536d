"""Grouped products by mma.sync on an emulated device: weights of 4, 8 and 16 bits, layouts, tiles and refusals."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import coded_groups as matmul_coded_groups
from opfacade.backends.cuda.matmul import copied as matmul_copied
from opfacade.backends.cuda.matmul import decoded_groups as matmul_decoded_groups
from opfacade.backends.cuda.matmul import grouped_mma as matmul_grouped_mma
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import DescriptorError, UnsupportedError
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor, Weight
from opfacade.testing import determinism, inputs, numerics
from tests import emulator
from tests.families.matmul.test_coded_kernel import E2M1
from tests.families.matmul.test_grouped_kernel import drawn, writes_no_row_that_takes_none

ADA, HOPPER = Target.parse("sm_89"), Target.parse("sm_90a")
UINT4 = Weight(dtype="uint4", group=64, zero="int", dequantise="rounded")
INT4 = Weight(dtype="int4", group=128, group_offset=96, dequantise="rounded")
MXFP4 = Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0")
NVFP4 = Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3", global_scale=True)
SUMS = Weight(dtype="int4", group=128)
COLUMNS = Weight(dtype="f8_e4m3", scale_dtype="f32")
BLOCKS = Weight(dtype="f8_e4m3", group=128, scale_dtype="f32", dequantise="rounded")
HALVES = Weight(dtype="f8_e4m3", group=32, scale_dtype="f16", dequantise="rounded")
WEIGHTS = {"uint4": UINT4, "int4": INT4, "mxfp4": MXFP4, "sums": SUMS, "e4m3": COLUMNS, "e4m3 in groups": BLOCKS, "bf16": None}


def made(weight=UINT4, groups=3, rows=90, n=72, k=192, dtype="bf16", **more):
    return GroupedMatmulDescriptor(groups=groups, total_num_rows=rows, n=n, k=k, dtype=dtype, weight_format=weight, **more)


FORMS = {
    "uint4": made(),
    "int4 with bias": made(INT4, n=33, k=320, bias=True, bias_dtype="f32", activation="silu", out_dtype="f32"),
    "mxfp4 gated": made(MXFP4, n=40, gated=True, bias=True, groups=20),
    "nvfp4": made(NVFP4, k=320, rows=20),
    "sums": made(SUMS, k=320, rows=20),
    "sums gated": made(SUMS, n=40, k=1088, gated=True, rows=70, gather=True, num_x_rows=11),
    "added": made(add=True, accumulate=True, beta=0.5, groups=9),
    "e4m3": made(COLUMNS, rows=30),
    "e4m3 in groups": made(BLOCKS, k=400, rows=20, groups=4),
    "e4m3 in f16": made(HALVES, dtype="f16", k=1056, rows=70),
    "e4m3 of few rows": made(BLOCKS, k=1104, rows=9),
    "e4m3 with a global scale": made(Weight(dtype="f8_e4m3", scale_dtype="bf16", global_scale=True), rows=70),
    "odd k": made(k=77, n=24, rows=30),
    "odd k of e4m3": made(COLUMNS, k=77, n=24, rows=40),
    "odd k of bf16": made(None, k=77, n=24, rows=30),
    "bf16": made(None, bias=True),
    "f16 gated": made(None, dtype="f16", gated=True, n=40, rows=30),
    "segments of bf16": made(None, k=1096, rows=20),
    "many groups": made(MXFP4, groups=70, rows=75, n=40, k=64),
    "gather": made(gather=True, num_x_rows=11, rows=40),
    "gather odd": made(None, gather=True, num_x_rows=11, rows=100, k=77, n=33, out_dtype="f32"),
    "gather e4m3": made(COLUMNS, gather=True, num_x_rows=11, rows=40, sm_limit=1, k=1104),
    "masked": made(layout="masked", rows=70, n=40),
    "masked gather": made(None, layout="masked", rows=9, n=40, gather=True, num_x_rows=5, bias=True),
    "nothing": made(None, rows=5, k=0, bias=True),
    "cleared": made(zero_tail=True, n=33, out_dtype="f32", k=1088, rows=20),
    "cleared masked": made(COLUMNS, zero_tail=True, layout="masked", groups=40, rows=9, n=40),
}  # fmt: skip


@contextmanager
def forced():
    """Kernels of wgmma decline."""
    with patch.object(matmul_coded_groups, "ARCH", "none"), patch.object(matmul_decoded_groups, "ARCH", "none"):
        yield


def subject_of(problem):
    impl = "mma_groups" if problem.weight_format is None else "mma_grouped_codes"
    subject = emulator.subject(problem, device_like=ADA)
    assert subject.plan.sku.impl == impl
    return subject


def run(problem, args):
    subject, before = subject_of(problem), numerics.snapshot(problem, args)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name):
    """The harness checks that rows of no group stay unchanged."""
    run(FORMS[name], drawn(FORMS[name]))


def numbers_arrive(dtype, run):
    """x is a unit matrix for each group, so that each weight appears alone, with the scale and zero point of its group."""
    k, n, group, many = 96, 40, 32, 3
    weight = Weight(dtype=dtype, group=group, zero="int" if dtype == "uint4" else "none", dequantise="rounded")
    problem = made(weight, groups=many, rows=many * k, n=n, k=k)
    args, generator = inputs.make_args(problem, 1), torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (many, n, k), generator=generator)
    numbers = {"int4": torch.where(codes > 7, codes - 16, codes), "uint4": codes, "e2m1": torch.tensor(E2M1)[codes]}[dtype]
    scale = torch.randint(1, 8, (many, n, k // group), generator=generator)
    zero = torch.randint(0, 16, scale.shape, generator=generator) if dtype == "uint4" else torch.zeros_like(scale)
    args.x.copy_(torch.eye(k).repeat(many, 1)), args.weight_scale.copy_(scale)
    args.weight.copy_(codes[..., ::2] + 16 * codes[..., 1::2])
    if dtype == "uint4":
        args.weight_zero.copy_(zero)
    args = replace(args, indptr=torch.arange(many + 1, dtype=torch.int32) * k)
    run(problem, args)
    want = (numbers - zero.repeat_interleave(group, -1)) * scale.repeat_interleave(group, -1)
    assert torch.equal(args.out.double().view(many, k, n), want.double().mT)


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4", "e2m1"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype):
    numbers_arrive(dtype, lambda problem, args: subject_of(problem).run(args))


@emulator.needed
@pytest.mark.parametrize(("dtype", "scale_dtype"), [("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16")])
def test_columns_are_all_numbers_of_e4m3(dtype, scale_dtype):
    """All 256 codes at each position of a k-step, also NaN, in separate columns: a NaN does not affect other columns."""
    k, group = 32, 32
    weight = Weight(dtype="f8_e4m3", group=group, scale_dtype=scale_dtype, dequantise="rounded")
    problem = made(weight, groups=2, rows=2 * k, n=256, k=k, dtype=dtype, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    codes = torch.arange(256).repeat(2, k, 1).mT.to(torch.uint8)
    args.weight.view(torch.uint8).copy_(codes), args.weight_scale.fill_(1.5)
    args.x.copy_(torch.eye(k).repeat(2, 1))
    args = replace(args, indptr=torch.tensor([0, k, 2 * k], dtype=torch.int32))
    subject_of(problem).run(args)
    numbers = [number(code) * 1.5 for code in range(256)]
    want = torch.tensor(numbers).expand(2 * k, 256)
    kept = [code for code in range(256) if code % 128 != 127]
    assert torch.equal(args.out[:, kept], want[:, kept])
    assert bool(args.out[:, [127, 255]].isnan().all())


def number(code):
    """By the definition of e4m3."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code > 127 else size


def single(problem, args, group, rows):
    """Some rows of one group as a product of a single group."""
    one = problem.model_copy(update={"groups": 1, "total_num_rows": len(rows), "gather": False, "num_x_rows": None})
    x = args.x[args.x_rows[rows].long()] if problem.gather else args.x[rows]
    tensors = {name: getattr(args, name)[group : group + 1] for name in ("weight", "weight_scale", "weight_zero")
               if getattr(args, name) is not None}  # fmt: skip
    call = inputs.make_args(one.revalidated(), 1)
    out = torch.full((len(rows), problem.n), float("nan"), dtype=args.out.dtype)
    call = replace(call, x=x, out=out, indptr=torch.tensor([0, len(rows)], dtype=torch.int32), **tensors)
    subject_of(one.revalidated()).run(call)
    return out


@emulator.needed
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_row_has_its_bits_in_any_group(name):
    """Alone, among others, in each tile, gathered or not; a k of two segments. f32 hides no bit."""
    for more in ({"k": 1216, "rows": 40}, {"k": 320, "gather": True, "num_x_rows": 11, "rows": 110}):
        problem = made(WEIGHTS[name], out_dtype="f32", n=40, **more)
        args = drawn(problem)
        run(problem, args)
        for group in range(problem.groups):
            rows = list(range(*args.indptr[group : group + 2].tolist()))
            for some in (rows[:1], rows[-9:], rows):
                if some:
                    assert torch.equal(single(problem, args, group, some), args.out[some])


@emulator.needed
@pytest.mark.parametrize("name", WEIGHTS)
def test_rows_off_sixteen_bytes_have_the_same_bits(name):
    problem = made(WEIGHTS[name], rows=24, n=40, k=320)
    args = drawn(problem)
    run(problem, args)
    x = torch.empty(24, 325, dtype=args.x.dtype)[:, 2:322].copy_(args.x)
    wide = torch.empty(3, 40, args.weight.shape[-1] + 9, dtype=torch.uint8 if problem.weight_format else args.weight.dtype)
    weight = wide[..., 3 : 3 + args.weight.shape[-1]].view(args.weight.dtype).copy_(args.weight)
    for other in ({"x": x}, {"weight": weight}, {"x": x, "weight": weight}):
        call = replace(args, **other, out=torch.zeros_like(args.out))
        subject_of(problem).run(call)
        first, stop = int(args.indptr[0]), int(args.indptr[-1])
        assert torch.equal(call.out[first:stop], args.out[first:stop])


@emulator.needed
@pytest.mark.parametrize("name", WEIGHTS)
def test_rows_have_the_same_bits_among_any_rows_of_any_groups(name):
    campaign = determinism.Campaign(needles=4, compositions=2, largest=7)
    problem = made(WEIGHTS[name], rows=30, n=40, k=128)
    shown = determinism.batch_invariance(emulator.subject(problem, device_like=ADA), campaign, 2)
    assert shown.different == 0, shown.first


@emulator.needed
@pytest.mark.parametrize("name", ["gather", "gather e4m3"])
def test_a_row_that_takes_none_of_x_is_not_written(name, monkeypatch):
    problem = made(FORMS[name].weight_format, gather=True, num_x_rows=11, rows=40, n=40, k=128)
    plain = emulator.subject
    monkeypatch.setattr(emulator, "subject", lambda one: plain(one, device_like=ADA))
    writes_no_row_that_takes_none(problem, drawn(problem))


@emulator.needed
@pytest.mark.parametrize("indptr", [[-5, 3, 1, 999], [0, 0, 0, 0], [90, 90, 90, 90], [7, 2, 50, 40]])
def test_tables_that_are_wrong_write_nothing_outside(indptr):
    problem = made(COLUMNS)
    args = replace(drawn(problem), indptr=torch.tensor(indptr, dtype=torch.int32))
    args.x.fill_(1.0), args.out.fill_(7.0), args.weight.fill_(1.0)
    subject_of(problem).run(args)
    cut = [min(max(one, 0), 90) for one in indptr]
    held = {row for first, stop in pairwise(cut) for row in range(first, stop)}
    outside = [row for row in range(90) if row not in held]
    assert bool((args.out[outside] == 7.0).all())
    assert bool((args.out[sorted(held)] != 7.0).any(1).all())


@emulator.needed
@pytest.mark.parametrize("name", ["uint4", "e4m3", "bf16"])
def test_the_last_threads_may_run_first(name, monkeypatch):
    emulator.last_first(monkeypatch)
    problem = made(WEIGHTS[name], rows=40, n=130, k=1088, sm_limit=1)
    run(problem, drawn(problem))


@pytest.mark.parametrize("arch", [*matmul_grouped_mma.BEFORE, "sm_90a"])
@pytest.mark.parametrize("rows", [64, 4096])
def test_it_compiles_without_spills_and_its_shared_memory_fits(arch, rows):
    target = Target.parse(arch)
    for weight in (UINT4, MXFP4, COLUMNS, BLOCKS, None):
        if weight is None and arch == "sm_90a":
            continue
        forget_specializations()
        with forced():
            plan = Plan.select(made(weight, groups=8, rows=rows, n=2880, k=2880), Preference(backend="cuda"), target)
            plan.compile()
        assert plan.sku.impl == ("mma_groups" if weight is None else "mma_grouped_codes")
        assert plan.cache_state == "shared"
    for bits, stage in matmul_copied._STAGES.items():
        for tile in stage.stages:
            shape = matmul_copied.shape_of(tile, matmul_copied.segments_of(4096, "free"), 0, bits)
            assert shape.rows == tile
            assert shape.shared + 4 * 1025 <= target.max_shared_memory


def test_order_k_is_one_chain():
    found = [Plan.select(made(None, k=4096, order=order), Preference(backend="cuda"), ADA).sku for order in ("k", "free")]
    assert ["segment" in dict(sku.spec) for sku in found] == [False, True]


REFUSED = {
    "exact": (made(Weight(dtype="uint4", group=16, zero="int", dequantise="exact")), "group"),
    "order": (made(None, weight_layout="kn"), "nk"),
    "groups": (made(None, groups=1025), "groups"),
    "e4m3 in groups": (made(Weight(dtype="f8_e4m3", group=128)), "rounded"),
    "fp8": (made(None, dtype="f8_e4m3"), "dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_before_sm_90_is_refused_with_the_cure(name):
    problem, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        Plan.select(problem, Preference(backend="cuda"), ADA)


def test_contradictions_of_a_weight_are_refused():
    for more in ({"layout": "k"}, {"weight_layout": "kn"}, {"dtype": "f64"}, {"weight": Weight(dtype="int4", num_groups=3)}):
        with pytest.raises(DescriptorError, match=r"weight_format|weight_layout|dtype"):
            made(**more)


def test_a_group_has_the_numbers_of_its_product():
    """On the reference: each group is a product with its own codes, zero points and global scale."""
    for weight in (UINT4, NVFP4, BLOCKS):
        problem = made(weight, rows=12, n=8, k=128)
        args = drawn(problem)
        Plan.select(problem, Preference(backend="reference"), Target.parse("cpu")).run(args)
        for group, (first, stop) in enumerate(pairwise(args.indptr.tolist())):
            one = MatmulDescriptor(total_num_rows=stop - first, n=8, k=128, dtype="bf16", weight_format=weight)
            own = {name: getattr(args, name)[group] for name in ("weight", "weight_scale", "weight_zero")
                   if getattr(args, name) is not None}  # fmt: skip
            whole = {} if args.weight_global is None else {"weight_global": args.weight_global[group : group + 1]}
            out = torch.empty(stop - first, 8, dtype=torch.bfloat16)
            alone = MatmulArgs(x=args.x[first:stop], out=out, **own, **whole)
            Plan.select(one, Preference(backend="reference"), Target.parse("cpu")).run(alone)
            assert torch.equal(args.out[first:stop], out)


@pytest.mark.parametrize(
    ("layout", "groups", "rows", "tile"),
    [
        ("ragged", 32, 32 * 5, 8),
        ("ragged", 32, 32 * 6, 16),
        ("ragged", 32, 32 * 10, 16),
        ("ragged", 32, 32 * 11, 32),
        ("ragged", 1, 8, 8),
        ("masked", 32, 8, 8),
        ("masked", 32, 16, 16),
    ],
)
def test_a_tile_has_room_for_groups_above_the_mean_of_ragged_rows(layout, groups, rows, tile):
    problem = made(MXFP4, groups=groups, rows=rows, n=2880, k=2880, layout=layout)
    sku = Plan.select(problem, Preference(backend="cuda"), Target.parse("sm_80")).sku
    assert f"tile_rows={tile}/" in sku.id.replace(",", "/")
