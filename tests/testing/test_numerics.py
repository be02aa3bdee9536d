"""The error measure: a correct kernel stays within it for any data; every numeric fault exceeds it."""

import math
import random

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.attention.facts import error_model
from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention import bound
from tests.support.problems import decode, on_reference
from tests.support.rounding_model import Machine, attention

ROWS, DIM = 8, 128
BF16, F16 = Machine(torch.bfloat16), Machine(torch.float16)
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}
KINDS = ("normal", "peaky", "outliers", "offset", "zero q")


def drawn(kind, n, dtype, seed, rows=ROWS):
    """q, k, v as stored, in float64."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(m, DIM, generator=g) for m in (rows, n, n))
    if kind == "peaky":
        q *= 4
    elif kind == "outliers":
        k[:, 3] *= 20
        v[:, 5] *= 20
    elif kind == "offset":
        v += 8
    elif kind == "zero q":
        q.zero_()
    return tuple(x.to(dtype).double() for x in (q, k, v))


def ratios(machine, q, k, v, seen=None, seed=0, told=None):
    """(worst over hard, worst over tight) for each row; `told`: the data that the kernel used instead."""
    scale = DIM**-0.5
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool) if seen is None else seen
    told = told or (q, k, v, seen)
    o, lse = attention(machine, *told[:3], scale, told[3], seed)
    c = dict(error_model(NAMES[machine.dtype], 64, machine.splits > 1).constants)
    row = bound.ErrorRow(q[None], k[None], v[None], seen, scale, 0.0)
    found = []
    for r in range(q.shape[0]):
        own = bound.ErrorRow(q[None, r : r + 1], row.k, row.v, seen[r : r + 1], scale, 0.0)
        bounded = bound.attention_bounds(own, c, NAMES[machine.dtype])
        report = numerics.compare(bounded, {"o": o[None, r : r + 1], "lse": lse[None, r : r + 1]})
        found.append((report.worst, report.worst_tight))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(
    "machine", [BF16, F16, BF16.but(splits=8), F16.but(splits=3)], ids=["bf16", "f16", "bf16 split", "f16 split"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_kernel_stays_below_hard_and_tight(machine, kind):
    for n in (1, 17, 1000):
        found = ratios(machine, *drawn(kind, n, machine.dtype, n), seed=n)
        assert float(found.max()) <= 1, (n, found)


def test_a_sound_kernel_is_not_far_below_the_bound():
    """A bound that no fault exceeds would prove nothing."""
    for machine in (BF16, F16):
        for n in (17, 1000):
            assert float(ratios(machine, *drawn("normal", n, machine.dtype, n))[:, 1].max()) > 0.05


def masked(n, rows=ROWS):
    """Causal, with rows that see nothing at all."""
    key, row = torch.arange(n)[None], torch.arange(rows)[:, None]
    return key <= row - 3


def test_masked_rows_must_be_exactly_empty():
    q, k, v = drawn("normal", 5, torch.float16, 1)
    seen = masked(5)
    assert float(ratios(F16, q, k, v, seen).max()) <= 1
    c = dict(error_model("f16", 64, False).constants)
    bounded = bound.attention_bounds(bound.ErrorRow(q[None], k[None], v[None], seen, 0.1, 0.0), c, "f16")
    got = {item.name: item.want.clone() for item in bounded}
    assert numerics.compare(bounded, got).worst == 0
    got["o"][0, 0, 7] = 2.0**-24
    assert numerics.compare(bounded, got).worst == math.inf


FAULTS = {
    # name: (machine, keys, parameters of the kernel, share of rows that must be flagged)
    "f16 2048 last key dropped": (F16, 2048, "drop", 0.8),
    "f16 2048 last key doubled": (F16, 2048, "double", 0.8),
    "f16 2048 a wrong page": (F16, 2048, "page", 1.0),
    "f16 2048 scale off by 2^-8": (F16.but(scale_error=2.0**-8), 2048, None, 1.0),
    "f16 2048 bf16 accumulator": (F16.but(accumulator=torch.bfloat16), 2048, None, 1.0),
    "f16 16384 last key dropped": (F16, 16384, "drop", 0.5),
    "bf16 2048 P in e4m3": (BF16.but(p_dtype=torch.float8_e4m3fn), 2048, None, 1.0),
    "bf16 16384 a wrong page": (BF16, 16384, "page", 1.0),
    "bf16 16384 bf16 accumulator": (BF16.but(accumulator=torch.bfloat16), 16384, None, 1.0),
    "bf16 2048 no rescaling": (BF16.but(no_rescale=True), 2048, None, 1.0),
    "bf16 2048 splits merged without weights": (BF16.but(splits=5, unsplit_weights=True), 2048, None, 1.0),
}  # fmt: skip


def told(how, q, k, v):
    """The keys that a kernel with an addressing fault uses."""
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if how == "drop":
        seen[:, -1] = False
    elif how == "double":
        k, v, seen = torch.cat([k, k[-1:]]), torch.cat([v, v[-1:]]), torch.ones(q.shape[0], k.shape[0] + 1, dtype=torch.bool)
    elif how == "page":
        k, v = k.clone(), v.clone()
        k[160:176], v[160:176] = k[800:816], v[800:816]
    return q, k, v, seen


@pytest.mark.parametrize("name", FAULTS)
def test_a_numeric_fault_is_outside_the_bound(name):
    machine, n, how, share = FAULTS[name]
    q, k, v = drawn("normal", n, machine.dtype, 5)
    found = ratios(machine, q, k, v, told=told(how, q, k, v))
    assert float((found.max(1).values > 1).double().mean()) >= share, found


def test_the_first_order_term_is_exact_where_it_may_not_be_used():
    """Scores so large that eta is no longer small: the bound stays above the worst perturbation, and below the spread of V."""
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(m, 16, generator=g, dtype=torch.float64) for m in (1, 40, 40))
    row = bound.ErrorRow(q[None] * 2000, k[None] * 200, v[None], torch.ones(1, 40, dtype=torch.bool), 1.0, 0.0)
    c = dict(error_model("f16", 64, False).constants)
    o, _ = bound.attention_bounds(row, c, "f16")
    raw = (row.q @ row.k.transpose(1, 2))[0, 0]
    size = (row.q.abs() @ row.k.abs().transpose(1, 2))[0, 0]
    eta = 5 * c["u_acc"] * size
    assert float(eta.max()) > 0.01
    for sign in (torch.where(v[:, 0] > o.want[0, 0, 0], 1.0, -1.0), torch.where(v[:, 0] > o.want[0, 0, 0], -1.0, 1.0)):
        moved = (raw + sign * eta).softmax(0) @ v
        assert abs(float(moved[0] - o.want[0, 0, 0])) <= float(o.hard[0, 0, 0])
    assert float((o.hard - (v - o.want[0]).abs().amax(0)).max()) < 0.1


def test_a_soft_cap_damps_the_error_of_large_scores():
    """tanh has a small slope at large scores and a large one at small scores: the bound follows it, above the real effect."""
    c = dict(error_model("bf16", 64, False).constants)
    g = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(m, DIM, generator=g).bfloat16().double() for m in (4, 300, 300))
    seen = torch.ones(4, 300, dtype=torch.bool)
    for stretch in (1.0, 30.0):
        row = bound.ErrorRow(q[None] * stretch, k[None], v[None], seen, DIM**-0.5, 5.0)
        o, _ = bound.attention_bounds(row, c, "bf16")
        raw = (row.q @ row.k.transpose(1, 2)) * row.scale
        off = raw * (1 + 2.0**-22)
        moved = (5 * torch.tanh(off / 5)).softmax(-1) @ row.v
        assert bool(((moved - o.want).abs() <= o.hard).all())
        assert float((o.hard / (o.want.abs() * 2.0**-8 + 0.02)).max()) < 3


@pytest.mark.parametrize("nonfinite", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_reach_exactly_the_rows_that_see_them(nonfinite):
    q, k, v = drawn("normal", 12, torch.float16, 3)
    v[5, 2] = nonfinite
    seen = torch.arange(12)[None] <= torch.arange(ROWS)[:, None] + 1
    o, lse = bound.attention_bounds(
        bound.ErrorRow(q[None], k[None], v[None], seen, 0.1, 0.0), dict(error_model("f16", 64, False).constants), "f16"
    )
    assert bool(o.want[0, :4].isfinite().all())
    assert not bool(o.want[0, 4:, 2].isfinite().any())
    assert bool(o.hard[0, :4].isfinite().all())
    assert bool(lse.want.isfinite().all())
    got = {"o": o.want.clone(), "lse": lse.want.clone()}
    assert numerics.compare([o, lse], got).worst == 0
    got["o"][0, 6, 2] = 1.0
    assert numerics.compare([o, lse], got).worst == math.inf


def test_a_key_that_is_not_finite_makes_its_rows_nan_and_no_other():
    q, k, v = drawn("normal", 12, torch.float16, 3)
    k[5, 2] = math.nan
    seen = torch.arange(12)[None] <= torch.arange(ROWS)[:, None] + 1
    o, lse = bound.attention_bounds(
        bound.ErrorRow(q[None], k[None], v[None], seen, 0.1, 0.0), dict(error_model("f16", 64, False).constants), "f16"
    )
    for item in (o, lse):
        assert bool(item.want[0, :4].isfinite().all())
        assert bool(item.hard[0, :4].isfinite().all())
        assert bool(item.want[0, 4:].isnan().all())


def test_an_f64_promise_has_an_f64_bound():
    from opfacade.plans.attention import BatchRaggedPrefillDescriptor

    shape = {"batch_size": 1, "total_num_rows": 4, "total_kv_rows": 60, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 64}
    descriptor = BatchRaggedPrefillDescriptor(causal=False, dtype="f32", **shape)
    args = inputs.make_args(descriptor, seed=1)
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    plan.run(args)
    assert plan.precision_guarantee.error_model.id == "attention-f64"
    assert numerics.check(descriptor, args, plan.sku).worst <= 1
    args.o[2, 1, 7] *= 1 + 2.0**-22
    assert numerics.check(descriptor, args, plan.sku).worst > 1


def test_the_bound_catches_a_dropped_key():
    """The measure itself can fail: an answer over all keys but one is outside the bound."""
    from opfacade.plans.attention import BatchRaggedPrefillDescriptor

    rng = random.Random(3)
    kind = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64, "causal": False, "dtype": "f16", "batch_size": 1}
    whole = BatchRaggedPrefillDescriptor(total_num_rows=8, total_kv_rows=200, **kind)
    args = inputs.make_args(whole, seed=rng.randrange(100), lengths=inputs.DrawnLengths(q=[8], kv=[200]))
    args.kv_indptr[1] = 199
    plan = Plan.select(whole, Preference(backend="reference"), target=Target.cpu())
    plan.run(args)
    args.kv_indptr[1] = 200
    assert numerics.check(whole, args, plan.sku).worst > 1


@pytest.mark.parametrize("name", ["o", "lse"])
def test_the_worst_element_is_named_by_its_index_in_the_operand(name):
    """Not in the order in which heads are grouped for the bound."""
    descriptor, args = decode([5, 19, 3])
    plan = on_reference(descriptor)
    plan.run(args)
    place = (1, descriptor.num_qo_heads - 1, 2)[: getattr(args, name).ndim]
    getattr(args, name)[place] = 1e4
    assert f" {name}{list(place)} got " in numerics.check(descriptor, args, plan.sku).where
