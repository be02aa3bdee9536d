"""Every term of the bounds of attention and of merges, against its closed form for rows with equal scores."""

import math
import random

import pytest
import torch

from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.plans.attention import BatchRaggedPrefillDescriptor
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.testing.families.attention import bound, oracle
from opfacade.testing.inputs import make_args

KEYS, DIM, SCALE, U = 600, 8, 0.25, 2.0**-24
BASE = {"u_acc": 2.0**-20, "k_step": 4.0, "u_p": 2.0**-9, "eta_p": 0.0, "exp": 2.0**-18, "tanh": 2.0**-12, "tile": 4.0}
BASE |= {"lanes": 2.0, "split": 0.0}
MORE = {
    "plain": {},
    "underflow of P": {"eta_p": 2.0**-10},
    "split": {"split": 1.0},
    "split into parts of fewer keys than a tile": {"split": 1.0, "part": 1.5},
    "factors": {"scaled": 1.0},
    "underflow of q": {"eta_q": 2.0**-14},
    "products that are cut": {"u_step": 2.0**-12, "chain": 16.0},
    "a ramp in exponents": {"line": 1.0},
    "weights that may be anything": {"exp": 5.0},
}


class Row:
    """One row whose keys are all the same, so that each score has the same error."""

    def __init__(self, cap=0.0, sink=None):
        g = torch.Generator().manual_seed(3)
        self.q, self.key = torch.randn(DIM, generator=g).double(), torch.randn(DIM, generator=g).double()
        self.v = torch.randn(KEYS, 2, generator=g).double()
        self.cap, self.sink = cap, sink
        self.raw = SCALE * float(self.q @ self.key)

    def bounds(self, c, dtype="f16"):
        k, seen = self.key.expand(KEYS, DIM)[None], torch.ones(1, KEYS, dtype=torch.bool)
        sink = None if self.sink is None else torch.tensor([[self.sink]], dtype=torch.float64)
        row = bound.ErrorRow(self.q[None, None], k, self.v[None], seen, SCALE, self.cap, sink)
        return bound.attention_bounds(row, BASE | c, dtype)

    @property
    def score(self):
        return self.cap * math.tanh(self.raw / self.cap) if self.cap else self.raw

    def eta(self, c):
        """How far a score may be off."""
        c = {"line": 0.0, "scaled": 0.0, "eta_q": 0.0, "u_step": 0.0} | BASE | c
        q, k, size = self.q.tolist(), self.key.tolist(), abs(self.raw)
        absolute = SCALE * sum(abs(a * b) for a, b in zip(q, k, strict=True))
        off = (DIM / c["k_step"] + 4) * c["u_acc"] * absolute
        off += c["u_step"] * SCALE * self.largest(int(c["k_step"])) + c["scaled"] * 2 * U * size
        off += c["eta_q"] * SCALE * max(map(abs, q)) * sum(map(abs, k))
        if self.cap:
            off += 2 * U * size
            nearest = max(0.0, size - off) / self.cap
            off = off * (1 - math.tanh(nearest) ** 2) + c["tanh"] * self.cap
            size = min(size, self.cap)
        return off + U * (3 * size + (3 + 2 * c["line"]) * abs(self.top)) + c["exp"]

    def largest(self, step):
        """Over the steps of the dot product, the maximum of its sums and products."""
        products, before, total = [a * b for a, b in zip(self.q.tolist(), self.key.tolist(), strict=True)], 0.0, 0.0
        for first in range(0, DIM, step):
            mine = products[first : first + step]
            after = before + sum(mine)
            total, before = total + max(sum(map(abs, mine)), abs(before), abs(after)), after
        return total

    @property
    def top(self):
        return self.score if self.sink is None else max(self.score, self.sink)


def close(got, want):
    return torch.allclose(got.double().flatten(), torch.as_tensor(want).double().flatten(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("name", MORE)
def test_the_bound_of_o_is_its_closed_form(name, cap):
    row, c = Row(cap), BASE | MORE[name]
    o, _ = row.bounds(MORE[name])
    mean, size, n = row.v.mean(0), row.v.abs().mean(0), float(KEYS)
    eta, tiles = row.eta(MORE[name]), n / c["tile"] + 1
    first = math.expm1(eta) * math.exp(eta) * (row.v - mean).abs().mean(0)
    if eta > 0.01:  # no weights move o past the farthest value
        first = torch.minimum(first, (row.v - mean).abs().amax(0))
    steps = (n / c["k_step"] + tiles + 4) * c["u_acc"]
    cut = c.get("u_step", 0.0) * c.get("chain", 0.0) / c["k_step"] * (1 + c["u_p"]) * size
    underflow = c["eta_p"] / n * row.v.abs().sum(0)
    hard = (c["u_p"] + steps) * size + (n / c["lanes"] + tiles + 8) * U * mean.abs()
    running = (row.v / n).cumsum(0).abs().amax(0) + (row.v / n).abs().amax(0)
    tight = 6 * c["u_p"] * ((row.v / n) ** 2).sum(0).sqrt() + c["u_p"] * mean.abs() + steps * running
    tight = torch.minimum(tight + (6 * math.sqrt(n / c["lanes"]) + tiles + 8) * U * mean.abs(), hard)
    parts = n / min(c["tile"], c.get("part", math.inf)) + 5
    merge = c["split"] * (2.0**-21 + 4 * U * abs(row.score) + parts * U) * size + c.get("scaled", 0.0) * 3 * U * size
    u, least = ROUNDOFF["f16"], UNDERFLOW["f16"]
    for got, error in ((o.hard, hard), (o.tight, tight)):
        assert close(got, 1.02 * ((1 + 2 * u) * (first + error + cut + underflow + merge) + u * mean.abs() + least))
    assert close(o.want, mean)


@pytest.mark.parametrize("sink", [None, 0.75])
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("name", MORE)
def test_the_bound_of_lse_is_its_closed_form(name, cap, sink):
    row, c = Row(cap, sink), BASE | MORE[name]
    _, lse = row.bounds(MORE[name])
    joined = math.exp(sink - row.top) if sink is not None else 0.0
    total = KEYS * math.exp(row.score - row.top) + joined
    want, n = row.top + math.log(total), KEYS + (sink is not None)
    of_sink = U * (3 * abs(sink or 0.0) + (3 + 2 * c.get("line", 0.0)) * abs(row.top)) + c["exp"]
    # Keys have the errors of their scores; the sink, which is an input, only those of its subtraction and exp.
    grown = math.log((KEYS * math.exp(row.score - row.top + row.eta(MORE[name])) + joined * math.exp(of_sink)) / total)
    sums = (n / c["lanes"] + n / c["tile"] + 1 + 8) * U + 8 * U + (3 * U + U) * abs(want)
    parts = n / min(c["tile"], c.get("part", math.inf)) + 5
    spread = grown + sums + c["split"] * (2.0**-20 + 8 * U * abs(row.top) + parts * U)
    assert close(lse.hard, 1.02 * spread)
    assert close(lse.want, want)


def test_a_row_without_keys_has_no_room_at_all():
    row = Row()
    k, nothing = row.key.expand(KEYS, DIM)[None], torch.zeros(1, KEYS, dtype=torch.bool)
    found = bound.attention_bounds(bound.ErrorRow(row.q[None, None], k, row.v[None], nothing, SCALE, 0.0), BASE, "f16")
    assert [float(item.hard.abs().max()) for item in found] == [0.0, 0.0]
    assert float(found[1].want) == -math.inf


@pytest.mark.parametrize("states", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_the_bound_of_a_merge_is_its_closed_form(states, dtype):
    descriptor = MergeStatesDescriptor(num_states=states, total_num_rows=2, num_heads=1, head_dim=4, dtype=dtype)
    args = make_args(descriptor, seed=1)
    g = torch.Generator().manual_seed(1)
    given, lse = (
        torch.randn(args.states_o.shape, generator=g).to(args.states_o.dtype),
        torch.randn(args.states_lse.shape, generator=g),
    )
    o, merged = oracle.merge(descriptor, MergeStatesArgs(states_o=given, states_lse=lse, o=args.o, lse=args.lse))
    weight = lse.double().softmax(0)[..., None]
    want, size = (weight * given.double()).sum(0), (weight * given.double().abs()).sum(0)
    relative = 2.0**-20 + (states + 8) * 2.0**-23 + 8 * 2.0**-24 * lse.double().abs().amax(0)
    u, least = ROUNDOFF[dtype], UNDERFLOW[dtype]
    assert close(o.hard, 1.02 * ((1 + 2 * u) * relative[..., None] * size + u * want.abs() + least))
    assert close(merged.hard, 1.02 * relative)
    assert close(o.tight, o.hard)
    assert close(merged.tight, merged.hard)


def test_an_empty_state_of_a_merge_is_left_out_whatever_it_holds():
    descriptor = MergeStatesDescriptor(num_states=3, total_num_rows=1, num_heads=1, head_dim=4, dtype="f32")
    args, g = make_args(descriptor, seed=1), torch.Generator().manual_seed(1)
    states, lse = torch.randn(3, 1, 1, 4, generator=g), torch.randn(3, 1, 1, generator=g)
    states[1], lse[1] = math.nan, -math.inf
    o, merged = oracle.merge(descriptor, MergeStatesArgs(states_o=states, states_lse=lse, o=args.o, lse=args.lse))
    weight = lse[::2].double().softmax(0)[..., None]
    assert close(o.want, (weight * states[::2].double()).sum(0))
    assert close(merged.want, lse[::2].double().logsumexp(0))
    assert bool(o.hard.isfinite().all())


def ragged(**fields):
    shape = {"batch_size": 2, "total_num_rows": 60, "total_kv_rows": 90, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 64}
    return BatchRaggedPrefillDescriptor(causal=False, dtype="f16", **shape, **fields)


def asked(monkeypatch, descriptor, rows, seed):
    """(rows of the call that the oracle compares, constants that it gives to the bound)."""
    found = []
    monkeypatch.setattr(oracle, "_request", lambda *given: found.append(given))
    list(oracle.attention(descriptor, make_args(descriptor, seed=1), dict(BASE), rows, random.Random(seed)))
    return [row for given in found for row in given[4]], found[0][2]


def test_a_sample_of_rows_is_drawn_by_its_seed(monkeypatch):
    samples = [asked(monkeypatch, ragged(), 5, seed)[0] for seed in range(100)]
    assert {len(rows) for rows in samples} == {5}
    assert {row for rows in samples for row in rows} == set(range(60))
    assert samples == [asked(monkeypatch, ragged(), 5, seed)[0] for seed in range(100)]
    assert asked(monkeypatch, ragged(), None, 0)[0] == list(range(60))


@pytest.mark.parametrize(
    ("fields", "more"),
    [({}, {}), ({"kv_split": "off"}, {}), ({"kv_split": 256}, {"part": 256.0})],
)
def test_what_a_descriptor_adds_to_the_constants(monkeypatch, fields, more):
    assert asked(monkeypatch, ragged(**fields), 5, 0)[1] == BASE | more
