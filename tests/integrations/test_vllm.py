"""The backend of vLLM on fakes: numbers against a formula, captured shapes, what is answered by explain, what is refused."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.integrations.fakes import Unread, put
from tests.integrations.fakes import vllm as fake
from tests.integrations.paged_attention import expected, i32

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4


def fakes():
    return {"vllm__v1__attention__backend": fake.BACKEND, "vllm__v1__attention__backends__registry": fake.registry()}


@pytest.fixture
def vllm(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.vllm import backend, impl, metadata

    return SimpleNamespace(backend=backend.OpfacadeBackend, impl=impl.OpfacadeImpl, builder=metadata.OpfacadeMetadataBuilder)


def cache(physical, dtype=torch.float32):
    """[blocks, kv_heads, block, 2 * dim], as vLLM hands it out, whatever its layout in memory."""
    shape = (12, PAGE, KV_HEADS, 2 * DIM) if physical == "NHD" else (12, KV_HEADS, PAGE, 2 * DIM)
    made = torch.full(shape, float("nan")).to(dtype)
    return made.transpose(1, 2) if physical == "NHD" else made


class Step:
    """Requests with a past: their keys and values lie in pages, and each has new rows."""

    def __init__(self, q_lens, kv_lens, pad=0, physical="HND"):
        generator = torch.Generator().manual_seed(5)

        def make(*shape):
            return torch.randn(*shape, generator=generator)

        self.q_lens, self.kv_lens, rows = q_lens, kv_lens, sum(q_lens)
        self.k_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.v_of = [make(n, KV_HEADS, DIM) for n in kv_lens]
        self.q, self.kv = make(rows + pad, HEADS, DIM), cache(physical)
        new = [(x[n - q :], y[n - q :]) for x, y, q, n in zip(self.k_of, self.v_of, q_lens, kv_lens, strict=True)]
        self.k_new, self.v_new = (torch.cat([*part, make(pad, KV_HEADS, DIM)]) for part in zip(*new, strict=True))
        self.pages = [list(range(11 - 3 * b, 8 - 3 * b, -1)) for b in range(len(q_lens))]
        for b, n in enumerate(kv_lens):
            for i in range(n - q_lens[b]):
                self.kv[self.pages[b][i // PAGE], :, i % PAGE] = torch.cat([self.k_of[b][i], self.v_of[b][i]], -1)

    def common(self, requests=None, tokens=None, **changed):
        """As the runner makes it. A captured batch has more requests, of no rows and no keys, and more tokens."""
        requests, rows = requests or len(self.q_lens), sum(self.q_lens)
        spare = [0] * (requests - len(self.q_lens))
        starts = [sum(self.q_lens[:b]) for b in range(len(self.q_lens))] + [rows] * (len(spare) + 1)
        given = {
            "query_start_loc": i32(*starts), "query_start_loc_cpu": Unread(), "seq_lens": i32(*self.kv_lens, *spare),
            "num_reqs": requests, "num_actual_tokens": tokens or rows, "max_query_len": max(self.q_lens), "max_seq_len": 20,
            "block_table_tensor": i32(*[[*p, -1] for p in self.pages], *[[-1] * 4 for _ in spare]), "slot_mapping": Unread(),
        }  # fmt: skip
        return fake.CommonAttentionMetadata(**(given | changed))


def built(vllm, common, longest=12):
    config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=longest))
    return vllm.builder("spec", ["layer"], config, torch.device("cpu")).build(0, common)


def run(vllm, step, common, **options):
    impl = vllm.impl(HEADS, DIM, 0.25, KV_HEADS, **options)
    output = torch.full_like(step.q, float("nan"))
    found = impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, built(vllm, common), output)
    assert found is output
    return output


@pytest.mark.parametrize("physical", ["HND", "NHD"])
@pytest.mark.parametrize(("q_lens", "kv_lens"), [((1, 1, 1), (9, 1, 12)), ((5, 1, 7), (9, 12, 7))])
def test_rows_are_written_to_their_pages_and_attended(vllm, physical, q_lens, kv_lens):
    step = Step(q_lens, kv_lens, physical=physical)
    output = run(vllm, step, step.common(), sliding_window=6, logits_soft_cap=2.0, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    want = expected(step.q, q_lens, step.k_of, step.v_of, window=6, cap=2.0, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    torch.testing.assert_close(output, want)
    for b, n in enumerate(kv_lens):
        stored = torch.stack([step.kv[step.pages[b][i // PAGE], :, i % PAGE] for i in range(n)])
        assert torch.equal(stored, torch.cat([step.k_of[b], step.v_of[b]], -1))


@pytest.mark.parametrize(("q_lens", "kv_lens"), [((1, 1), (9, 12)), ((5, 2), (9, 12))])
def test_a_padded_step_gives_the_rows_of_the_plain_one(vllm, q_lens, kv_lens):
    step = Step(q_lens, kv_lens, pad=8 - sum(q_lens))
    output = run(vllm, step, step.common(requests=8, tokens=8))
    torch.testing.assert_close(output[: sum(q_lens)], expected(step.q, q_lens, step.k_of, step.v_of))


def test_a_decode_of_one_token_each_runs_decode_and_a_mixed_step_prefill(vllm, fresh_telemetry):
    for q_lens, op in (((1, 1), "paged_decode"), ((2, 1), "paged_prefill")):
        before = {name for name, counted in fresh_telemetry.snapshot().items() if counted["runs"]}
        step = Step(q_lens, (9, 12))
        run(vllm, step, step.common())
        ran = {name.split("/")[1] for name, counted in fresh_telemetry.snapshot().items() if counted["runs"]} - before
        assert op in ran


def test_requests_that_could_exceed_2_to_31_tokens_together_are_served(vllm):
    step = Step([3, 1], [8, 5])
    common = step.common(requests=256)  # 256 * 10 Mi tokens, as a model of such a context has them
    impl, output = vllm.impl(HEADS, DIM, 0.25, KV_HEADS), torch.empty_like(step.q)
    impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, built(vllm, common, 10 << 20), output)
    torch.testing.assert_close(output, run(vllm, step, step.common()))


def test_bidirectional_steps_see_all_keys(vllm):
    step = Step((3, 5), (9, 5))
    want = expected(step.q, step.q_lens, step.k_of, step.v_of, causal=False)
    torch.testing.assert_close(run(vllm, step, step.common(causal=False)), want)


def test_a_layer_that_shares_another_ones_cache_writes_nothing(vllm):
    step = Step((1,), (9,))
    before = step.kv.clone()
    run(vllm, step, step.common(), kv_sharing_target_layer_name="model.layers.0")
    assert torch.equal(step.kv.nan_to_num(7.0), before.nan_to_num(7.0))


def test_an_fp8_cache_stands_for_its_scaled_values(vllm):
    step = Step((3,), (9,))
    step.kv = cache("HND", torch.uint8).zero_()
    step.q_lens = (9,)
    step.q, step.k_new, step.v_new = step.q.new_ones(9, HEADS, DIM), step.k_of[0], step.v_of[0]
    impl = vllm.impl(HEADS, DIM, 0.25, KV_HEADS, kv_cache_dtype="fp8")
    layer = SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))
    output = torch.empty_like(step.q)
    impl.forward(layer, step.q, step.k_new, step.v_new, step.kv, built(vllm, step.common()), output)
    near = [((x[0] / s).to(torch.float8_e4m3fn).float() * s,) for x, s in ((step.k_of, 0.5), (step.v_of, 0.25))]
    torch.testing.assert_close(output, expected(step.q, (9,), *near), rtol=1e-3, atol=1e-3)


def test_metadata_are_the_runners_own_tensors_and_the_plan_serves_every_step(vllm):
    common = Step((1, 1), (9, 12)).common()
    found = built(vllm, common, longest=64).requests
    assert found.q_indptr is common.query_start_loc
    assert found.kv_lens is common.seq_lens
    assert found.block_table is common.block_table_tensor
    assert found.max_kv_len == 64
    assert found.bounds(PAGE) == {"batch_size": 2, "max_kv_indices": 32}


def test_the_block_table_alone_is_replaced(vllm):
    common = Step((1, 1), (9, 12)).common()
    metadata = built(vllm, common)
    other = torch.zeros_like(common.block_table_tensor)
    assert vllm.builder("spec", [], SimpleNamespace(model_config=SimpleNamespace(max_model_len=1)), None).update_block_table(
        metadata, other, None
    ).requests.block_table is other  # fmt: skip


def test_graphs_are_declared_right_for_every_batch(vllm):
    assert vllm.builder.get_cudagraph_support(None, None) is fake.AttentionCGSupport.ALWAYS
    assert vllm.builder.supports_update_block_table


def test_a_run_that_measures_memory_gives_zeros(vllm):
    output = torch.full((2, HEADS, DIM), 3.0)
    vllm.impl(HEADS, DIM, 0.25, KV_HEADS).forward(None, None, None, None, None, None, output)
    assert not output.any()


CONFIGURATION = {
    "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False, "has_sink": False,
    "use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False,
    "device_capability": SimpleNamespace(major=9, minor=0), "attn_type": "decoder",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"has_sink": True, "has_sliding_window": True, "use_non_causal": True, "kv_cache_dtype": "fp8"}, ""),
        ({"head_size": 96, "block_size": 17}, None),
        ({"head_size": 2048}, "paged_decode"),
        ({"dtype": torch.float32}, "dtype"),
        ({"kv_cache_dtype": "nvfp4"}, "nvfp4"),
        ({"attn_type": "encoder"}, "attention type"),
        ({"device_capability": SimpleNamespace(major=7, minor=5)}, "compute capability"),
    ],
)
def test_what_is_supported_is_what_explain_says(vllm, changed, reason):
    from opfacade.integrations.support import refusals, target_of

    found = vllm.backend.validate_configuration(**(CONFIGURATION | changed))
    if reason is None:  # the kernels of the day decide
        given = CONFIGURATION | changed
        said = refusals(target_of(9, 0), head_dim=given["head_size"], page_size=given["block_size"])
        assert bool(found) == bool(said)
    else:
        assert reason in "; ".join(found)
        assert bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"alibi_slopes": [0.5]}, "alibi_slopes"),
        ({"alibi_slopes": torch.ones(4)}, "alibi_slopes"),
        ({"head_mask": torch.zeros(1)}, "head_mask"),
        ({"attn_type": "encoder"}, "attn_type"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"),
        ({"use_alibi_sqrt": True}, "use_alibi_sqrt"),
    ],
)
def test_a_layer_that_no_plan_takes_is_refused_by_name(vllm, options, name):
    with pytest.raises(errors.UnsupportedError, match=rf"vllm\.attention: {name} expected"):
        vllm.impl(HEADS, DIM, 0.25, KV_HEADS, **options)


def test_scales_of_the_output_and_masks_of_requests_are_refused_before_anything_is_written(vllm):
    step = Step((1,), (9,))
    impl, output, before = vllm.impl(HEADS, DIM, 0.25, KV_HEADS), torch.zeros_like(step.q), step.kv.clone()
    with pytest.raises(errors.UnsupportedError, match="output_scale expected"):
        impl.forward(None, step.q, step.k_new, step.v_new, step.kv, built(vllm, step.common()), output, torch.ones(1))
    assert torch.equal(step.kv.nan_to_num(7.0), before.nan_to_num(7.0))
    with pytest.raises(errors.UnsupportedError, match="causal expected True or False, got a tensor"):
        built(vllm, step.common(causal=torch.ones(1, dtype=torch.bool)))


def test_the_plug_in_registers_once_and_names_a_class_that_is_there(vllm):
    import sys

    from opfacade.integrations import vllm as plug_in

    plug_in.register()
    plug_in.register()
    entered = sys.modules["vllm.v1.attention.backends.registry"].entered
    assert entered == {"OPFACADE": f"{vllm.backend.__module__}.{vllm.backend.__qualname__}"}
    assert vllm.backend.get_name() == "OPFACADE"
    assert vllm.backend.get_impl_cls() is vllm.impl
    assert vllm.backend.get_builder_cls() is vllm.builder
