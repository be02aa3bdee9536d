"""The backend of SGLang on fakes: numbers against a formula, a page table built on the device, refusals."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.integrations.fakes import Unread, put, sglang_experts
from tests.integrations.fakes import sglang as fake
from tests.integrations.paged_attention import expected

HEADS, KV_HEADS, DIM = 4, 2, 16
LAYERS = [
    ({"is_cross_attention": True}, "layer"),
    ({"attn_type": fake.AttentionType.ENCODER_ONLY}, "layer"),
    ({"v_head_dim": 8}, "v_head_dim"),
    ({"logit_cap": 1.0, "logit_capping_method": "log"}, "logit_capping_method"),
]
MODE = fake.ForwardMode


def fakes():
    srt, experts = "sglang__srt__", sglang_experts.modules()[1]
    choices = {"ATTENTION_BACKEND_CHOICES": ["triton"], "MOE_RUNNER_BACKEND_CHOICES": ["auto"]}
    return experts | {
        f"{srt}layers__attention__base_attn_backend": {"AttentionBackend": fake.AttentionBackend},
        f"{srt}layers__attention__attention_registry": fake.registry(),
        f"{srt}mem_cache__memory_pool": {"KVWriteLoc": fake.KVWriteLoc},
        f"{srt}layers__radix_attention": {"RadixAttention": fake.RadixAttention},
        f"{srt}arg_groups__choices": choices,
        f"{srt}layers__sampler": fake.sampler_registry(),
    }


@pytest.fixture
def sglang(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.sglang import backend

    return backend.OpfacadeAttnBackend


class Server:
    """A runner with a pool of 20 pages, and requests whose tokens are in pages of the pool in random order."""

    def __init__(self, page, kv_lens, q_lens):
        generator = torch.Generator().manual_seed(5)

        def make(*shape):
            return torch.randn(*shape, generator=generator)

        self.page, self.kv_lens, self.q_lens, width = page, kv_lens, q_lens, 24
        self.pool = fake.MHATokenToKVPool(*(torch.full((1, 30 * page, KV_HEADS, DIM), float("nan")) for _ in range(2)))
        pages = torch.randperm(30, generator=generator)
        each = -(-width // page)
        rows = [pages[b * 3 : b * 3 + 3].repeat(each)[:each] for b in range(len(kv_lens))]
        slots = [(row[:, None] * page + torch.arange(page)).flatten()[:width] for row in rows]
        if page == 1:
            slots = [pages[b * 12 : b * 12 + 12].repeat(2) for b in range(len(kv_lens))]
        self.req_to_token = torch.zeros(9, width, dtype=torch.int32)
        self.requests = torch.tensor([7, 2][: len(kv_lens)])
        self.req_to_token[self.requests] = torch.stack(slots).int()
        self.k_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.v_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.q = make(sum(q_lens), HEADS * DIM)
        for slot, k, v, q_len in zip(slots, self.k_of, self.v_of, q_lens, strict=True):
            past = slot[: len(k) - q_len]
            self.pool.k[0][past], self.pool.v[0][past] = k[: len(past)], v[: len(past)]
        self.out = torch.cat([s[n - q : n] for s, n, q in zip(slots, kv_lens, q_lens, strict=True)])
        self.new = [
            torch.cat([x[n - q :] for x, n, q in zip(xs, kv_lens, q_lens, strict=True)]) for xs in (self.k_of, self.v_of)
        ]

    def runner(self, **changed):
        config = SimpleNamespace(context_len=24, head_dim=DIM)
        given = {
            "device": "cpu", "page_size": self.page, "use_mla_backend": False, "model_config": config,
            "token_to_kv_pool": self.pool, "req_to_token_pool": SimpleNamespace(req_to_token=self.req_to_token),
            "spec_algorithm": fake.Algorithm.NONE, "model": torch.nn.ModuleList([fake.RadixAttention(), torch.nn.Linear(1, 1)]),
            "dtype": torch.bfloat16, "kv_cache_dtype": torch.bfloat16,
        }  # fmt: skip
        return SimpleNamespace(**(given | changed))

    def batch(self, mode, **changed):
        given = {
            "forward_mode": mode, "batch_size": len(self.kv_lens), "req_pool_indices": self.requests,
            "seq_lens": torch.tensor(self.kv_lens), "out_cache_loc": self.out, "seq_lens_cpu": Unread(),
            "extend_seq_lens": torch.tensor(self.q_lens, dtype=torch.int32),
        }  # fmt: skip
        return fake.ForwardBatch(**(given | changed))


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize(("mode", "q_lens"), [(MODE.DECODE, (1, 1)), (MODE.EXTEND, (5, 2)), (MODE.MIXED, (5, 1))])
def test_rows_are_stored_and_attended(sglang, page, mode, q_lens):
    server = Server(page, (9, 11), q_lens)
    backend, batch = sglang(server.runner()), server.batch(mode)
    layer, sinks = fake.layer(sliding_window_size=5, logit_cap=2.0), torch.tensor([0.5, -1.0, 2.0, 0.0])
    backend.init_forward_metadata(batch)
    forward = backend.forward_decode if mode == MODE.DECODE else backend.forward_extend
    output = forward(server.q, *server.new, layer, batch, sinks=sinks)
    rows = server.q.view(-1, HEADS, DIM)
    want = expected(rows, q_lens, server.k_of, server.v_of, window=6, cap=2.0, sinks=sinks)
    torch.testing.assert_close(output, want.flatten(1))


def heads_first(server):
    """The same tokens in pages [pages, heads, page, dim]; a page has as many tokens as heads."""
    pool, page = server.pool, server.page
    k, v = (x.unflatten(1, (-1, page)).transpose(2, 3).contiguous() for x in (pool.k, pool.v))
    server.pool = fake.MHATokenToKVPool(k, v, page)


@pytest.mark.parametrize("page", [KV_HEADS, 4])
@pytest.mark.parametrize(("mode", "q_lens"), [(MODE.DECODE, (1, 1)), (MODE.EXTEND, (5, 2))])
def test_buffers_whose_heads_come_first_are_read_as_pages(sglang, page, mode, q_lens):
    server = Server(page, (5, 6), q_lens)
    heads_first(server)
    backend, batch = sglang(server.runner()), server.batch(mode)
    backend.init_forward_metadata(batch)
    output = backend.forward_extend(server.q, *server.new, fake.layer(), batch)
    want = expected(server.q.view(-1, HEADS, DIM), q_lens, server.k_of, server.v_of)
    torch.testing.assert_close(output, want.flatten(1))


def test_factors_beside_a_cache_of_the_models_dtype_have_no_part(sglang):
    """A model with quantization=fp8 gives each layer a k_scale, even if the cache has 16 bits."""
    server = Server(4, (9, 11), (5, 2))
    factors = {"k_scale": torch.nn.Parameter(torch.tensor(0.3)), "v_scale": torch.nn.Parameter(torch.tensor(7.0))}
    backend, batch = sglang(server.runner()), server.batch(MODE.EXTEND)
    backend.init_forward_metadata(batch)
    output = backend.forward_extend(server.q, *server.new, fake.layer(**factors), batch)
    want = expected(server.q.view(-1, HEADS, DIM), (5, 2), server.k_of, server.v_of)
    torch.testing.assert_close(output, want.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_fp8_cache_stands_for_its_scaled_values_also_after_the_factors_loaded_again(sglang, dtype):
    layer = fake.layer(k_scale=torch.nn.Parameter(torch.tensor(-1.0)), v_scale=torch.nn.Parameter(torch.tensor(-1.0)))
    for k_scale, v_scale in ((0.5, 0.25), (0.25, 2.0)):
        layer.k_scale.data.fill_(k_scale), layer.v_scale.data.fill_(v_scale)
        server = Server(4, (9, 11), (9, 11))
        server.pool = fake.MHATokenToKVPool(*(torch.zeros_like(x, dtype=dtype) for x in (server.pool.k, server.pool.v)))
        backend, batch = sglang(server.runner(kv_cache_dtype=dtype)), server.batch(MODE.EXTEND)
        backend.init_forward_metadata(batch)
        with torch.no_grad():
            output = backend.forward_extend(server.q, *server.new, layer, batch)
        near = [[(x / s).to(dtype).float() * s for x in xs] for xs, s in ((server.k_of, k_scale), (server.v_of, v_scale))]
        want = expected(server.q.view(-1, HEADS, DIM), (9, 11), *near)
        torch.testing.assert_close(output, want.flatten(1), rtol=1e-3, atol=1e-3)


def test_sinks_that_load_in_place_count_and_so_do_later_ones(sglang):
    sinks = torch.nn.Parameter(torch.full((HEADS,), float("nan"), dtype=torch.bfloat16))
    server = Server(4, (9, 11), (5, 2))
    backend, batch = sglang(server.runner()), server.batch(MODE.EXTEND)
    backend.init_forward_metadata(batch)
    for values in ([0.5, -1.0, 2.0, 0.0], [3.0, 1.0, -2.0, 8.0]):
        sinks.data.copy_(torch.tensor(values))
        output = backend.forward_extend(server.q, *server.new, fake.layer(), batch, sinks=sinks)
        want = expected(server.q.view(-1, HEADS, DIM), (5, 2), server.k_of, server.v_of, sinks=torch.tensor(values))
        torch.testing.assert_close(output, want.flatten(1))


def test_a_replay_sees_new_lengths_in_the_same_buffers(sglang):
    """A graph stores addresses: the captured step writes the table again from the current runner buffers."""
    server = Server(4, (9, 11), (1, 1))
    backend, batch = sglang(server.runner()), server.batch(MODE.DECODE)
    backend.init_cuda_graph_state(8, 8)
    batch.seq_lens.fill_(backend.get_cuda_graph_seq_len_fill_value())
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    held = backend.forward_metadata
    places = [x.data_ptr() for x in (held.block_table, held.kv_lens, held.q_indptr)]
    batch.seq_lens.copy_(torch.tensor([9, 11]))
    backend.init_forward_metadata_out_graph(batch)
    backend.init_forward_metadata_in_graph(batch)
    assert [x.data_ptr() for x in (held.block_table, held.kv_lens, held.q_indptr)] == places
    assert held.kv_lens.tolist() == [9, 11]
    output = backend.forward_decode(server.q, *server.new, fake.layer(), batch)
    want = expected(server.q.view(-1, HEADS, DIM), (1, 1), server.k_of, server.v_of)
    torch.testing.assert_close(output, want.flatten(1))


def test_buffers_of_a_captured_graph_outlive_a_larger_batch(sglang):
    server = Server(4, (9, 11), (1, 1))
    backend, batch = sglang(server.runner()), server.batch(MODE.DECODE)
    backend.init_cuda_graph_state(2, 2)
    backend.init_forward_metadata(batch)
    held = backend.forward_metadata
    backend._table.reserve(64)
    assert any(held.block_table.data_ptr() == made[0].data_ptr() for made in backend._table._made)


def test_nothing_is_stored_without_save_kv_cache_and_an_idle_step_has_no_requests(sglang):
    server = Server(4, (9, 11), (1, 1))
    backend, batch = sglang(server.runner()), server.batch(MODE.DECODE)
    backend.init_forward_metadata(batch)
    before = server.pool.k.clone()
    backend.forward_decode(server.q, *server.new, fake.layer(), batch, save_kv_cache=False)
    assert torch.equal(server.pool.k.nan_to_num(7.0), before.nan_to_num(7.0))
    backend.init_forward_metadata(server.batch(MODE.IDLE))
    assert backend.forward_metadata is None
    with pytest.raises(errors.ArgumentError, match="init_forward_metadata before forward"):
        backend.forward_decode(server.q, *server.new, fake.layer(), batch)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"use_mla_backend": True}, "use_mla_backend"),
        ({"spec_algorithm": fake.Algorithm.EAGLE}, "spec_algorithm"),
        ({"token_to_kv_pool": SimpleNamespace(swa_kv_pool=1)}, "token_to_kv_pool"),
        ({"token_to_kv_pool": SimpleNamespace(kv_cache_layout="vectorized_5d")}, "kv_cache_layout"),
        ({"token_to_kv_pool": SimpleNamespace(full_kv_pool=SimpleNamespace(kv_cache_layout="page_major"))}, "kv_cache_layout"),
        ({"token_to_kv_pool": SimpleNamespace(is_quantized_kv_cache=True)}, "kv_cache_dtype"),
        ({"kv_cache_dtype": torch.uint8}, "kv_cache_dtype"),
        *(
            ({"model": torch.nn.ModuleList([fake.RadixAttention(), fake.RadixAttention(**fields)])}, name)
            for fields, name in LAYERS
        ),
    ],
)
def test_a_server_that_the_adapter_does_not_serve_is_refused_at_start(sglang, changed, name):
    with pytest.raises(errors.UnsupportedError, match=rf"sglang\.attention: {name} expected") as raised:
        sglang(Server(4, (9,), (1,)).runner(**changed))
    assert raised.value.code == "OPF-I001"


def test_a_head_that_no_kernel_takes_is_refused_where_a_gpu_serves(sglang):
    config = SimpleNamespace(context_len=24, head_dim=2048)
    with pytest.raises(errors.UnsupportedError, match="model_config expected what a kernel takes, got paged_decode"):
        sglang(Server(4, (9,), (1,)).runner(device="cuda", model_config=config))


def test_speculative_steps_are_refused(sglang):
    server = Server(4, (9, 11), (1, 1))
    with pytest.raises(errors.UnsupportedError, match="forward_mode expected DECODE, EXTEND, MIXED or IDLE"):
        sglang(server.runner()).init_forward_metadata(server.batch(MODE.TARGET_VERIFY))


@pytest.mark.parametrize(
    ("fields", "kwargs", "name"),
    [*((fields, {}, name) for fields, name in LAYERS), ({}, {"q_rope": torch.ones(1)}, "q_rope")],
)
def test_a_layer_that_no_plan_takes_is_refused_by_name(sglang, fields, kwargs, name):
    server = Server(4, (9, 11), (1, 1))
    backend, batch = sglang(server.runner()), server.batch(MODE.DECODE)
    backend.init_forward_metadata(batch)
    before = server.pool.k.clone()
    with pytest.raises(errors.UnsupportedError, match=rf"sglang\.attention: {name} expected"):
        backend.forward_decode(server.q, *server.new, fake.layer(**fields), batch, **kwargs)
    assert torch.equal(server.pool.k.nan_to_num(7.0), before.nan_to_num(7.0))


def test_the_plug_in_enters_a_factory(sglang):
    import sys

    from opfacade.integrations import sglang as plug_in

    plug_in.register()
    plug_in.register()
    assert sys.modules["sglang.srt.arg_groups.choices"].ATTENTION_BACKEND_CHOICES == ["triton", "opfacade"]
    make = sys.modules["sglang.srt.layers.attention.attention_registry"].entered["opfacade"]
    assert type(make(Server(4, (9,), (1,)).runner())) is sglang
    assert not sglang.needs_cpu_seq_lens
