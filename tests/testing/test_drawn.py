"""Random problems take every value of every field, and random arguments have every form that kernels must support."""

import pytest
import torch

from opfacade.core.descriptor import operands_of
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from opfacade.testing.families.attention import oracle
from opfacade.testing.problems import OPS, random_descriptor, special_descriptor

SEEDS = range(400)


def values(model):
    """Every field by name, including fields of nested models."""
    found = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        found |= values(value) if hasattr(type(value), "model_fields") and name != "variant" else {name: value}
    return found


def taken(make, op):
    """The values that each field takes over many seeds."""
    found = {}
    for seed in SEEDS:
        for name, value in values(make(op, seed)).items():
            found.setdefault(name, set()).add(value if isinstance(value, (str, int, float, bool)) else type(value))
    return found


LAYOUTS, TABLES, SPLITS = {"HND", "NHD"}, {"csr", "block"}, {"auto", "off", 32, 64, 100, 256, 1000}
PLAIN = {
    "paged_prefill": {"layout": LAYOUTS, "page_table": TABLES, "causal": {True, False}, "dtype": {"f16", "bf16"}},
    "paged_decode": {"layout": LAYOUTS, "page_table": TABLES, "dtype": {"f16", "bf16", "f32"}},
    "ragged_prefill": {"causal": {True, False}, "dtype": {"f16", "bf16"}, "total_kv_rows": {0, 1, 100, 640, 2000}},
    "mla_decode": {"page_table": TABLES, "dtype": {"f16", "bf16"}, "num_qo_heads": {16, 32, 64, 96, 128}},
    "paged_kv_append": {"layout": LAYOUTS, "page_table": TABLES, "dtype": {"f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"}},
    "merge_states": {"dtype": {"f16", "bf16", "f32"}, "in_place": {True, False}, "states": {"stacked", "list", "ragged"}},
    "pack_mask": {"segments": {"indptr", "even"}, "bit_order": {"little", "big"}},
}  # fmt: skip
SPECIAL = {
    "paged_prefill": {"sinks": {True, False}, "custom_mask": {True, False}, "kv_scale": {"none", "tensor", "head"}},
    "paged_decode": {"sinks": {True, False}, "kv_scale": {"none", "tensor", "head"}},
    "ragged_prefill": {"sinks": {True, False}, "custom_mask": {True, False}},
    "mla_decode": {
        "sinks": {True, False}, "window_left": {-1, 0, 40}, "logits_soft_cap": {0.0, 30.0},
        "q_len": {1, 2, 4, 9}, "causal": {True, False},
    },
    "paged_kv_append": {"rope": {"none", "half", "interleaved"}, "rope_dtype": {"f32", "f16", "bf16"}},
}  # fmt: skip


@pytest.mark.parametrize("op", OPS)
def test_random_problems_take_every_value(op):
    found = taken(random_descriptor, op)
    for name, wanted in PLAIN.get(op, {}).items():
        assert found[name] == wanted, name
    if "kv_split" in found:
        assert {"auto", "off"} < found["kv_split"] <= SPLITS
        assert found["return_lse"] == {True, False}
    if op in ("paged_prefill", "paged_decode", "ragged_prefill"):
        assert {-1, 0, 17} < found["window_left"]
        assert found["logits_soft_cap"] == {0.0, 30.0}
        groups = {d.num_qo_heads // d.kv_heads for d in (random_descriptor(op, seed) for seed in SEEDS)}
        assert groups == {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20}
    assert len({random_descriptor(op, seed) for seed in range(50)}) > 40


@pytest.mark.parametrize("op", SPECIAL)
def test_special_problems_take_every_value(op):
    found = taken(special_descriptor, op)
    for name, wanted in SPECIAL[op].items():
        assert found[name] == wanted, name
    if op in ("paged_prefill", "ragged_prefill"):
        assert len({repr(special_descriptor(op, seed).variant) for seed in SEEDS}) > 5


CACHE = PagedKvCacheDescriptor(num_total_pages=60, page_size=4, num_kv_heads=2, head_dim=64, dtype="f16", layout="HND")
DECODE = BatchPagedDecodeDescriptor(batch_size=6, num_qo_heads=4, paged_kv=CACHE)


def calls():
    return [inputs.make_args(DECODE, seed) for seed in range(40)]


def test_pages_lie_in_any_order():
    for args in calls():
        used = args.kv_indices[: int(args.kv_indptr[-1])].tolist()
        assert len(set(used)) == len(used) > 10
        assert used != sorted(used)


def test_requests_are_empty_and_last_pages_full_now_and_then():
    found = [inputs.make_args(DECODE, seed) for seed in range(300)]
    counts = torch.stack([args.kv_indptr.diff() for args in found])
    last = torch.stack([args.last_page_len for args in found])[counts > 0]
    assert 0.11 < float((counts == 0).double().mean()) < 0.3
    assert set(last.tolist()) == {1, 2, 3, 4}
    assert 0.3 < float((last == 4).double().mean()) < 0.9


def test_memory_that_does_not_count_is_nan():
    for args in calls()[:8]:
        assert bool(args.o.isnan().all())
        assert bool(args.lse.isnan().all())
        for pool in (args.k_data, args.v_data):
            rest = oracle.by_token(pool, DECODE).clone()
            for request in range(DECODE.batch_size):
                at = oracle.token_places(DECODE, args, request)
                assert bool(rest[at].isfinite().all())
                rest[at] = float("nan")
            assert bool(rest.isnan().all())
            assert bool(pool.isfinite().any())


def test_interleaved_pools_lie_in_one_tensor_with_strides_of_their_own():
    apart, woven = (inputs.make_args(DECODE, 1, interleaved=flag) for flag in (False, True))
    assert apart.k_data.is_contiguous()
    assert apart.v_data.is_contiguous()
    assert not woven.k_data.is_contiguous()
    assert woven.k_data.untyped_storage().data_ptr() == woven.v_data.untyped_storage().data_ptr()
    for name, spec in operands_of(DECODE).items():
        assert spec.strides is not None
        assert torch.equal(getattr(apart, name).nan_to_num(7.0), getattr(woven, name).nan_to_num(7.0)), name


def test_a_call_follows_from_its_seed():
    one, same, other = (inputs.make_args(DECODE, seed) for seed in (5, 5, 6))
    assert all(torch.equal(getattr(one, n).nan_to_num(7.0), getattr(same, n).nan_to_num(7.0)) for n in operands_of(DECODE))
    assert not torch.equal(one.q, other.q)
