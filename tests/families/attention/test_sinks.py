"""Attention sinks: a logit without a value that every row adds to its denominator and its lse, and that a merge of states
counts once."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.testing import inputs, numerics, problems
from tests.support import naive_attention as naive
from tests.support.problems import bits, cache, cloned, decode, on_reference, prefill, ragged, run

MAKERS = [
    lambda **f: decode([9, 0, 3, 17], **f),
    lambda **f: prefill([5, 2, 3], [2, 0, 7], **f),
    lambda **f: ragged([5, 2], [2, 9], **f),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "fields", [{}, {"window_left": 1}, {"logits_soft_cap": 0.7, "sm_scale": 2.0}, {"q_dtype": "f32"}], ids=str
)
def test_a_sink_is_added_to_the_denominator_of_every_row(make, fields):
    descriptor, args = run(make(sinks=True, **fields))
    o, lse = naive.ragged(descriptor, args) if hasattr(args, "k") else naive.paged(descriptor, args)
    arithmetic = 1e-14 if args.q.dtype == torch.float32 else 4e-6
    naive.assert_rounded(args.o, o, magnitude=4.0, arithmetic=arithmetic)
    naive.assert_rounded(args.lse, lse, magnitude=8.0, arithmetic=arithmetic)


def test_a_row_without_visible_keys_has_the_sink_as_its_lse():
    _, args = run(prefill([5, 2, 3], [2, 0, 3], sinks=True))
    for rows in (slice(0, 3), slice(5, 7)):
        assert (args.o[rows] == 0).all()
        assert torch.equal(args.lse[rows], args.sinks.expand_as(args.lse[rows]))


def test_a_finite_sink_scales_down_the_output_of_its_head():
    descriptor, args = decode([9], sinks=True, heads=2, paged_kv=cache(num_kv_heads=1))
    args.sinks[:] = torch.tensor([-torch.inf, 1.0])
    plain, bare = decode([9], heads=2, paged_kv=cache(num_kv_heads=1))
    run((descriptor, args)), run((plain, bare))
    assert torch.equal(bits(args.o[:, 0]), bits(bare.o[:, 0]))
    kept = (bare.lse[0, 1] - args.lse[0, 1]).exp()
    assert 0.5 < kept < 0.99
    torch.testing.assert_close(args.o[0, 1].float(), bare.o[0, 1].float() * kept, rtol=2e-3, atol=1e-5)


def test_sinks_of_minus_infinity_do_not_change_the_bits():
    descriptor, args = prefill([3, 2], [7, 2], sinks=True)
    plain, bare = prefill([3, 2], [7, 2])
    args.sinks.fill_(-torch.inf)
    run((descriptor, args)), run((plain, bare))
    assert torch.equal(bits(args.o), bits(bare.o))
    assert torch.equal(bits(args.lse), bits(bare.lse))


def merged(states):
    """The reference's merge of the states (o, lse)."""
    o, lse = (torch.stack(parts) for parts in zip(*states, strict=True))
    count, rows, heads, dim = o.shape
    descriptor = MergeStatesDescriptor(num_states=count, total_num_rows=rows, num_heads=heads, head_dim=dim, dtype="f32")
    out = MergeStatesArgs(states_o=o, states_lse=lse, o=torch.empty_like(o[0]), lse=torch.empty_like(lse[0]))
    run((descriptor, out))
    return out.o, out.lse


def part(args, rows, sinks):
    """(o, lse) over a range of the keys of one ragged request."""
    some = replace(args, k=args.k[rows], v=args.v[rows], kv_indptr=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32))
    descriptor, made = ragged([3], [rows.stop - rows.start - 1], causal=False, dtype="f32", sinks=True)
    call = replace(made, q=args.q, k=some.k, v=some.v, kv_indptr=some.kv_indptr, sinks=sinks)
    run((descriptor, call))
    return call.o, call.lse


@pytest.mark.parametrize("carrier", [0, 1, 2])
def test_a_merge_is_exact_if_exactly_one_state_includes_the_sink(carrier):
    """lse includes the sink, and therefore the merge weight of a state does. Any state may include it, even one with a single
    key."""
    descriptor, args = ragged([3], [19], causal=False, dtype="f32", sinks=True, seed=3)
    args = replace(args, kv_indptr=torch.tensor([0, 20], dtype=torch.int32), k=args.k.nan_to_num(0.0), v=args.v.nan_to_num(0.0))
    run((descriptor, args))
    none = torch.full_like(args.sinks, -torch.inf)
    cuts = (slice(0, 11), slice(11, 12), slice(12, 20))
    o, lse = merged([part(args, rows, args.sinks if i == carrier else none) for i, rows in enumerate(cuts)])
    torch.testing.assert_close(o, args.o, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, args.lse, rtol=1e-6, atol=1e-6)
    twice, _ = merged([part(args, rows, args.sinks) for rows in cuts])
    assert (twice - args.o)[:, 1:].abs().max() > 1e-2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sinks": torch.zeros(2)}, "OPF-A011"),
        ({"sinks": None}, "OPF-A002"),
        ({"sinks": torch.zeros(4, dtype=torch.bfloat16)}, "OPF-A010"),
    ],
)
def test_a_sink_tensor_of_a_wrong_shape_or_dtype_is_refused(change, code):
    descriptor, args = decode([9], sinks=True)
    [issue] = on_reference(descriptor).can_implement(replace(args, **change)).issues
    assert (issue.code, issue.argument) == (code, "sinks")


@pytest.mark.parametrize(("value", "wrong"), [(-torch.inf, False), (torch.inf, True), (torch.nan, True)])
def test_validation_level_full_checks_the_values_of_sinks(monkeypatch, value, wrong):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor, args = decode([9], sinks=True, paged_kv=cache(num_total_pages=26))
    args.sinks[1] = value
    if wrong:
        with pytest.raises(ValueError, match=r"sinks\[1\]"):
            run((descriptor, args))
    else:
        run((descriptor, args))


KERNEL_SIZES = [
    lambda **f: decode([9], paged_kv=cache(head_dim=64), **f),
    lambda **f: prefill([5, 2], [9, 7], paged_kv=cache(head_dim=64), **f),
    lambda **f: ragged([5, 2], [2, 9], dim=64, **f),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("make", KERNEL_SIZES)
def test_sinks_are_a_fact_of_the_sku_and_kernels_accept_them(make, arch):
    (plain, _), (sunk, _) = make(), make(sinks=True)
    ids = [Plan.select(d, Preference(backend="cuda"), Target.parse(arch)).sku.id for d in (plain, sunk)]
    assert ["sinks=true" in name for name in ids] == [False, True]
    assert "sinks" not in plain.model_dump_json()


def test_the_error_check_detects_a_missing_sink_in_o_or_in_lse():
    descriptor = next(d for d in (problems.special_descriptor("ragged_prefill", s, 400) for s in range(99)) if d.total_kv_rows)
    args = inputs.make_args(descriptor, seed=1)
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=6).worst <= 1
    without = replace(cloned(args), sinks=torch.full_like(args.sinks, -torch.inf))
    plan.run(without)
    assert numerics.check(descriptor, replace(without, sinks=args.sinks), plan.sku, rows=6).worst > 1
    if args.lse is not None:
        assert numerics.check(descriptor, replace(args, lse=without.lse), plan.sku, rows=6).worst > 1
