"""Variants and packed masks on the reference: it agrees with a plain loop, and with the built-in fields that the variants can
replace."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade.errors import DescriptorError, IndexDataError
from opfacade.plans._attention.variant import (
    Variant,
    exp2,
    f32,
    head,
    kv_pos,
    minimum,
    per_head,
    per_row,
    q_pos,
    query,
    score,
    select,
)
from opfacade.plans._attention.variant_examples import alibi, alibi_slopes, document_mask, sliding_window, soft_cap
from opfacade.plans.attention import BatchPagedPrefillDescriptor
from opfacade.testing import inputs, numerics, problems
from opfacade.testing.families.attention import oracle, structural
from opfacade.testing.families.attention.requests import changed
from opfacade.testing.subject import Subject
from tests.families.attention.test_reference import assert_right
from tests.support import expressions
from tests.support import naive_attention as naive
from tests.support.problems import bits, cache, cloned, i32, on_reference, prefill, ragged, run

VARIANTS = {
    "none": None,
    "alibi": alibi(4),
    "window": sliding_window(3),
    "documents": document_mask(),
    "cap": soft_cap(1.5),
    "query": Variant(query=query * select(q_pos > 3, 2.0, per_head("x"))),
    "by head": Variant(logits=exp2(minimum(score, 3.0)) * f32(head + 1), mask=(kv_pos % 3 <= head % 3)),
}
MAKERS = {"prefill": prefill, "ragged": ragged}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("fields", [{}, {"q_dtype": "f32", "window_left": 4}, {"sinks": True, "causal": False}], ids=str)
def test_a_variant_equals_the_loop_and_keeps_the_error_bound(name, make, masked, fields):
    if "sinks" in fields and name == "by head":
        fields = fields | {"sm_scale": 0.7}
    problem = MAKERS[make]([5, 2, 0, 3, 4], [9, 2, 4, 7, 0], variant=VARIANTS[name], custom_mask=masked, **fields)
    assert_right(problem)
    descriptor, args = problem
    assert numerics.check(descriptor, args, on_reference(descriptor).sku).worst <= 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(expressions.variants(), st.booleans(), st.integers(0, 99), st.sampled_from(["f16", "bf16", "f32"]))
def test_random_variants_equal_the_loop_and_keep_the_error_bound(variant, masked, seed, dtype):
    descriptor, args = run(
        prefill(
            [3, 1, 2],
            [5, 4, 3],
            paged_kv=cache(dtype=dtype),
            causal=seed % 2 == 0,
            variant=variant,
            custom_mask=masked,
            seed=seed,
        )
    )
    report = numerics.check(descriptor, args, on_reference(descriptor).sku)
    assert report.worst <= 1, report
    o, lse = (torch.from_numpy(x) for x in naive.paged(descriptor, args))
    heads, rows = descriptor.kv_heads, (slice(0, 3), slice(3, 4), slice(4, 6))
    for (bounded, *_), own in zip(oracle.attention(descriptor, args, CONSTANTS, None, random.Random(0)), rows, strict=True):
        torch.testing.assert_close(bounded[0].want, oracle._grouped(o[own], heads), rtol=1e-9, atol=1e-9, equal_nan=True)
        want = oracle._grouped(lse[own][..., None], heads).squeeze(-1)
        torch.testing.assert_close(bounded[1].want, want, rtol=1e-9, atol=1e-9, equal_nan=True)


CONSTANTS = numerics.constants(on_reference(prefill([1], [1])[0]).sku)


def plain_of(problem, **fields):
    """The same call without a variant, on a descriptor with other fields."""
    descriptor, args = problem
    bare = replace(cloned(args), head_params=None, row_params=None, key_params=None, packed_mask=None, mask_indptr=None)
    return changed(descriptor, variant=None, custom_mask=False, **fields), bare


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("w", [0, 3, 100])
def test_a_sliding_window_variant_equals_window_left(make, w):
    problem = MAKERS[make]([5, 2, 3], [9, 2, 7], variant=sliding_window(w))
    _, built_in = run(plain_of(problem, window_left=w))
    _, args = run(problem)
    assert torch.equal(bits(args.o), bits(built_in.o))
    assert torch.equal(bits(args.lse), bits(built_in.lse))


@pytest.mark.parametrize("make", MAKERS)
def test_a_soft_cap_variant_equals_logits_soft_cap(make):
    problem = MAKERS[make]([5, 2, 3], [9, 2, 7], variant=soft_cap(0.5), sm_scale=1.0)
    descriptor, built_in = run(plain_of(problem, logits_soft_cap=0.5))
    _, args = run(problem)
    torch.testing.assert_close(args.lse, built_in.lse, rtol=0, atol=2e-6)
    assert numerics.check(descriptor, replace(built_in, o=args.o, lse=args.lse), on_reference(descriptor).sku).worst <= 1.5


def test_the_alibi_variant_equals_the_bias_of_the_paper():
    descriptor, args = prefill([3], [6], variant=alibi(4))
    args = replace(args, head_params=torch.tensor([alibi_slopes(4)]))
    run((descriptor, args))
    q, k, v = (args.q.double(), *(oracle.request_kv(descriptor, args, 0)[i].double() for i in (0, 1)))
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    distance = torch.arange(6)[None, :] - (torch.arange(3)[:, None] + 3)
    scores = scores + torch.tensor(alibi_slopes(4)).double()[:, None, None] * distance
    weights = scores.masked_fill(distance > 0, -math.inf).softmax(-1)
    torch.testing.assert_close(args.o.double(), torch.einsum("hij,jhd->ihd", weights, v), rtol=2e-3, atol=2e-3)


def test_packed_documents_attend_only_to_themselves():
    """Two documents packed into one request give the results of two separate requests."""
    descriptor, args = ragged([7], [7], variant=document_mask())
    ids = i32([5, 5, 5, -2, -2, -2, -2])
    args = replace(args, row_params=ids[None], key_params=torch.nn.functional.pad(ids, (0, 1), value=5)[None])
    run((descriptor, args))
    parts, apart = plain_of((descriptor, args), batch_size=2)
    apart = replace(apart, q_indptr=i32([0, 3, 7]), kv_indptr=i32([0, 3, 7]))
    run((parts, apart))
    torch.testing.assert_close(args.o, apart.o, rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(args.lse, apart.lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", MAKERS)
def test_mask_bits_are_row_major_with_the_lowest_bit_first(make):
    descriptor, args = MAKERS[make]([2, 3], [3, 5], causal=False, custom_mask=True)
    shown = [torch.zeros(2, 3), torch.zeros(3, 5)]
    shown[0][1, 0] = shown[1][0, 4] = shown[1][2, 1] = 1  # bits 3, 4 and 11
    packed = torch.tensor([0b00001000, 0b00010000, 0b00001000], dtype=torch.uint8)
    run((descriptor, replace(args, packed_mask=packed, mask_indptr=i32([0, 1, 3]))))
    _, v = oracle.request_kv(descriptor, args, 0)
    _, w = oracle.request_kv(descriptor, args, 1)
    empty = [0, 3]
    assert bool((args.o[empty] == 0).all())
    assert bool((args.lse[empty] == -math.inf).all())
    for row, value in ((1, v[0]), (2, w[4]), (4, w[1])):
        assert torch.equal(args.o[row], value.repeat_interleave(2, 0))


def test_unused_mask_bits_do_not_change_the_result():
    descriptor, args = run(prefill([2, 3], [3, 5], custom_mask=True))
    want, packed = args.o.clone(), args.packed_mask.clone()
    packed[0] ^= 0b11000000  # the first byte uses 2 * 3 bits; the next byte is unused
    packed[1] ^= 0xFF
    run((descriptor, replace(args, packed_mask=packed)))
    assert torch.equal(bits(args.o), bits(want))


@pytest.mark.parametrize("level", ["metadata", "full"])
@pytest.mark.parametrize(
    ("starts", "position"), [([1, 3, 6], 0), ([0, 0, 6], 1), ([0, 3, 2], 2), ([0, 3, 99], 2), ([0, -1, 5], 1)]
)
def test_a_packed_mask_with_too_few_bits_is_refused(monkeypatch, level, starts, position):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor, args = prefill([2, 3], [3, 5], custom_mask=True, paged_kv=cache(num_total_pages=25))
    with pytest.raises(IndexDataError, match=rf"mask_indptr\[{position}\]"):
        run((descriptor, replace(args, mask_indptr=i32(starts))))


@pytest.mark.parametrize("name", ["query", "by head", "documents"])
def test_a_nonfinite_key_reaches_only_the_rows_that_see_it(name):
    descriptor, args = ragged([4, 2], [6, 3], variant=VARIANTS[name], custom_mask=True, causal=False)
    run((descriptor, args))
    for tensor in (args.k, args.v):
        nonfinite = replace(cloned(args), **{"k" if tensor is args.k else "v": tensor.clone()})
        (nonfinite.k if tensor is args.k else nonfinite.v)[2, 1, 0] = math.nan
        run((descriptor, nonfinite))
        known = naive.varied(descriptor, args, 0, slice(0, 4), [(j,) for j in range(6)])
        touched = torch.tensor([[known.sees(i, 2, h) and h >= 2 for h in range(4)] for i in range(4)])
        assert torch.equal(nonfinite.o[:4].isnan().any(-1), touched)
        assert torch.equal(bits(nonfinite.o[4:]), bits(args.o[4:]))


@pytest.mark.parametrize("check", structural.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ["documents", "window", "alibi", "by head"])
def test_a_variant_passes_the_exact_checks(check, name):
    descriptor = changed(
        problems.random_descriptor("ragged_prefill", 5, tokens=300),
        variant=VARIANTS[name],
        custom_mask=True,
        logits_soft_cap=0.0,
    )
    assert check(Subject(descriptor, "reference", "cpu"), 1) == []


def test_logits_soft_cap_is_refused_with_a_logits_variant():
    descriptor, _ = prefill([2], [3])
    with pytest.raises(DescriptorError, match=r"logits_soft_cap expected 0\.0 beside variant\.logits.*Both replace the score"):
        changed(descriptor, variant=alibi(4), logits_soft_cap=3.0)
    assert changed(descriptor, variant=sliding_window(4), logits_soft_cap=3.0).masks


def test_fields_of_variants_are_serialised_only_if_they_are_set():
    plain, _ = prefill([2], [3])
    assert not {"variant", "custom_mask"} & set(plain.model_dump())
    varied = changed(plain, variant=alibi(4), custom_mask=True)
    assert load_descriptor(varied.model_dump_json()) == varied
    ids = {on_reference(d).sku.id for d in (plain, varied, changed(plain, variant=alibi(4)), changed(plain, custom_mask=True))}
    assert len(ids) == 4
    assert f"variant={alibi(4).key}" in on_reference(varied).sku.id


def test_the_error_check_detects_a_wrong_variant_or_mask():
    descriptor, args = run(prefill([5, 2], [9, 7], variant=alibi(4), custom_mask=True))
    sku = on_reference(descriptor).sku
    assert numerics.check(descriptor, args, sku).worst <= 1
    steeper = replace(cloned(args), head_params=args.head_params * (1 + 1e-2))
    run((descriptor, steeper))
    assert numerics.check(descriptor, replace(steeper, head_params=args.head_params), sku).worst > 1
    other = replace(cloned(args), packed_mask=args.packed_mask ^ 1)
    run((descriptor, other))
    assert numerics.check(descriptor, replace(other, packed_mask=args.packed_mask), sku).worst > 1


def test_operands_of_an_absent_variant_or_mask_must_be_none():
    descriptor, args = prefill([2], [3], variant=alibi(4))
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    assert [i.code for i in plan.can_implement(replace(args, packed_mask=torch.zeros(1, dtype=torch.uint8))).issues] == [
        "OPF-A001"
    ]
    [issue] = plan.can_implement(replace(args, head_params=torch.zeros(1, 5))).issues
    assert "slopes=1" in issue.expected
    assert "num_qo_heads=4" in issue.expected


def test_generated_masks_have_a_bit_for_every_query_key_pair():
    for seed in range(6):
        plain = problems.random_descriptor("paged_prefill", seed, tokens=300)
        descriptor = BatchPagedPrefillDescriptor.model_validate(
            plain.model_dump() | {"custom_mask": True, "variant": document_mask()}
        )
        args = inputs.make_args(descriptor, seed)
        on_reference(descriptor).run(args)
        assert set(args.key_params.unique().tolist()) == {0, 1, 2}


def test_each_row_uses_its_own_row_parameter():
    descriptor, args = run(ragged([2, 3], [4, 4], variant=Variant(mask=kv_pos < per_row("limit")), causal=False))
    run((descriptor, args := replace(args, row_params=i32([[0, 1, 2, 3, 4]]).view(1, 5))))
    assert (args.lse == -math.inf).all(1).tolist() == [True, False, False, False, False]
