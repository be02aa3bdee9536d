"""fp8 caches and queries with factors: the numbers that they represent, refusals, and the detection of a wrong factor."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import DescriptorError
from opfacade.select.selection import survey
from opfacade.testing import inputs, numerics, problems
from tests.support import naive_attention as naive
from tests.support.problems import cache, cloned, decode, on_reference, prefill, ragged, run

FORMS = [("f8_e4m3", "tensor"), ("f8_e4m3", "head"), ("f8_e5m2", "head"), ("f8_e5m2", "none")]


def fp8(dtype="f8_e4m3", **fields):
    return cache(dtype=dtype, **fields)


@pytest.mark.parametrize("make", [lambda **f: decode([9, 0, 3], **f), lambda **f: prefill([3, 2], [7, 2], **f)])
@pytest.mark.parametrize(("dtype", "kv_scale"), FORMS)
@pytest.mark.parametrize("q_dtype", ["f16", "bf16", "f32"])
def test_stored_numbers_are_multiplied_by_their_factor(make, dtype, kv_scale, q_dtype):
    descriptor, args = run(make(paged_kv=fp8(dtype), q_dtype=q_dtype, kv_scale=kv_scale))
    o, lse = naive.paged(descriptor, args)
    arithmetic = 1e-14 if q_dtype == "f32" else 4e-6
    naive.assert_rounded(args.o, o, magnitude=8.0, arithmetic=arithmetic)
    naive.assert_rounded(args.lse, lse, magnitude=8.0, arithmetic=arithmetic)


@pytest.mark.parametrize("o_dtype", [None, "f16", "f32"])
@pytest.mark.parametrize("q_scale", ["none", "tensor", "head"])
@pytest.mark.parametrize("dtype", ["f8_e4m3", "f8_e5m2"])
def test_an_fp8_query_is_multiplied_by_its_factor(dtype, q_scale, o_dtype):
    fields = {"q_dtype": dtype, "q_scale": q_scale, "o_dtype": o_dtype}
    for (descriptor, args), want in (
        (prefill([3, 2], [7, 2], paged_kv=fp8(dtype), kv_scale="head", **fields), naive.paged),
        (ragged([3, 2], [7, 2], dtype=dtype, **fields), naive.ragged),
    ):
        assert str(args.o.dtype) == {None: "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32"}[o_dtype]
        run((descriptor, args))
        o, lse = want(descriptor, args)
        naive.assert_rounded(args.o, o, magnitude=8.0, arithmetic=4e-6)
        naive.assert_rounded(args.lse, lse, magnitude=8.0, arithmetic=4e-6)


def test_q_scale_is_refused_unless_q_is_fp8():
    with pytest.raises(
        DescriptorError, match=r"q_scale expected 'none' for a q of bf16, got 'tensor'. A q of f8_e4m3 or f8_e5m2"
    ):
        prefill([2], [9], paged_kv=fp8(), q_dtype="bf16", q_scale="tensor")


def test_fields_of_an_fp8_query_are_not_serialised_for_another_query():
    plain, _ = prefill([2], [9], paged_kv=fp8(), q_dtype="bf16")
    full, _ = prefill([2], [9], paged_kv=fp8(), q_dtype="f8_e4m3", q_scale="tensor", o_dtype="f16")
    assert not {"q_scale", "o_dtype"} & set(plain.model_dump())
    assert type(full).model_validate_json(full.model_dump_json()) == full
    sku = on_reference(full).sku
    assert sku.dtypes == (("kv", "f8_e4m3"), ("o", "f16"), ("q", "f8_e4m3"))
    assert ("q_scale", "tensor") in sku.spec


def test_kernels_decline_an_o_dtype_of_f32_and_the_reference_computes_it():
    descriptor, args = decode([9], o_dtype="f32")
    options = survey(descriptor, Preference(), Target.parse("sm_90a"))
    reasons = [r for o in options if o.candidate.backend == "cuda" for r in o.reasons if r.field == "o_dtype"]
    assert {(r.code, r.got, r.allowed) for r in reasons} == {("OPF-S002", "f32", "f16")}
    run((descriptor, args))
    naive.assert_rounded(args.o, naive.paged(descriptor, args)[0], magnitude=8.0, arithmetic=4e-6)


def test_the_soft_cap_applies_to_scores_after_the_factors():
    descriptor, args = run(decode([9], paged_kv=fp8(), q_dtype="f32", kv_scale="head", logits_soft_cap=0.5))
    o, _ = naive.paged(descriptor, args)
    naive.assert_rounded(args.o, o, magnitude=8.0)


def test_each_kv_head_has_its_own_factor():
    descriptor, args = decode([9], paged_kv=fp8(), q_dtype="bf16", kv_scale="head")
    other = replace(cloned(args), v_scale=args.v_scale * torch.tensor([1.0, 2.0]))
    run((descriptor, args)), run((descriptor, other))
    assert torch.equal(other.o[:, :2], args.o[:, :2])
    assert torch.equal(other.o[:, 2:], args.o[:, 2:] * 2)


def test_factors_of_one_do_not_change_the_bits():
    descriptor, args = decode([9, 4], paged_kv=fp8(), q_dtype="bf16", kv_scale="tensor")
    plain, bare = decode([9, 4], paged_kv=fp8(), q_dtype="bf16")
    run((descriptor, replace(args, k_scale=torch.ones(1), v_scale=torch.ones(1)))), run((plain, bare))
    assert torch.equal(args.o, bare.o)
    assert torch.equal(args.lse, bare.lse)


def test_kv_scale_is_refused_unless_the_cache_is_fp8():
    with pytest.raises(
        DescriptorError, match=r"kv_scale expected 'none' for a cache of f16, got 'head'. A cache of f8_e4m3 or f8_e5m2"
    ):
        decode([9], kv_scale="head")
    with pytest.raises(DescriptorError, match=r"kv_scale.*'none', 'tensor' or 'head'"):
        decode([9], paged_kv=fp8(), kv_scale="channel")


@pytest.mark.parametrize(
    ("kv_scale", "change", "code"),
    [
        ("head", {"k_scale": torch.ones(1)}, "OPF-A011"),
        ("tensor", {"v_scale": torch.ones(2)}, "OPF-A011"),
        ("head", {"v_scale": None}, "OPF-A002"),
        ("head", {"k_scale": torch.ones(2, dtype=torch.float16)}, "OPF-A010"),
        ("head", {"k_scale": torch.ones(4)[::2]}, "OPF-A020"),
        ("none", {"k_scale": torch.ones(1)}, "OPF-A001"),
    ],
)
def test_a_wrong_factor_is_refused(kv_scale, change, code):
    descriptor, args = decode([9], paged_kv=fp8(), q_dtype="bf16", kv_scale=kv_scale)
    [issue] = on_reference(descriptor).can_implement(replace(args, **change)).issues
    assert (issue.code, issue.argument) == (code, next(iter(change)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0, -1.0])
def test_level_full_refuses_a_factor_that_is_not_positive_and_finite(monkeypatch, value):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor, args = decode([9], paged_kv=fp8(num_total_pages=25), q_dtype="bf16", kv_scale="head")
    args.v_scale[1] = value
    with pytest.raises(ValueError, match=r"v_scale\[1\] expected positive finite values"):
        run((descriptor, args))


def test_kv_scale_is_in_the_sku_and_the_json_only_if_it_is_not_none():
    skus = {}
    for kv_scale in ("none", "tensor", "head"):
        descriptor, _ = decode([9], paged_kv=fp8(), q_dtype="bf16", kv_scale=kv_scale)
        skus[kv_scale] = on_reference(descriptor).sku
        assert ("kv_scale" in descriptor.model_dump_json()) == (kv_scale != "none")
    assert len({sku.id for sku in skus.values()}) == 3
    assert skus["none"].spec == (("lse_base", "e"),)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
@pytest.mark.parametrize("make", [decode, lambda lens, **f: prefill(lens, lens, **f)])
def test_kernels_with_factors_decline_an_architecture_without_fp8(make, arch):
    descriptor, _ = make([9], paged_kv=fp8(head_dim=64), q_dtype="bf16", kv_scale="head")
    options = {
        o.candidate.impl: o for o in survey(descriptor, Preference(), Target.parse(arch)) if o.candidate.backend == "cuda"
    }
    reasons = options["split_kv" if "split_kv" in options else "mma_tile"].reasons
    assert [(r.code, r.allowed) for r in reasons] == ([("OPF-S001", "sm_89 and later for f8_e4m3")] if arch == "sm_80" else [])


def test_the_error_check_detects_a_wrong_factor_of_q():
    descriptor, _ = prefill([3, 9], [70, 90], paged_kv=fp8(num_total_pages=64), q_dtype="f8_e4m3", q_scale="tensor")
    args = inputs.make_args(descriptor, seed=1)
    plan = run((descriptor, args)) and on_reference(descriptor)
    assert numerics.check(descriptor, args, plan.sku).worst <= 1
    assert numerics.check(descriptor, replace(args, q_scale=args.q_scale * 1.2), plan.sku).worst > 1


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_the_error_check_detects_a_factor_that_is_wrong_by_one_percent(name):
    descriptor = next(
        d for d in (problems.special_descriptor("paged_decode", s, 400) for s in range(99)) if d.kv_scale == "head"
    )
    args = inputs.make_args(descriptor, seed=1)
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=6).worst <= 1
    wrong = replace(args, **{name: getattr(args, name) * 1.01})
    assert numerics.check(descriptor, wrong, plan.sku, rows=6).worst > 1
