"""Products of 16-bit types by mma.sync on an emulated device: right results for operands at any address, the bits of wgmma
tiles, and no access outside of a tensor."""

import random
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import direct
from opfacade.backends.cuda.matmul.direct_choice import ALONG, BESIDE
from opfacade.backends.cuda.matmul.segments import segments_of
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul.held import forget
from tests.families.matmul.test_odd_kernel import spread
from tests.support.fenced import fenced
from tests.support.unaligned import in_a_child, one_element_on

SM_90A = Target.parse("sm_90a")
SHAPES = {f"{one.rows}x{one.columns}": one for one in BESIDE} | {f"{one.rows}-along": one for one in ALONG}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget()


def made(rows=9, n=40, k=77, dtype="bf16", **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, **more)


@contextmanager
def by(shape):
    """All products have this shape of the kernel. None: tiles of wgmma."""
    forget()
    chosen = None if shape is None else lambda problem, target: shape._replace(segments=segments_of(problem))
    with patch.object(direct, "choice", lambda problem, target: chosen and chosen(problem, target)):
        yield
    forget()


def ran(problem, args, shape):
    """The output of a call, checked against its bound."""
    call = replace(args, out=args.out.clone())
    with by(shape):
        subject = emulator.subject(problem)
        assert subject.plan.sku.impl == ("wgmma_tile" if shape is None else "mma_direct")
        before = numerics.snapshot(problem, call)
        subject.run(call)
    report = numerics.check(problem, call, subject.plan.sku, before=before)
    assert max(report.worst, report.worst_tight) <= 1, report
    return call.out


FORMS = {
    "bias": made(rows=9, n=33, k=270, bias=True, activation="silu"),
    "added": made(rows=17, n=37, k=66, add=True, accumulate=True, beta=0.25, alpha=-2.0, out_dtype="f16"),
    "gated": made(rows=5, n=37, k=67, batch=3, num_valid=True, gated=True),
    "short": made(rows=9, n=5, k=3, dtype="f16"),
    "one": made(rows=1, n=1, k=1, out_dtype="f32"),
    "aligned": made(rows=70, n=72, k=136),
    "nothing": made(rows=3, n=9, k=0, bias=True, activation="relu"),
    "of-few-sms": made(rows=40, n=100, k=261, sm_limit=1, out_dtype="f32"),
    "segments": made(rows=20, n=72, k=2103, out_dtype="f32", sm_limit=2),
}


def fits(problem, shape):
    """Whether there are segments of k for warps that have one each."""
    return SHAPES[shape].along == 1 or segments_of(problem) is not None


@emulator.needed
@pytest.mark.parametrize(("name", "shape"), [(name, one) for name in FORMS for one in SHAPES if fits(FORMS[name], one)])
def test_it_keeps_its_bound_and_has_the_bits_of_tiles(name, shape):
    problem = FORMS[name]
    args = inputs.make_args(problem, 3)
    assert torch.equal(ran(problem, args, SHAPES[shape]).nan_to_num(7.0), ran(problem, args, None).nan_to_num(7.0))


@emulator.needed
@pytest.mark.parametrize("seed", range(6))
def test_random_sizes_have_the_bits_of_tiles(seed):
    rng = random.Random(seed)
    for _ in range(4):
        rows, n, k = (
            rng.randint(1, 80),
            rng.randint(1, 140),
            rng.choice([rng.randint(1, 40), rng.randint(1, 700), rng.randint(2048, 2300)]),
        )
        problem = made(rows, n, k, rng.choice(["bf16", "f16"]), out_dtype=rng.choice([None, "f32"]))
        args, shape = inputs.make_args(problem, seed), SHAPES[rng.choice([one for one in SHAPES if fits(problem, one)])]
        assert torch.equal(ran(problem, args, shape), ran(problem, args, None)), (problem, shape)


@emulator.needed
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_integers_are_exact(shape):
    """Known answers: sums of small integers are exact in f32, in every order."""
    made_by = torch.Generator().manual_seed(1)
    for k in (1, 15, 16, 17, 129, 300) if SHAPES[shape].along == 1 else (2049, 3001):
        problem = made(rows=19, n=43, k=k, out_dtype="f32")
        x, weight = (torch.randint(-9, 10, (lines, k), generator=made_by) for lines in (19, 43))
        args = replace(inputs.make_args(problem, 3), x=x.to(torch.bfloat16), weight=weight.to(torch.bfloat16))
        assert torch.equal(ran(problem, args, SHAPES[shape]).double(), x.double() @ weight.double().T)


@emulator.needed
@pytest.mark.parametrize(
    ("k", "shape"), [(77, "8x32"), (128, "8x64"), (300, "32x64"), (2103, "8x32"), (2104, "16-along"), (2103, "8-along")]
)
def test_addresses_and_strides_change_no_bit(k, shape):
    problem = made(rows=10, n=19, k=k, out_dtype="f32")
    args = inputs.make_args(problem, 3)
    plain = ran(problem, args, None)
    for name in ("x", "weight"):
        own = getattr(args, name)
        for view in (own, one_element_on(own), spread(own), apart(own, 2), apart(own, 3), apart(own, 8)):
            assert torch.equal(ran(problem, replace(args, **{name: view}), SHAPES[shape]), plain)


def apart(tensor, step):
    """Rows between which other numbers are, from an address that is `step` elements off."""
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3 * step), float("nan"), dtype=tensor.dtype, device=tensor.device)
    return wide[..., step : step + tensor.shape[-1]].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize(
    ("k", "shape"), [(5, "8x32"), (77, "8x32"), (130, "64x64"), (271, "16x32"), (2103, "8-along"), (2103, "16-along")]
)
def test_nothing_outside_of_an_operand_is_read(k, shape):
    problem = made(rows=10, n=19, k=k)
    args = inputs.make_args(problem, 3)
    with by(SHAPES[shape]):
        subject = emulator.subject(problem)
        for behind in (False, True):
            call = replace(args, x=fenced(args.x, behind), weight=fenced(args.weight, behind), out=fenced(args.out, behind))
            assert in_a_child(lambda: subject.run(call) is None) == 0  # noqa: B023


@emulator.needed
def test_the_last_line_is_not_read_past_its_end_if_only_other_lines_are_unaligned():
    """The last line begins and ends at multiples of 16 bytes; the lines before it begin at other addresses."""
    problem = made(rows=10, n=19, k=256)
    args = inputs.make_args(problem, 3)
    with by(SHAPES["8x32"]):
        subject = emulator.subject(problem)
        call = replace(args, x=fenced_lines(args.x, 257), weight=fenced_lines(args.weight, 257))
        assert in_a_child(lambda: subject.run(call) is None) == 0


def fenced_lines(tensor, step):
    """Lines of which each begins `step` elements after the previous one, with a fence after the last."""
    count, size = tensor.shape
    flat = fenced(torch.zeros((count - 1) * step + size, dtype=tensor.dtype), True)
    return flat.as_strided((count, size), (step, 1)).copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("shape", ["8x32", "8-along"])
def test_accesses_to_stages_of_several_tiles_are_ordered(shape):
    problem = made(rows=20, n=70, k=515 if shape == "8x32" else 2103, sm_limit=1)
    with by(SHAPES[shape]):
        subject = emulator.subject(problem)
        with emulator.watching():
            subject.run(subject.args(1))


@emulator.needed
@pytest.mark.parametrize("shape", ["8x32", "32x64", "8-along"])
def test_a_nan_stays_in_its_row_and_column(shape):
    k = 133 if SHAPES[shape].along == 1 else 2103
    problem = made(rows=10, n=19, k=k, out_dtype="f32")
    args = inputs.make_args(problem, 3)
    clean = ran(problem, args, None)
    for at in (0, k // 2, k - 1):
        x, weight = args.x.clone(), args.weight.clone()
        x[9, at], x[4, at], weight[17, at] = float("nan"), float("inf"), float("nan")
        found = inputs.make_args(problem, 3).out
        with by(SHAPES[shape]):
            emulator.subject(problem).run(replace(args, x=x, weight=weight, out=found))
        kept = [i for i in range(10) if i not in (4, 9)], [j for j in range(19) if j != 17]
        assert torch.equal(found[kept[0]][:, kept[1]], clean[kept[0]][:, kept[1]])
        assert bool(found[9].isnan().all())
        assert bool(found[:, 17].isnan().all())
        assert not bool(found[4].isfinite().any())


@emulator.needed
@pytest.mark.parametrize("k", [77, 2103])
def test_a_row_has_its_bits_in_any_batch(k):
    """Alone, among others, and in each shape."""
    problem = made(rows=70, n=40, k=k, out_dtype="f32")
    args = inputs.make_args(problem, 5)
    whole = ran(problem, args, None)
    for shape in [SHAPES[one] for one in SHAPES if fits(problem, one)]:
        for first, rows in ((0, 1), (3, 9), (0, 70)):
            part = problem.model_copy(update={"total_num_rows": rows}).revalidated()
            few = replace(args, x=args.x[first : first + rows], out=torch.full_like(args.out[:rows], float("nan")))
            assert torch.equal(ran(part, few, shape), whole[first : first + rows])


@emulator.needed
def test_rows_that_are_not_valid_keep_their_values():
    problem = made(rows=20, n=40, k=77, num_valid=True, out_dtype="f32")
    for valid, written in ((0, 0), (7, 7), (20, 20), (21, 0), (-1, 0)):
        args = replace(inputs.make_args(problem, 3), num_valid=torch.tensor([valid], dtype=torch.int32))
        args.out.fill_(99)
        with by(BESIDE[0]):
            emulator.subject(problem).run(args)
        assert bool((args.out[written:] == 99).all())
        assert bool((args.out[:written] != 99).all())


@emulator.needed
@pytest.mark.parametrize("shape", ["8x32", "8-along"])
def test_a_warp_that_begins_the_next_tile_early_changes_no_stage_of_the_last_warp(shape, monkeypatch):
    """One CTA has all tiles, which share stages."""
    emulator.last_first(monkeypatch)
    problem = made(rows=20, n=70, k=515 if shape == "8x32" else 2103, sm_limit=1, out_dtype="f32")
    args = inputs.make_args(problem, 3)
    assert torch.equal(ran(problem, args, SHAPES[shape]), ran(problem, args, None))


@pytest.mark.parametrize("change", [{"x_layout": "km"}, {"weight_layout": "kn"}, {"dtype": "f8_e4m3"}])
def test_other_layouts_and_types_are_refused(change):
    problem = made(**({"rows": 1} | change))
    assert direct.CANDIDATE.declines(problem, SM_90A)


def test_other_targets_are_refused():
    assert direct.CANDIDATE.declines(made(rows=1), Target.parse("sm_80"))


def test_it_compiles_without_spills():
    for shape in SHAPES.values():
        with by(shape):
            plan = Plan.select(made(rows=4, n=40, k=4001), Preference(backend="cuda"), SM_90A)
            plan.compile()
            assert plan.cache_state == "shared"
