"""Variants: the names that each part may use, the operands, and equal values of expressions in torch, in the oracle and in a
plain evaluation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opfacade.core.operands import Dim
from opfacade.errors import DescriptorError
from opfacade.plans._attention.variant import (  # fmt: skip
    MAX_PARAMETERS,
    Variant,
    equal,
    exp2,
    f32,
    floor,
    i32,
    kv_len,
    kv_pos,
    log2,
    max_,
    maximum,
    min_,
    minimum,
    not_equal,
    per_head,
    per_key,
    per_row,
    q_pos,
    query,
    score,
    sqrt,
    tanh,
)
from opfacade.plans._attention.variant_eval import Place, Stacks, exact, inexact, values_of
from opfacade.plans._attention.variant_examples import alibi, alibi_slopes, document_mask, sliding_window, soft_cap
from opfacade.testing.families.attention.expression_bound import Ball, Roundoff, bound
from tests.support import expressions, naive_variant


def refused(fields, *words):
    with pytest.raises(DescriptorError) as caught:
        Variant(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["at least one of"]),
        ({"mask": score}, ["mask", "bool", "not f32"]),
        ({"logits": kv_pos}, ["logits", "f32", "not i32"]),
        ({"logits": score + query}, ["logits.args.1: query can be used only in query"]),
        ({"query": query * f32(kv_pos)}, ["query.args.1.args.0: kv_pos can be used only in logits and mask"]),
        ({"query": query * f32(per_key("x"))}, ["query.args.1.args.0: key parameter"]),
        ({"query": tanh(query)}, ["query", "exact"]),
        ({"query": score}, ["query", "exact"]),
        ({"logits": score * per_head("x"), "mask": per_row("x") < 1}, ["mask.args.0: parameter x is per head elsewhere"]),
        ({"logits": sum((per_head(f"p{i}") for i in range(MAX_PARAMETERS + 1)), score)}, ["at most 4 parameters per head"]),
        ({"logits": "score"}, ["logits"]),
        ({"code": "return score;"}, ["code"]),
    ],
)
def test_an_invalid_variant_is_refused_with_the_path(fields, words):
    refused(fields, *words)


@settings(max_examples=40, deadline=None)
@given(expressions.variants())
def test_a_variant_survives_serialisation(variant):
    again = Variant.model_validate_json(variant.model_dump_json())
    assert (again, again.key, hash(again)) == (variant, variant.key, hash(variant))


def test_the_key_of_a_variant_depends_on_its_expressions():
    keys = {v.key for v in (alibi(8), soft_cap(30.0), soft_cap(31.0), sliding_window(3), sliding_window(4), document_mask())}
    assert len(keys) == 6
    assert all(key.startswith("v") and len(key) == 25 for key in keys)
    assert alibi(8).key == alibi(32).key  # slopes are operands, so the key does not contain them


def test_parameters_are_stacked_in_alphabetical_order():
    variant = Variant(logits=score * per_head("b") + per_head("a"), mask=equal(per_row("z"), per_key("c")) & (per_key("d") > 0))
    keys = (Dim("num_total_pages", 5), Dim("page_size", 4))
    found = variant.operands(Dim("num_qo_heads", 6), Dim("total_num_rows", 9), keys)
    assert {n: ([d.size for d in s.shape], s.dtype, s.role) for n, s in found.items()} == {
        "head_params": ([2, 6], "f32", "in"), "row_params": ([1, 9], "i32", "in"), "key_params": ([2, 5, 4], "i32", "in"),
    }  # fmt: skip
    assert [str(s.shape[0]) for s in found.values()] == ["a+b=2", "z=1", "c+d=2"]


# Values of expressions.

HEADS, KV_HEADS, Q_LEN, KV_LEN = 4, 2, 3, 5
ALL = Variant(
    logits=score + per_head("h1") + per_head("h2"),
    mask=(per_row("r1") < per_row("r2")) & (per_key("k1") < per_key("k2")),
)


def place_and_stacks(seed):
    g = torch.Generator().manual_seed(seed)
    whole = [-(2**31), 2**31 - 1, 0, -1, 1, 2, 7]
    draw = lambda *shape: torch.tensor(whole)[torch.randint(0, len(whole), shape, generator=g)].int()  # noqa: E731
    head = torch.randn(2, HEADS, generator=g)
    return Place(torch.arange(Q_LEN), Q_LEN, KV_LEN, HEADS, KV_HEADS), Stacks(head, draw(2, Q_LEN), draw(2, KV_LEN))


def pairs(known, at):
    """The values for one (row, key, head), read from the tensors."""
    _, stacks = known
    i, j, h = at
    found = {"q_pos": i + KV_LEN - Q_LEN, "kv_pos": j, "q_len": Q_LEN, "kv_len": KV_LEN, "head": h, "kv_head": h // 2}
    for n, name in enumerate(("1", "2")):
        found["head", "h" + name] = np.float32(stacks.head[n, h].item())
        found["row", "r" + name] = stacks.row[n, i].item()
        found["key", "k" + name] = stacks.key[n, j].item()
    return found


def spread(tensor):
    """Converts [kv_heads, rows * group, keys] to [row, key, head]."""
    whole = torch.broadcast_to(tensor, (KV_HEADS, Q_LEN * 2, KV_LEN)).reshape(KV_HEADS, Q_LEN, 2, KV_LEN)
    return whole.permute(1, 3, 0, 2).reshape(Q_LEN, KV_LEN, HEADS)


EVERYWHERE = [(i, j, h) for i in range(Q_LEN) for j in range(KV_LEN) for h in range(HEADS)]


@settings(max_examples=150, deadline=None)
@given(st.one_of(expressions.ints(3), expressions.floats(3), expressions.truths(3)), st.integers(0, 5))
def test_an_exact_expression_has_the_bits_of_its_rules(expression, seed):
    known = place_and_stacks(seed)
    got = spread(exact(expression, values_of(ALL, *known)))
    for at in EVERYWHERE:
        want, have = naive_variant.exact(expression.model_dump(), pairs(known, at)), got[at].item()
        same = math.isnan(want) and math.isnan(have) if isinstance(want, np.floating) and np.isnan(want) else want == have
        assert same, (at, want, have)


UNIT = Roundoff(2.0**-24, 2.0**-22)


@settings(max_examples=150, deadline=None)
@given(expressions.smooth(4), st.integers(0, 5))
def test_f32_values_are_within_the_radius_of_the_oracle(expression, seed):
    """The oracle's value is that of real arithmetic; f32 arithmetic, with an error in the score, stays within the radius."""
    known = place_and_stacks(seed)
    values, g = values_of(ALL, *known), torch.Generator().manual_seed(seed)
    scores = torch.randn(KV_HEADS, Q_LEN * 2, KV_LEN, generator=g, dtype=torch.float64) * 3
    off = torch.rand(scores.shape, generator=g, dtype=torch.float64) * 1e-4
    found = bound(expression, values, Ball(scores, off), UNIT)
    wide = spread(found.v)
    for at in EVERYWHERE[::7]:
        want = naive_variant.real(expression.model_dump(), pairs(known, at) | {"score": spread(scores)[at].item()})
        assert math.isclose(wide[at].item(), want, rel_tol=1e-9, abs_tol=1e-9)
    for sign in (-1, 0, 1):
        told = (scores + sign * off).float()
        # the score in f32 is slightly inside the interval
        radius = bound(expression, values, Ball(scores, (told.double() - scores).abs()), UNIT).r
        got = inexact(expression, values | {"score": told}, torch.float32).expand(scores.shape).double()
        assert bool(((got - found.v).abs() <= radius).all())


@pytest.mark.parametrize("slope", [0.3, -1.7e30, 1 / 3, 3e36])
@pytest.mark.parametrize("first", [0, 5, 4000])
def test_a_linear_term_computed_from_any_key_of_a_tile_is_within_the_radius(slope, first):
    """slope * first + slope * step, as kernels compute it, is within the radius unless the radius is infinite."""
    keys = torch.arange(first, first + 256, dtype=torch.int32)
    row = torch.tensor(first + 130, dtype=torch.int32)
    values = {"kv_pos": keys, "q_pos": row, "q_len": row}
    line = f32(kv_pos - q_pos) * slope
    found = bound(line, values, Ball(torch.zeros(256, dtype=torch.float64), torch.zeros(256, dtype=torch.float64)), UNIT)
    exactly = float(np.float32(slope))
    for step in range(128):
        with np.errstate(over="ignore"):
            start = np.float32(exactly) * (keys - step - first - 130).numpy().astype(np.float32)
            made = torch.from_numpy((exactly * step + start.astype(np.float64)).astype(np.float32).astype(np.float64))
        assert bool((((made - found.v).abs() <= found.r) | found.r.isinf()).all())
    assert bool(found.r.isinf().any()) == (slope == 3e36)


def test_the_radius_is_small_where_the_error_is_small():
    """The cap reduces the error of a large score; a logarithm near 0 has no error bound."""
    at = torch.tensor([[[0.0, 200.0]]], dtype=torch.float64)
    values = {"q_len": torch.tensor(1, dtype=torch.int32)}
    capped = bound(soft_cap(5.0).logits, values, Ball(at, at * 0 + 1e-2), UNIT).r[0, 0]
    assert 0.9e-2 < float(capped[0]) < 1.1e-2
    assert float(capped[1]) < 1e-5
    assert bound(log2(score), values, Ball(at, at * 0 + 1e-2), UNIT).r[0, 0, 0] == math.inf
    assert bound(exp2(score), values, Ball(at, at * 0), UNIT).r[0, 0, 1] == math.inf


def test_results_at_the_limits_of_types():
    values = {"q_len": torch.tensor(0, dtype=torch.int32), "kv_len": torch.tensor(-7, dtype=torch.int32)}

    def worth(expression):
        return exact(expression, values).item()

    x, zero, least = kv_len, kv_len * 0, kv_len * 0 + -(2**31)
    assert [worth(e) for e in (x // 2, x % 2, x // -2, x % -2)] == [-4, 1, 3, -1]
    assert [worth(e) for e in (x // zero, x % zero, least // -1, least % -1, -least, abs(least))] == [
        0,
        0,
        -(2**31),
        0,
        -(2**31),
        -(2**31),
    ]
    assert worth((zero + (2**31 - 1)) + 1) == -(2**31)
    one, nothing = f32(zero) + 1.0, f32(zero) / 0.0
    assert math.isnan(worth(nothing))
    assert [worth(one / 0.0), worth(-one / 0.0)] == [math.inf, -math.inf]
    assert [worth(e) for e in (nothing < 1.0, nothing >= 1.0, equal(nothing, nothing), not_equal(nothing, nothing))] == [
        0,
        0,
        0,
        1,
    ]
    assert worth(min_(one, nothing)) == worth(max_(one, nothing)) == 1.0
    assert math.isnan(worth(min_(nothing, one)))
    of_nan = [of(*args) for of in (minimum, maximum) for args in ((one, nothing), (nothing, one))]
    assert all(math.isnan(worth(e)) for e in of_nan)
    assert [worth(i32(e)) for e in (nothing, one * 1e30, one * -1e30, one * 2.9, one * -2.9)] == [0, 2**31 - 1, -(2**31), 2, -2]
    assert worth(f32(zero + 2**24 + 1)) == 2.0**24
    assert worth(floor(one * -0.5)) == -1.0


def test_a_square_root_and_a_quotient_are_rounded_to_nearest():
    g = torch.Generator().manual_seed(0)
    heads = torch.rand(2, 4096, generator=g) * 9
    values = values_of(
        ALL, Place(torch.arange(1), 1, 1, 4096, 1), Stacks(heads, torch.zeros(2, 1).int(), torch.zeros(2, 1).int())
    )
    a, b = heads.double()
    assert torch.equal(exact(sqrt(per_head("h1")), values).flatten(), a.sqrt().float())
    assert torch.equal(exact(per_head("h1") / per_head("h2"), values).flatten(), (a / b).float())


def test_alibi_slopes_of_1_6_and_8_heads():
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]


@pytest.mark.parametrize(
    "make", [lambda: alibi(0), lambda: sliding_window(-1), lambda: soft_cap(0.0), lambda: soft_cap(math.nan)]
)
def test_invalid_arguments_of_the_example_variants_are_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make()


def test_q_pos_is_the_position_among_the_keys():
    values = values_of(ALL, *place_and_stacks(0))
    assert spread(exact(q_pos, values))[:, 0, 0].tolist() == [2, 3, 4]
