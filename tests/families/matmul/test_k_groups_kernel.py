"""The kernel of products over ranges of k on an emulated device: bounds, the bits of each group alone, and edges of ranges."""

from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import ranges as backend
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.plans.matmul import EXAMPLES, GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor, Scaling
from opfacade.select.explanation import explain
from opfacade.testing import determinism, inputs
from tests import emulator
from tests.families.matmul.held import held

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(groups=3, rows=40, n=72, k=304, dtype="bf16", **more):
    return GroupedMatmulDescriptor(groups=groups, total_num_rows=rows, n=n, k=k, dtype=dtype, layout="k", **more)


ACROSS = {"x_layout": "km", "weight_layout": "kn"}
FORMS = {
    "gradients": made(**ACROSS, out_dtype="f32", accumulate=True),
    "gradients of 16 bits": made(rows=130, k=400, dtype="f16", **ACROSS),
    "rows": made(n=33, bias=True, bias_dtype="f32", activation="silu"),
    "mixed": made(weight_layout="kn", out_dtype="f32", add=True, beta=0.5),
    "gates": made(rows=24, n=20, gated=True, x_layout="km", bias=True),
    "many": made(groups=20, k=400, n=24, sm_limit=1, **ACROSS),
    "odd": made(rows=21, n=35, k=211, out_dtype="f32", **ACROSS),
    "odd rows": made(rows=21, n=35, k=211, out_dtype="f32"),
    "nothing": made(k=0, bias=True),
    "fp8": made(dtype="f8_e4m3", k=560, scaling=Scaling(kind="token"), out_dtype="f32"),
    "fp8 odd": made(dtype="f8_e5m2", rows=9, k=347, n=33, scaling=Scaling(kind="tensor")),
    "i8": made(dtype="i8", k=400),
    "i8 tokens": made(dtype="i8", k=307, scaling=Scaling(kind="token"), bias=True),
}


def bounds_of(problem):
    """Ranges that begin and end inside steps, some empty, with elements before the first and after the last."""
    cuts = torch.randint(3, max(problem.k - 3, 4), (problem.groups + 1,), generator=torch.Generator().manual_seed(2))
    cuts = cuts.sort().values.int().clamp(max=problem.k)
    cuts[2] = cuts[1]
    return cuts


def along(tensor, layout, *part):
    """A view of some elements of k, on whichever axis k is."""
    return tensor[:, slice(*part)] if layout in ("mk", "nk") else tensor[slice(*part)]


def drawn(problem, indptr=None, seed=3):
    """Random numbers, but NaN outside every range if the type has NaN."""
    args = inputs.make_args(problem, seed)
    indptr = bounds_of(problem) if indptr is None else torch.tensor(indptr, dtype=torch.int32)
    args, generator = replace(args, indptr=indptr), torch.Generator().manual_seed(seed)
    for tensor, layout in ((args.x, problem.x_layout), (args.weight, problem.weight_layout)):
        if not tensor.is_floating_point():
            continue
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
        for part in ((0, int(indptr[0])), (int(indptr[-1]), problem.k)):
            outside = along(tensor, layout, *part)
            outside.copy_(torch.tensor(float("nan")).expand(outside.shape))
    return args


def alone(problem, args, group):
    """out of a group from the kernel for single products, in the order of k."""
    first, stop = args.indptr[group : group + 2].tolist()
    one = MatmulDescriptor(
        total_num_rows=problem.total_num_rows, n=problem.n, k=stop - first, dtype=problem.dtype, x_layout=problem.x_layout,
        weight_layout=problem.weight_layout, out_dtype=problem.result, scaling=problem.scaling, order="k",
    )  # fmt: skip
    x, weight = along(args.x, problem.x_layout, first, stop), along(args.weight, problem.weight_layout, first, stop)
    out = torch.zeros_like(args.out[group])
    call = MatmulArgs(x=x, weight=weight, out=out, x_scale=args.x_scale, weight_scale=args.weight_scale)
    emulator.subject(one).run(call)
    return out


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    held(FORMS[name], drawn(FORMS[name]), "wgmma_k_groups")


ALONE = {
    "gradients": made(rows=70, **ACROSS),
    "rows": made(rows=33, out_dtype="f32"),
    "fp8": made(rows=9, k=520, dtype="f8_e4m3", scaling=Scaling(kind="token")),
}


@emulator.needed
@pytest.mark.parametrize("name", ALONE)
def test_a_group_has_the_bits_of_its_product_alone(name):
    """Wherever its range begins."""
    problem = ALONE[name]
    args = drawn(problem)
    emulator.subject(problem).run(args)
    for group in range(problem.groups):
        assert torch.equal(args.out[group], alone(problem, args, group))
    assert bool((args.out[-1] != 0).any())


@emulator.needed
def test_sums_of_an_empty_group_are_0_or_what_out_held():
    for accumulate in (False, True):
        problem = made(rows=16, n=24, k=80, out_dtype="f32", accumulate=accumulate, sm_limit=1, **ACROSS)
        args = drawn(problem, [5, 40, 40, 70])
        args.x.copy_(torch.ones(args.x.shape)), args.weight.copy_(torch.ones(args.weight.shape))
        args.out.fill_(7.0)
        emulator.subject(problem).run(args)
        want = torch.tensor([35.0, 0.0, 30.0]) + (7.0 if accumulate else 0.0)
        assert torch.equal(args.out, want[:, None, None].expand(args.out.shape))


@emulator.needed
@pytest.mark.parametrize("layouts", [ACROSS, {}], ids=["across", "rows"])
@pytest.mark.parametrize("first", [0, 1, 8])
def test_every_length_of_a_range_has_its_terms(first, layouts):
    """Around whole steps, with another range after it, by one CTA. Terms are integers with exact sums."""
    for stop in (first, first + 1, first + 63, first + 64, first + 65, first + 128, first + 191):
        problem = made(groups=2, rows=8, n=24, k=272, out_dtype="f32", sm_limit=1, **layouts)
        args = drawn(problem, [first, stop, stop + 70])
        inside = along(args.x, problem.x_layout, first, stop + 70)
        inside.copy_(torch.ones(inside.shape))
        terms = along(args.weight, problem.weight_layout, first, stop + 70)
        values = torch.arange(stop + 70 - first) % 97 + 1.0
        terms.copy_(values.expand(terms.shape) if problem.weight_layout == "nk" else values[:, None].expand(terms.shape))
        emulator.subject(problem).run(args)
        assert bool((args.out[0] == values[: stop - first].sum()).all()), (first, stop)
        assert bool((args.out[1] == values[stop - first :].sum()).all()), (first, stop)


@emulator.needed
@pytest.mark.parametrize("indptr", [[-5, 3, 1, 999], [0, 0, 0, 0], [90, 90, 90, 90], [7, 2, 50, 40]])
def test_tables_that_are_wrong_read_nothing_outside(indptr):
    """Entries are clamped to k, and a group with decreasing entries is empty."""
    problem = made(k=90, rows=5, n=24, out_dtype="f32", **ACROSS)
    args = drawn(problem, indptr)
    args.x.copy_(torch.ones(args.x.shape)), args.weight.copy_(torch.ones(args.weight.shape))
    emulator.subject(problem).run(args)
    for group, (first, stop) in enumerate(pairwise(indptr)):
        begin = min(max(first, 0), 90)
        assert bool((args.out[group] == min(max(stop, begin), 90) - begin).all())


@emulator.needed
def test_one_plan_takes_other_ranges():
    problem = made(rows=8, n=24, k=150, **ACROSS)
    for indptr in ([0, 50, 100, 150], [0, 150, 150, 150], [149, 149, 149, 150], [64, 128, 128, 150]):
        held(problem, drawn(problem, indptr), "wgmma_k_groups")


@emulator.needed
@pytest.mark.parametrize("tile", [Tile(128, 256, 1, 2), Tile(128, 64, 1), Tile(64, 128, 2)], ids=str)
def test_no_tile_changes_a_bit(tile):
    problem = made(groups=2, rows=200, n=280, k=230, **ACROSS)
    found = []
    for one in (Tile(64, 64, 2), tile):
        forget_specializations()
        with patch.object(backend, "tile_of", lambda sizes, sms, one=one: one):
            args = drawn(problem, [3, 150, 222])
            emulator.subject(problem).run(args)
            found.append(args.out)
    forget_specializations()
    assert torch.equal(found[0], found[1])
    assert not bool((found[0] == 0).all(-1).any())


@emulator.needed
def test_rows_have_the_same_bits_among_any_rows():
    campaign = determinism.Campaign(needles=4, compositions=2, largest=9)
    shown = determinism.batch_invariance(emulator.subject(FORMS["gradients"]), campaign, 2)
    assert shown.different == 0, shown.first
    assert shown.compared >= campaign.needles * campaign.compositions


def test_refusals_name_the_field():
    wanted = {"layout": GroupedMatmulDescriptor(groups=3, total_num_rows=5, n=8, k=8, dtype="bf16"), "dtype": made(dtype="f32")}
    wanted["x_layout"] = made(dtype="i8", x_layout="km")
    for field, problem in wanted.items():
        option = next(o for o in explain(problem, target=SM_90A).options if o.name == "cuda/wgmma_k_groups")
        assert any(field in str(reason) for reason in option.reasons), field


def test_the_example_has_a_kernel():
    forget_specializations()
    found = [one for one in EXAMPLES if isinstance(one, GroupedMatmulDescriptor) and one.layout == "k" and one.dtype == "bf16"]
    assert [explain(one, target=SM_90A).chosen.name for one in found] == ["cuda/wgmma_k_groups"]


@pytest.mark.parametrize("out_dtype", ["f32", pytest.param("bf16", marks=pytest.mark.heavy)])
def test_the_largest_tile_compiles_without_spills(out_dtype):
    """The suite refuses slow code of a shipped kernel."""
    forget_specializations()
    problem = made(groups=8, rows=4096, n=4096, k=65536, out_dtype=out_dtype, accumulate=True, **ACROSS)
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    assert dict(plan.sku.spec)["tile_columns"] == 256
    plan.compile()
    assert plan.cache_state == "shared"
