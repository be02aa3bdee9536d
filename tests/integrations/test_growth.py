"""A sequence that grows needs no other kernel: the SKUs of every adapter over lengths 1 to 4,100."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from opfacade.integrations.transformers import expert_op, layer_ops
from opfacade.integrations.transformers.cache_pages import LayerPages
from opfacade.integrations.transformers.packed_rows import Rows, attend_rows
from opfacade.integrations.transformers.paged import Step, _Paged
from opfacade.integrations.transformers.problem import scores
from opfacade.integrations.transformers.standard import attention
from opfacade.plans._attention import growth
from tests.integrations.test_sglang import fakes as fakes_of_sglang
from tests.integrations.vllm_step import fakes as fakes_of_vllm
from tests.support.growing import LONGEST, POWERS, asking

NO_SCORES = scores(None, None, None, None)


@pytest.fixture
def asked():
    with asking() as found:
        yield found


NOTHING = torch.zeros(1, dtype=torch.bfloat16)


def rows(batch, length, heads, dim=64):
    """Nothing is computed, so all elements share memory."""
    return NOTHING.expand(batch, heads, length, dim)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_dense_cache_that_grows_has_one_kernel(asked, batch, masked):
    module, every = SimpleNamespace(layer_idx=None, is_causal=True), range(1, LONGEST + 1)
    for length in every if batch == 1 and not masked else [*POWERS, *every[::9]]:
        keys = rows(batch, length, 2)
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(batch, 1, 1, length) if masked else None
        with patch("opfacade.integrations.transformers.dense_call.packed_mask", return_value={"packed_mask": None}):
            attention(module, rows(batch, 1, 8), keys, keys, mask)
    assert {op: len(ids) for op, ids in asked.items()} == {"paged_prefill" if masked else "paged_decode": 1}


@pytest.mark.parametrize("dim_vo", [64, 128])
@pytest.mark.parametrize("q_len", [1, 5, 300])
def test_rows_at_the_end_of_a_cache_that_grows_have_one_kernel(asked, q_len, dim_vo):
    dim = 64 if dim_vo == 64 else 192
    for length in sorted({max(n, q_len + 1) for n in [*POWERS, *range(400, 700, 13), 4100]}):
        k, v = rows(1, length, 2, dim), rows(1, length, 2, dim_vo)
        q, module = rows(1, q_len, 8, dim), SimpleNamespace(layer_idx=None, is_causal=True)
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, q_len, length)
        with patch("opfacade.integrations.transformers.dense_call.packed_mask", return_value={"packed_mask": None}):
            attention(module, q, k, v, None if q_len == 1 else seen)
    assert [len(ids) for ids in asked.values()] == [1]


def test_prompts_of_any_length_have_a_kernel_for_few_rows_and_one_for_many(asked):
    module = SimpleNamespace(layer_idx=None, is_causal=True)
    for length in [*POWERS, *range(1, LONGEST, 41)]:
        q, k = rows(1, length, 8), rows(1, length, 2)
        attention(module, q, k, k, None)
    assert {op: len(ids) for op, ids in asked.items()} == {"paged_decode": 1, "paged_prefill": 2}


def test_pages_of_continuous_batching_have_one_kernel_of_each_op(asked):
    pool = torch.zeros(64, 16, 2, 64, dtype=torch.bfloat16)
    pages = LayerPages(0, pool, pool, 16)
    for length in range(1, LONGEST + 1, 5):
        for q_lens in ((1, 1, 1), (7, 1, 1)):
            total, width = sum(q_lens), -(-length // 16)
            new = Rows(*(torch.zeros(total, heads, 64, dtype=torch.bfloat16) for heads in (8, 2, 2)))
            table = torch.zeros(3, width, dtype=torch.int32), torch.full((3,), length, dtype=torch.int32)
            step = Step(torch.zeros(4, dtype=torch.int32), None, max(q_lens), length, [], [])
            problem = _Paged(new, pages, table, step)
            problem.append()
            problem.attend(NO_SCORES)
    assert {op: len(ids) for op, ids in asked.items()} == {"paged_kv_append": 1, "paged_decode": 1, "paged_prefill": 1}


@pytest.mark.parametrize("q_lens", [(1, 1), (9, 1)])
def test_keys_that_continuous_batching_gathered_have_one_kernel(asked, q_lens):
    indptr = torch.zeros(len(q_lens) + 1, dtype=torch.int32)
    for length in range(max(q_lens) + 1, LONGEST + 1, 5):
        q, *kv = (rows(1, n, heads)[0].transpose(0, 1) for n, heads in ((sum(q_lens), 8), (2 * length, 2), (2 * length, 2)))
        attend_rows(Rows(q, *kv), (indptr, indptr), NO_SCORES, (max(q_lens), length))
    assert {op: len(ids) for op, ids in asked.items()} == {"ragged_prefill": 1}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("decodes", [True, False])
def test_engines_give_the_length_that_no_request_exceeds(asked, monkeypatch, page_size, decodes):
    """vLLM and SGLang share this layer; their steps bound it by the longest context of the model."""
    from tests.integrations.fakes import put

    put(monkeypatch, **fakes_of_vllm(), **fakes_of_sglang())
    from opfacade.integrations.paged_layer import Layer, Pool, Requests
    from opfacade.integrations.vllm.metadata import OpfacadeMetadataBuilder

    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=LONGEST), cache_config=SimpleNamespace(cache_dtype="auto")
    )
    builder = OpfacadeMetadataBuilder("spec", ["layer"], config, torch.device("cpu"))
    pool = torch.zeros(64, page_size, 2, 64, dtype=torch.bfloat16)
    q, table = torch.zeros(3, 8, 64, dtype=torch.bfloat16), torch.zeros(3, LONGEST, dtype=torch.int32)
    for length in range(1, LONGEST + 1, 5):
        starts, lens = torch.arange(4, dtype=torch.int32), torch.full((3,), length, dtype=torch.int32)
        step = SimpleNamespace(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lens, num_reqs=3, num_actual_tokens=3,
            max_query_len=1 if decodes else 2, max_seq_len=length, block_table_tensor=table, causal=True,
            slot_mapping=torch.zeros(3, dtype=torch.int64),
        )  # fmt: skip
        requests = builder.build(0, step).requests
        assert isinstance(requests, Requests)
        Layer(8, 0.125).attend(Pool("vllm", pool, pool, "NHD"), requests, q, q)
    assert [len(ids) for ids in asked.values()] == [1]


LAYERS = {
    "norm": lambda n: layer_ops.norm(x(n, 256), x(256), 1e-6, "llama"),
    "product": lambda n: layer_ops.product(x(n, 256), x(n, 256), "silu"),
    "gated": lambda n: layer_ops.gated(x(n, 256), "silu", None, None),
    "rotary": lambda n: layer_ops.rotary(x(1, 8, n, 64), x(1, 2, n, 64), x(1, n, 64), x(1, n, 64), 0),
}


def x(*shape):
    return torch.zeros(1, dtype=torch.bfloat16).expand(shape)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_use_ops_have_one_kernel_for_every_number_of_rows(asked, name):
    for rows in [*POWERS, *range(1, LONGEST + 1, 37)]:
        LAYERS[name](rows)
    assert [len(ids) for ids in asked.values()] == [1]


def test_experts_and_products_have_as_many_kernels_as_tiles_and_none_for_a_single_length(asked):
    for rows in range(1, LONGEST + 1, 23):
        layer_ops.linear(x(rows, 256), torch.zeros(512, 256, dtype=torch.bfloat16), None, "{}")
        ids, weights = torch.zeros(rows, 2, dtype=torch.int32), torch.zeros(rows, 2)
        expert_op.experts(x(rows, 256), ids, weights, x(8, 512, 256), None, x(8, 256, 256), None, "halves", None, None, False)
    first = {op: len(ids) for op, ids in asked.items()}
    assert max(first.values()) <= 12
    for rows in POWERS:
        layer_ops.linear(x(rows, 256), torch.zeros(512, 256, dtype=torch.bfloat16), None, "{}")
    assert {op: len(ids) for op, ids in asked.items()} == first


def test_the_bound_holds_for_a_long_time_and_never_lies_below_the_length():
    for kv_len in (0, 1, 8191, 8192, 8193, 32768, 32769, 2**31 - 1):
        assert kv_len <= growth.longest(kv_len) <= 2**31 - 1
        for batch, page in ((1, 1), (7, 16), (2**20, max(kv_len, 1))):
            found = growth.bounds_of(batch, kv_len, page)
            assert found["max_kv_indices"] * page <= 2**31 - 1
    assert {growth.longest(n) for n in range(1, 8193)} == {8192}


@pytest.mark.parametrize("length", [63, 64, 65])
def test_a_cache_takes_the_same_kernel_at_a_power_of_two_and_has_the_numbers_of_the_formula(length):
    from tests.integrations.test_transformers_call import formula, tensors

    q, k, v = tensors(q_len=1, kv_len=length)
    o, _ = attention(SimpleNamespace(layer_idx=0, is_causal=True), q, k, v, None)
    torch.testing.assert_close(o, formula(q, k, v, torch.ones(1, length, dtype=torch.bool)))
