"""The backend of SGLang on fakes: numbers against a formula, a page table made on the device, what is refused."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.integrations.fakes import Unread, put
from tests.integrations.fakes import sglang as fake
from tests.integrations.paged_attention import expected

HEADS, KV_HEADS, DIM = 4, 2, 16
MODE = fake.ForwardMode


def fakes():
    srt = "sglang__srt__"
    return {
        f"{srt}layers__attention__base_attn_backend": {"AttentionBackend": fake.AttentionBackend},
        f"{srt}layers__attention__attention_registry": fake.registry(),
        f"{srt}mem_cache__memory_pool": {"KVWriteLoc": fake.KVWriteLoc},
        f"{srt}arg_groups__choices": {"ATTENTION_BACKEND_CHOICES": ["triton"]},
        f"{srt}layers__sampler": fake.sampler_registry(),
    }


@pytest.fixture
def sglang(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.sglang import backend

    return backend.OpfacadeAttnBackend


class Server:
    """A runner with a pool of 20 pages, and requests whose tokens lie in pages of the pool in no order."""

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


def test_a_replay_sees_new_lengths_in_the_same_buffers(sglang):
    """What a graph holds are addresses: the step inside it writes the table anew from what the runner's buffers say then."""
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
        ({"token_to_kv_pool": SimpleNamespace(swa_kv_pool=1)}, "token_to_kv_pool"),
    ],
)
def test_a_model_that_the_adapter_does_not_serve_is_refused(sglang, changed, name):
    with pytest.raises(errors.UnsupportedError, match=rf"sglang\.attention: {name} expected"):
        sglang(Server(4, (9,), (1,)).runner(**changed))


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
    [
        ({"is_cross_attention": True}, {}, "layer"),
        ({"attn_type": fake.AttentionType.ENCODER_ONLY}, {}, "layer"),
        ({"v_head_dim": 8}, {}, "v_head_dim"),
        ({"logit_cap": 1.0, "logit_capping_method": "log"}, {}, "logit_capping_method"),
        ({"k_scale": torch.ones(1)}, {}, "k_scale"),
        ({}, {"q_rope": torch.ones(1)}, "q_rope"),
    ],
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
