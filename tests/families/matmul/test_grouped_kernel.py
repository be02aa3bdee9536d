"""The kernel of grouped products on an emulated device: every layout; a row has the bits of a single product."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import grouped as backend
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.matmul import EXAMPLES, GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor
from opfacade.select.explanation import explain
from opfacade.testing import determinism, inputs, numerics
from tests import emulator

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


@pytest.fixture(autouse=True)
def _rows_on_m():
    """Selects the kernel with rows on M of wgmma; the other kernel is tested in test_swapped_kernel.py."""
    with swapping(0):
        yield


@contextmanager
def swapping(rows):
    """Groups with at most this average number of rows have their rows on N of wgmma."""
    forget_specializations(), forget_selections()
    with patch.object(backend, "_FEW_ROWS", rows):
        yield
    forget_specializations(), forget_selections()


def made(groups=3, rows=90, n=72, k=136, dtype="bf16", **more):
    return GroupedMatmulDescriptor(groups=groups, total_num_rows=rows, n=n, k=k, dtype=dtype, **more)


FORMS = {
    "plain": made(),
    "bias": made(n=33, bias=True, bias_dtype="f32", activation="silu", out_dtype="f32"),
    "gated": made(n=40, gated=True, bias=True, dtype="f16"),
    "added": made(add=True, accumulate=True, beta=0.5, weight_layout="kn"),
    "many": made(groups=70, rows=75, n=40, k=64),
    "odd-k": made(rows=30, k=77, n=24),
    "gather": made(gather=True, num_x_rows=11, rows=40),
    "gather-odd": made(gather=True, num_x_rows=11, rows=40, k=77, n=33, weight_layout="kn", out_dtype="f32"),
    "gather-long": made(gather=True, num_x_rows=11, rows=140, n=72, k=1096, sm_limit=2),
    "masked": made(layout="masked", rows=70, n=40),
    "masked-gather": made(layout="masked", rows=9, n=40, gather=True, num_x_rows=5, bias=True),
    "nothing": made(rows=5, k=0, bias=True),
    "cleared": made(zero_tail=True, n=33, out_dtype="f32"),
    "cleared gates": made(zero_tail=True, gated=True, n=41, gather=True, num_x_rows=11, rows=40),
    "cleared masked": made(zero_tail=True, layout="masked", groups=40, rows=9, n=40),
}


def indptr_of(problem, seed=1):
    """Groups one after another, some empty, with rows before the first and after the last."""
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randint(1, problem.total_num_rows, (problem.groups + 1,), generator=generator).sort().values.int()
    cuts[1] = cuts[0]
    return cuts


def drawn(problem, seed=3):
    """Operands with NaN in rows outside all groups."""
    args = inputs.make_args(problem, seed)
    if problem.layout == "masked":
        return args
    args, generator = replace(args, indptr=indptr_of(problem)), torch.Generator().manual_seed(seed)
    first, stop = int(args.indptr[0]), int(args.indptr[-1])
    for name in ("add", "out") + (() if problem.gather else ("x",)):
        tensor = getattr(args, name)
        if tensor is not None:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
            tensor[:first], tensor[stop:] = float("nan"), float("nan")
    return args


def run(problem, args):
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == "wgmma_groups"
    before = numerics.snapshot(problem, args)
    subject.run(args)
    return numerics.check(problem, args, subject.plan.sku, before=before)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name):
    """The harness checks that rows outside all groups stay unchanged."""
    problem = FORMS[name]
    report = run(problem, drawn(problem))
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


def product_of(problem, args, group):
    """The rows of a group of `ragged`, from the kernel for single products."""
    first, stop = args.indptr[group : group + 2].tolist()
    one = MatmulDescriptor(
        total_num_rows=stop - first, n=problem.n, k=problem.k, dtype=problem.dtype, weight_layout=problem.weight_layout,
        out_dtype=problem.out_dtype,
    )  # fmt: skip
    x = args.x[args.x_rows[first:stop].long()] if problem.gather else args.x[first:stop]
    out = torch.full((stop - first, problem.n), float("nan"), dtype=args.out.dtype)
    emulator.subject(one).run(MatmulArgs(x=x, weight=args.weight[group], out=out))
    return slice(first, stop), out


@emulator.needed
@pytest.mark.parametrize(
    "problem",
    [made(), made(k=2080, n=40, rows=24), made(gather=True, num_x_rows=11, rows=40)],
    ids=["chain", "segments", "gather"],
)
def test_a_row_has_its_bits_in_any_group(problem):
    """A row has the bits of a product of its group alone, in this position and in another, also if k is summed in segments."""
    args = drawn(problem)
    run(problem, args)
    for group in range(problem.groups):
        rows, want = product_of(problem, args, group)
        assert torch.equal(args.out[rows].nan_to_num(7.0), want.nan_to_num(7.0))
    moved = replace(args, indptr=(args.indptr - args.indptr[0]), out=torch.zeros_like(args.out))
    if not problem.gather:
        moved = replace(moved, x=args.x.roll(-int(args.indptr[0]), 0))
        run(problem, moved)
        assert torch.equal(moved.out[: int(moved.indptr[-1])], args.out[int(args.indptr[0]) : int(args.indptr[-1])])


def beside_nan(tensor):
    """Rows that TMA and cp.async load, with NaN after each."""
    wide = torch.full((*tensor.shape[:-1], -(-tensor.shape[-1] // 16) * 16 + 16), float("nan")).to(tensor.dtype)
    return wide[..., : tensor.shape[-1]].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3"])
def test_gathered_rows_have_their_bits_at_any_address(dtype):
    """Unaligned rows are copied one chunk at a time, aligned rows by cp.async, also if k ends inside a chunk."""
    problem = made(gather=True, num_x_rows=11, rows=40, k=77, n=33, dtype=dtype, out_dtype="f32", sm_limit=2)
    args = drawn(problem)
    for tensor in (args.x, args.weight):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(6)))
    found = []
    for x, weight in ((args.x, args.weight), (beside_nan(args.x), beside_nan(args.weight)), (args.x, beside_nan(args.weight))):
        call = replace(args, x=x, weight=weight, out=torch.zeros_like(args.out))
        emulator.subject(problem).run(call)
        found.append(call.out)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    first, stop = int(args.indptr[0]), int(args.indptr[-1])
    assert bool((found[0][first:stop] != 0).any(1).all())


@emulator.needed
@pytest.mark.parametrize("counts", [[70, 1, 0], [9, 70, 64]])
def test_a_row_of_a_masked_group_has_the_bits_of_a_product_alone(counts):
    problem = FORMS["masked"]
    args = replace(drawn(problem), counts=torch.tensor(counts, dtype=torch.int32))
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(4)))
    emulator.subject(problem).run(args)
    for group, count in enumerate(counts):
        one = MatmulDescriptor(total_num_rows=count, n=problem.n, k=problem.k, dtype=problem.dtype)
        alone = MatmulArgs(x=args.x[group, :count], weight=args.weight[group], out=torch.zeros_like(args.out[group, :count]))
        if count:
            emulator.subject(one).run(alone)
        assert torch.equal(args.out[group, :count], alone.out)


def the_same_among_any_rows(problem, campaign):
    shown = determinism.batch_invariance(emulator.subject(problem), campaign, 2)
    assert shown.different == 0, shown.first
    assert shown.compared >= campaign.needles * campaign.compositions


@emulator.needed
@pytest.mark.parametrize("name", ["plain", "gather"])
def test_rows_have_the_same_bits_among_any_rows_of_any_groups(name):
    the_same_among_any_rows(FORMS[name], determinism.Campaign(needles=5, compositions=3, largest=9))


@emulator.needed
@pytest.mark.parametrize("indptr", [[-5, 3, 1, 999], [0, 0, 0, 0], [90, 90, 90, 90], [7, 2, 50, 40]])
def test_tables_that_are_wrong_write_nothing_outside(indptr):
    """Entries are clamped to the rows, and a group with decreasing entries is empty."""
    problem = made()
    args = replace(drawn(problem), indptr=torch.tensor(indptr, dtype=torch.int32))
    args.x.fill_(1.0)
    args.out.fill_(7.0)
    emulator.subject(problem).run(args)
    held, bound = set(), problem.total_num_rows
    for first, stop in pairwise(indptr):
        begin = min(max(first, 0), bound)
        held |= set(range(begin, min(max(stop, begin), bound)))
    outside = [row for row in range(bound) if row not in held]
    assert bool((args.out[outside] == 7.0).all())
    assert bool((args.out[sorted(held)] != 7.0).any(1).all())


@emulator.needed
@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("layout", ["ragged", "masked"])
def test_rows_of_no_group_are_cleared_and_nothing_beside_them(layout, first):
    """`out` is a view of a wider tensor, so its rows are not aligned to 16 bytes. In the masked layout one group has no valid
    rows, so all its rows are cleared."""
    problem = made(zero_tail=True, layout=layout, rows=21, n=19, k=24)
    args = drawn(problem)
    wide = torch.full((*args.out.shape[:-1], problem.n + 7), 7.0, dtype=args.out.dtype)
    tables = {"counts": torch.tensor([0, 21, 4])} if layout == "masked" else {"indptr": torch.tensor([2, 2, 9, 12])}
    args = replace(args, out=wide[..., first : first + problem.n], **{name: one.int() for name, one in tables.items()})
    args.x.fill_(1.0), args.weight.fill_(1.0)
    emulator.subject(problem).run(args)
    held = torch.zeros(args.out.shape[:-1], dtype=torch.bool)
    if layout == "masked":
        held[1], held[2, :4] = True, True
    else:
        held[2:12] = True
    assert torch.equal(args.out, torch.where(held[..., None], 24.0, 0.0).to(args.out.dtype).expand(args.out.shape))
    beside = torch.cat([wide[..., :first], wide[..., first + problem.n :]], -1)
    assert bool((beside == 7.0).all())


@emulator.needed
@pytest.mark.parametrize("indptr", [[-5, 3, 1, 999], [0, 0, 0, 0], [7, 2, 50, 40], [40, 30, 20, 10]])
def test_a_table_that_falls_clears_no_row_of_a_group(indptr):
    problem = made(zero_tail=True)
    args = replace(drawn(problem), indptr=torch.tensor(indptr, dtype=torch.int32))
    args.x.fill_(1.0), args.weight.fill_(1.0)
    args.out.fill_(7.0)
    emulator.subject(problem).run(args)
    held = set()
    for begin, stop in pairwise(min(max(one, 0), 90) for one in indptr):
        held |= set(range(begin, stop))
    outside = [row for row in range(90) if not held or row < min(held) or row > max(held)]
    assert bool((args.out[sorted(held)] == problem.k).all())
    assert bool((args.out[outside] == 0).all())


def writes_no_row_that_takes_none(problem, args):
    """Every third id is out of range."""
    args.x_rows[::3] = torch.tensor([-1, 11, 2**30]).repeat(5)[: len(args.x_rows[::3])].int()
    args.out.fill_(7.0)
    emulator.subject(problem).run(args)
    assert bool((args.out[::3] == 7.0).all())
    first, stop = int(args.indptr[0]), int(args.indptr[-1])
    kept = [row for row in range(first, stop) if row % 3]
    assert bool((args.out[kept] != 7.0).any(1).all())


@emulator.needed
def test_a_row_that_takes_none_of_x_is_not_written():
    writes_no_row_that_takes_none(FORMS["gather"], drawn(FORMS["gather"]))


@emulator.needed
@pytest.mark.parametrize("count", [-1, 71])
def test_a_count_out_of_range_is_an_empty_group(count):
    problem = FORMS["masked"]
    args = replace(drawn(problem), counts=torch.tensor([5, count, 70], dtype=torch.int32))
    args.out.fill_(7.0)
    emulator.subject(problem).run(args)
    assert bool((args.out[1] == 7.0).all())
    assert bool((args.out[0, 5:] == 7.0).all())
    assert bool((args.out[2] != 7.0).any(1).all())


def test_refusals_name_the_field():
    wanted = {
        "layout": made(layout="k"), "groups": made(groups=4097),
        "dtype": made(dtype="f32"),
    }  # fmt: skip
    for field, problem in wanted.items():
        option = next(o for o in explain(problem, target=SM_90A).options if o.name == "cuda/wgmma_groups")
        assert any(field in str(reason) for reason in option.reasons), field


def test_the_examples_have_a_kernel():
    forget_specializations()
    for problem in EXAMPLES:
        if isinstance(problem, GroupedMatmulDescriptor) and problem.dtype in ("f16", "bf16") and problem.layout != "k":
            of_codes = "wgmma_grouped_codes" if problem.k == 128 else "mma_grouped_codes"
            of_codes = "wgmma_decoded_groups" if problem.sm_limit else of_codes
            name = "wgmma_groups" if problem.weight_format is None else of_codes
            assert explain(problem, target=SM_90A).chosen.name == f"cuda/{name}"


@pytest.mark.parametrize("zero_tail", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["", "zero_tail"])
@pytest.mark.parametrize("layout", ["ragged", "masked"])
def test_the_largest_tile_compiles_without_spills(layout, zero_tail):
    """The suite refuses slow code of a shipped kernel."""
    forget_specializations()
    plan = Plan.select(
        made(groups=8, rows=4096, n=4096, k=4096, layout=layout, zero_tail=zero_tail), Preference(backend="cuda"), SM_90A
    )
    assert dict(plan.sku.spec)["tile_columns"] == 256
    plan.compile()
    assert plan.cache_state == "shared"
