"""Grouped products against loops over their elements; edges, refusals and validation."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from opfacade import load_descriptor
from opfacade.errors import ArgumentError, DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans.matmul import EXAMPLES, GroupedMatmulArgs, GroupedMatmulDescriptor, GroupedMatmulPlan, Scaling
from opfacade.testing import inputs, numerics
from opfacade.testing.families._matmul_grouped import part_of, product_of
from opfacade.testing.families._matmul_weights import weight_of

FORMS = {f"example-{i}": one for i, one in enumerate(EXAMPLES) if isinstance(one, GroupedMatmulDescriptor)} | {
    "masked-gather-block": GroupedMatmulDescriptor(
        groups=3, total_num_rows=5, n=9, k=140, dtype="f8_e4m3", layout="masked", gather=True, num_x_rows=6,
        scaling=Scaling(kind="block", block_offset=(3, 5)), out_dtype="f32",
    ),
    "masked-column": GroupedMatmulDescriptor(
        groups=2, total_num_rows=5, n=9, k=140, dtype="f8_e4m3", layout="masked",
        scaling=Scaling(kind="block", x_scale_layout="column_padded4"), accumulate=True,
    ),
    "mx": GroupedMatmulDescriptor(
        groups=2, total_num_rows=6, n=7, k=70, dtype="f8_e4m3",
        scaling=Scaling(kind="mx32", x_scale_dtype="f8_e8m0", weight_scale_dtype="f8_e8m0"), out_dtype="f32",
    ),
    "k-token": GroupedMatmulDescriptor(
        groups=3, total_num_rows=4, n=5, k=21, dtype="i8", layout="k", scaling=Scaling(kind="token"), out_dtype="f32", bias=True
    ),
    "gather-token": GroupedMatmulDescriptor(
        groups=2, total_num_rows=7, n=3, k=9, dtype="i8", gather=True, scaling=Scaling(kind="token", weight_kind="tensor"),
        add=True, beta=2.0,
    ),
}  # fmt: skip


@pytest.fixture(params=FORMS)
def problem(request):
    return FORMS[request.param]


def group_of(d, args):
    """(group, row of out, rows of x or None, elements of k) of every row that is written, by loops over the tables."""
    for g in range(d.groups):
        places = range(int(args.counts[g])) if d.layout == "masked" else range(*args.indptr[g : g + 2].tolist())
        if d.layout == "k":
            yield from (((g, r), g, (r,), places) for r in range(d.total_num_rows))
            continue
        for r in places:
            at = (g, r) if d.layout == "masked" else (r,)
            yield at, g, (int(args.x_rows[at]),) if d.gather else at, range(d.k)


def factor(d, args, x_at, g, j, k):
    """The product of both scales."""
    s = d.scaling
    if s is None:
        return 1.0
    of_x, of_w = args.x_scale.double(), args.weight_scale.double()
    of_w = of_w if d.layout == "k" else of_w[g]
    part = 32 if s.kind == "mx32" else 128
    *lead, r = x_at
    if s.kind == "tensor":
        mine = of_x[0]
    elif s.kind == "token":
        mine = of_x[x_at]
    else:
        mine = of_x[(*lead, r, k // part) if s.x_scale_layout == "row" else (*lead, k // part, r)]
    if s.of_weight == "tensor":
        theirs = of_w[sum(j >= start for start in s.weight_starts)]
    elif s.of_weight == "token":
        theirs = of_w[j]
    else:
        first, step = s.block_offset
        theirs = of_w[j, k // 32] if s.kind == "mx32" else of_w[(j + first) // 128, (k + step) // 128]
    return float(mine) * float(theirs)


def weights_of(d, args):
    """Weights of groups, also as numbers of codes."""
    if d.weight_format is None:
        return args.weight.double().numpy()
    each = [weight_of(product_of(d), part_of(d, args, group, []))[0].mT for group in range(d.groups)]
    found = torch.stack(each)
    return (found.to(args.x.dtype).double() if d.weight_format.dequantise == "rounded" else found).numpy()


def formula(d, args, before):
    """out, element by element; rows of no group unchanged, or 0."""
    x, w = args.x.double().numpy(), weights_of(d, args)
    x = x.T if d.x_layout == "km" else x
    w = w if d.weight_layout == "nk" else w.swapaxes(-1, -2)
    want = before.double().numpy() * (0.0 if d.zero_tail else 1.0)
    want = np.zeros_like(want) if d.zero_tail else want
    columns = 2 if d.gated else 1
    for at, g, x_at, ks in group_of(d, args):
        weight = w if d.layout == "k" else w[g]
        for j in range(d.n):
            parts = []
            for c in range(columns * j, columns * j + columns):
                total = math.fsum(float(x[x_at][k] * weight[c, k]) * factor(d, args, x_at, g, c, k) for k in ks)
                parts.append(d.alpha * total + (float(args.bias[g, c]) if d.bias else 0.0))
            value = parts[0] / (1 + math.exp(-parts[0])) if d.activation == "silu" else parts[0]
            value *= parts[1] if d.gated else 1.0
            value += d.beta * float(args.add[at][j]) if d.add else 0.0
            value = min(max(value / float(args.out_scale), -448.0), 448.0) if args.out_scale is not None else value
            want[(*at, j)] = value + (d.beta * float(before[at][j]) if d.accumulate else 0.0)
    return want


def test_it_is_the_formula(problem):
    update = {"total_num_rows": min(problem.total_num_rows, 13), "n": min(problem.n, 7)}
    few = problem.model_copy(update=update).revalidated()
    for seed in range(2):
        args = inputs.make_args(few, seed=seed)
        before = args.out.clone()
        GroupedMatmulPlan.select(few).run(args)
        want, got = formula(few, args, before), args.out.double().numpy()
        u = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-19, "f64": 1e-13, "i32": 0.0, "f8_e4m3": 2.0**-4}[few.result]
        least = {"f8_e4m3": 2.0**-10}.get(few.result, 1e-7)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.all(np.nan_to_num(np.abs(got - want)) <= u * np.nan_to_num(np.abs(want)) + least)


def test_it_keeps_its_bound(problem):
    plan = GroupedMatmulPlan.select(problem)
    for seed in range(2):
        args = inputs.make_args(problem, seed=seed)
        before = numerics.snapshot(problem, args)
        plan.run(args)
        assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
        assert numerics.check(problem, args, plan.sku, rows=2, before=before).worst <= 1
        assert load_descriptor(problem.canonical_json()) == problem


SMALL = GroupedMatmulDescriptor(groups=3, total_num_rows=6, n=4, k=8, dtype="bf16", out_dtype="f32")


@pytest.fixture
def validate(monkeypatch):
    """Sets the level of plans that are created from now on."""

    def at(level):
        monkeypatch.setenv("OPFACADE_VALIDATE", level)
        forget_selections()

    yield at
    forget_selections()


def call(d, seed=1, **tables):
    args = inputs.make_args(d, seed)
    return replace(args, **{name: torch.tensor(value, dtype=torch.int32) for name, value in tables.items()})


def ran(d, args):
    GroupedMatmulPlan.select(d).run(args)
    return args.out


@pytest.mark.parametrize(
    "fault",
    [
        lambda out: out[1].copy_(out[0]),  # the last row of the first group
        lambda out: out[2:].add_(0.05),
        lambda out: out[5].zero_(),  # the last row of the last group
    ],
)
def test_a_wrong_row_of_any_group_breaks_the_bound(fault):
    args = call(SMALL, indptr=[0, 2, 2, 6])
    args.x.normal_()
    plan = GroupedMatmulPlan.select(SMALL)
    plan.run(args)
    assert numerics.check(SMALL, args, plan.sku).worst <= 1
    fault(args.out)
    assert numerics.check(SMALL, args, plan.sku).worst > 1


def test_a_row_that_was_written_outside_every_group_is_found():
    d = SMALL.model_copy(update={"accumulate": True}).revalidated()
    args = call(d, indptr=[1, 2, 2, 4])
    args.x.normal_()
    plan, before = GroupedMatmulPlan.select(d), numerics.snapshot(d, args)
    plan.run(args)
    assert numerics.check(d, args, plan.sku, before=before).worst <= 1
    args.out[5, 3] += 1
    assert numerics.check(d, args, plan.sku, before=before).worst == math.inf


@pytest.mark.parametrize("layout", ["ragged", "masked"])
def test_rows_outside_every_group_are_neither_read_nor_written(layout):
    for zero in (False, True):
        d = SMALL.model_copy(update={"layout": layout, "zero_tail": zero}).revalidated()
        tables = {"counts": [2, 0, 6]} if layout == "masked" else {"indptr": [1, 3, 3, 5]}
        args = call(d, **tables)
        args.x.normal_()
        args.out.fill_(7.0)
        free = torch.ones(args.out.shape[:-1], dtype=torch.bool)
        if layout == "masked":
            free[0, :2], free[2] = False, False
        else:
            free[1:5] = False
        args.x[free] = math.nan
        out = ran(d, args)
        assert bool((out[free] == (0.0 if zero else 7.0)).all())
        assert bool(out[~free].isfinite().all())
        assert not bool((out[~free] == 7.0).any())


@pytest.mark.parametrize("rows", [0, 6])
def test_no_rows_at_all_write_nothing(rows):
    d = SMALL.model_copy(update={"total_num_rows": rows}).revalidated()
    args = call(d, indptr=[0, 0, 0, 0])
    args.out.fill_(7.0)
    assert bool((ran(d, args) == 7.0).all())


def test_sums_of_an_empty_group_are_0_or_keep_what_was_summed():
    d = GroupedMatmulDescriptor(groups=3, total_num_rows=2, n=3, k=8, dtype="bf16", layout="k", out_dtype="f32")
    args = call(d, indptr=[0, 5, 5, 8])
    args.x.normal_(), args.weight.normal_()
    out = ran(d, args)
    assert bool((out[1] == 0).all())
    torch.testing.assert_close(out[0], args.x[:, :5].float() @ args.weight[:, :5].float().T)
    d = d.model_copy(update={"accumulate": True}).revalidated()
    args = replace(args, out=torch.full((3, 2, 3), 4.0))
    torch.testing.assert_close(ran(d, args), out + 4.0)


def test_the_gradient_of_experts_weights_is_autograds():
    rows, n, k, ends = 9, 5, 7, [0, 4, 4, 9]
    x, weight = torch.randn(rows, k).double(), torch.randn(3, n, k).double().requires_grad_()
    y = torch.cat([x[a:b] @ weight[g].T for g, (a, b) in enumerate(pairwise(ends))])
    dy = torch.randn(rows, n).double()
    y.backward(dy)
    d = GroupedMatmulDescriptor(
        groups=3, total_num_rows=n, n=k, k=rows, dtype="f64", layout="k", x_layout="km", weight_layout="kn"
    )
    args = GroupedMatmulArgs(x=dy, weight=x, out=torch.empty(3, n, k).double(), indptr=torch.tensor(ends, dtype=torch.int32))
    torch.testing.assert_close(ran(d, args), weight.grad)


def test_other_sizes_of_groups_take_the_same_plan():
    plan, args = GroupedMatmulPlan.select(SMALL), call(SMALL, indptr=[0, 2, 4, 6])
    args.x.normal_()
    for ends in ([0, 2, 4, 6], [0, 6, 6, 6], [0, 0, 0, 1], [3, 4, 5, 6]):
        args.indptr.copy_(torch.tensor(ends))
        args.out.fill_(math.nan)
        plan.run(args)
        assert numerics.check(SMALL, args, plan.sku).worst <= 1
        assert int(args.out.isfinite().all(1).sum()) == ends[-1] - ends[0]


def test_torchs_grouped_product_gives_the_same():
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    d = GroupedMatmulDescriptor(groups=3, total_num_rows=32, n=16, k=16, dtype="bf16", weight_layout="kn")
    args = call(d, indptr=[0, 8, 8, 32])
    args.x.normal_()
    try:
        want = grouped(args.x, args.weight, offs=args.indptr[1:])
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no grouped product of torch here: {error}")
    torch.testing.assert_close(ran(d, args), want)


@pytest.mark.parametrize(
    ("fields", "tables", "name"),
    [
        ({}, {"indptr": [0, 2, 4, 7]}, "indptr"),
        ({}, {"indptr": [-1, 2, 4, 6]}, "indptr"),
        ({"layout": "masked"}, {"counts": [1, 7, 2]}, "counts"),
        ({"layout": "masked"}, {"counts": [1, -1, 2]}, "counts"),
        ({"gather": True, "num_x_rows": 3}, {"indptr": [0, 2, 4, 6], "x_rows": [0, 1, 2, 3, 0, 1]}, "x_rows"),
        ({"gather": True, "num_x_rows": 3}, {"indptr": [0, 2, 4, 6], "x_rows": [0, 1, 2, -1, 0, 1]}, "x_rows"),
    ],
)
@pytest.mark.parametrize("level", ["indices", "full"])
def test_tables_out_of_range_are_refused(validate, fields, tables, name, level):
    validate(level)
    d = SMALL.model_copy(update=fields).revalidated()
    args = call(d, **tables)
    with pytest.raises(IndexDataError) as caught:
        ran(d, args)
    assert caught.value.issues[0].argument.startswith(name)


def test_bounds_that_fall_are_refused_at_full(validate):
    validate("full")
    args = call(SMALL, indptr=[0, 4, 2, 6])
    args.x.normal_()
    with pytest.raises(ArgumentError) as caught:
        ran(SMALL, args)
    assert caught.value.code == "OPF-V003"
    assert caught.value.issues[0].argument == "indptr[2]"


def test_nan_outside_every_group_is_no_ones_at_full(validate):
    validate("full")
    for seed, d in enumerate(FORMS.values()):
        ran(d, inputs.make_args(d, seed))
    args = call(SMALL, indptr=[0, 2, 4, 6])
    args.x.normal_()
    args.x[3, 1] = math.nan
    with pytest.raises(ArgumentError, match="OPF-V003"):
        ran(SMALL, args)


@pytest.mark.parametrize(
    ("fields", "tables", "written"),
    [
        ({}, {"indptr": [-3, 2, 1, 9]}, [0, 1, 2, 3, 4, 5]),
        ({}, {"indptr": [5, 2, 2**30, -5]}, [2, 3, 4, 5]),
        ({"layout": "masked"}, {"counts": [7, -1, 1]}, [12]),
        ({"gather": True, "num_x_rows": 2}, {"indptr": [0, 3, 3, 6], "x_rows": [0, -1, 1, 2, 2**30, 1]}, [0, 2, 5]),
    ],
)
def test_wrong_tables_reach_no_memory_of_others(validate, fields, tables, written):
    validate("off")
    d = SMALL.model_copy(update=fields).revalidated()
    args = call(d, **tables)
    args.x.normal_()
    args.out.fill_(math.nan)
    rows = ran(d, args).isfinite().all(-1).flatten()
    assert rows.nonzero().flatten().tolist() == written


@pytest.mark.parametrize(
    ("fields", "path", "word"),
    [
        ({"num_x_rows": 3}, "num_x_rows", "null without gather"),
        ({"x_layout": "km"}, "x_layout", "mk"),
        ({"zero_tail": True, "accumulate": True}, "zero_tail", "accumulate"),
        ({"layout": "k", "gather": True}, "gather", "layout k"),
        ({"layout": "k", "zero_tail": True}, "zero_tail", "layout k"),
        ({"layout": "k", "dtype": "f8_e4m3", "scaling": Scaling(kind="block")}, "scaling.kind", "inside a block"),
        ({"groups": 0}, "groups", "greater than or equal to 1"),
        ({"layout": "sorted"}, "layout", "masked"),
        ({"bias_dtype": "f32"}, "bias_dtype", "null without bias"),
    ],
)
def test_fields_that_have_no_meaning_are_refused(fields, path, word):
    with pytest.raises(DescriptorError) as caught:
        GroupedMatmulDescriptor(**({"groups": 2, "total_num_rows": 3, "n": 8, "k": 4, "dtype": "bf16"} | fields))
    assert caught.value.issues[0].argument == path
    assert word in str(caught.value)
