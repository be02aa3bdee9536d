"""The backend of vLLM on fakes: numbers against a formula, captured shapes, explanations, and refusals."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.integrations.fakes import vllm as fake
from tests.integrations.paged_attention import expected
from tests.integrations.vllm_step import DIM, HEADS, KV_HEADS, PAGE, Step, builder, built, cache, run


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


@pytest.mark.parametrize("q_lens", [(1, 0, 1), (0, 1, 1), (1, 0, 1, 0), (0, 1, 0, 1)])
def test_requests_without_rows_between_others_leave_each_row_its_request(vllm, q_lens):
    """Three rows for three requests need not be one row each: a graph pads its rows."""
    kv_lens = (9, 12, 8, 5)[: len(q_lens)]
    step = Step(q_lens, kv_lens, pad=len(q_lens) - sum(q_lens))
    output = run(vllm, step, step.common(tokens=len(q_lens)))
    torch.testing.assert_close(output[: sum(q_lens)], expected(step.q[: sum(q_lens)], q_lens, step.k_of, step.v_of))


def test_a_padded_graph_of_single_rows_still_decodes(vllm, fresh_telemetry):
    step = Step((1, 1), (9, 12), pad=2)
    assert built(vllm, step.common(requests=4, tokens=4)).requests.decodes


def test_requests_that_could_exceed_2_to_31_tokens_together_are_served(vllm):
    step = Step([3, 1], [8, 5])
    common = step.common(requests=256)  # 256 * 10 Mi tokens, for a model with such a context
    impl, output = vllm.impl(HEADS, DIM, 0.25, KV_HEADS), torch.empty_like(step.q)
    impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, built(vllm, common, 10 << 20), output)
    torch.testing.assert_close(output, run(vllm, step, step.common()))


def test_bidirectional_steps_see_all_keys(vllm):
    step = Step((3, 5), (9, 5))
    want = expected(step.q, step.q_lens, step.k_of, step.v_of, causal=False)
    torch.testing.assert_close(run(vllm, step, step.common(causal=False)), want)


def rows_of(k_of, q_lens, window, causal):
    """Which keys each row sees: the left side of a window, and the same number on the right if a request is not causal."""
    for k, q_len, one in zip(k_of, q_lens, causal, strict=True):
        i, j = torch.arange(q_len)[:, None] + len(k) - q_len, torch.arange(len(k))
        yield (j > i - window if window else j > -1) & (j <= (i if one else i + (window or len(k)) - 1))


def seen(step, window, causal, sinks=None):
    """Attention of the rows of a step by a mask for each request, in f64."""
    outputs, first = [], 0
    for mask, k, v, q_len in zip(
        rows_of(step.k_of, step.q_lens, window, causal), step.k_of, step.v_of, step.q_lens, strict=True
    ):
        q = step.q[first : first + q_len].double().transpose(0, 1)
        k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1) for x in (k, v))
        weights = (q @ k.mT * 0.25).masked_fill(~mask, -torch.inf).softmax(-1)
        outputs.append((weights @ v).transpose(0, 1))
        first += q_len
    return torch.cat(outputs).float()


@pytest.mark.parametrize("window", [1, 3, 6, 40])
def test_a_window_of_rows_that_are_not_causal_is_symmetric(vllm, window):
    """The window in the form of vLLM's flash attention (`_maybe_symmetrize_window`)."""
    step = Step((7, 5, 1), (9, 5, 12))
    output = run(vllm, step, step.common(causal=False), sliding_window=window)
    torch.testing.assert_close(output, seen(step, window, [False] * 3))


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_requests_may_have_masks_of_their_own(vllm, window, dtype):
    """Diffusion models: causal is a tensor, whose contents a replayed graph reads again."""
    step = Step((4, 7, 2, 5), (9, 12, 8, 5), pad=3)
    causal = torch.tensor([1, 0, 0, 1, 0, 0], dtype=dtype)
    output = run(vllm, step, step.common(requests=6, tokens=21, causal=causal), sliding_window=window)
    torch.testing.assert_close(output[:18], seen(step, window, [True, False, False, True]))


def test_masks_of_requests_follow_the_tensor_from_pass_to_pass(vllm):
    step, causal = Step((4, 7), (9, 12)), torch.tensor([1, 0], dtype=torch.int32)
    metadata, impl = built(vllm, step.common(causal=causal)), vllm.impl(HEADS, DIM, 0.25, KV_HEADS, sliding_window=4)
    for given in ([1, 0], [0, 1]):
        causal.copy_(torch.tensor(given))
        output = torch.empty_like(step.q)
        impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, metadata, output)
        torch.testing.assert_close(output, seen(step, 4, given))


def test_a_model_with_masks_of_requests_and_a_cache_without_kernel_is_refused_at_start(vllm):
    builder(vllm, is_diffusion=True)
    with pytest.raises(errors.UnsupportedError, match="causal expected what a kernel takes for each request"):
        builder(vllm, is_diffusion=True, cache_dtype="fp8")


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sinks_that_load_in_place_after_construction_count_and_so_do_later_ones(vllm, dtype):
    """vLLM constructs the layer before it loads weights, and a trainer later pushes others into the same memory."""
    step = Step((3, 1), (9, 12))
    parameter = torch.nn.Parameter(torch.full((HEADS,), float("nan"), dtype=dtype))
    impl = vllm.impl(HEADS, DIM, 0.25, KV_HEADS, sinks=parameter)
    for values in ([0.5, -1.0, 2.0, 0.0], [3.0, 1.0, -2.0, 8.0]):
        parameter.data.copy_(torch.tensor(values))
        impl.process_weights_after_loading(torch.bfloat16)
        output = torch.empty_like(step.q)
        impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, built(vllm, step.common()), output)
        want = expected(step.q, step.q_lens, step.k_of, step.v_of, sinks=torch.tensor(values))
        torch.testing.assert_close(output, want)


def test_factors_of_a_cache_that_load_in_place_count_and_so_do_later_ones(vllm):
    impl = vllm.impl(HEADS, DIM, 0.25, KV_HEADS, kv_cache_dtype="fp8")
    layer = SimpleNamespace(_k_scale=torch.tensor(float("nan")), _v_scale=torch.tensor(float("nan")))
    for k_scale, v_scale in ((0.5, 0.25), (0.25, 0.5)):
        layer._k_scale.fill_(k_scale), layer._v_scale.fill_(v_scale)
        step = Step((9,), (9,))
        step.kv, output = cache("HND", torch.uint8).zero_(), torch.empty_like(step.q)
        impl.forward(layer, step.q, step.k_new, step.v_new, step.kv, built(vllm, step.common()), output)
        near = [((x[0] / s).to(torch.float8_e4m3fn).float() * s,) for x, s in ((step.k_of, k_scale), (step.v_of, v_scale))]
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
    metadata.places("layer", PAGE)
    other, slots = torch.zeros_like(common.block_table_tensor), torch.arange(9)
    found = builder(vllm, 1).update_block_table(metadata, other, slots)
    assert found.requests.block_table is other
    assert torch.equal(found.places("another layer", PAGE).slots, slots[:2])


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
        ({"has_sink": True, "has_sliding_window": True, "kv_cache_dtype": "fp8"}, ""),
        ({"has_sliding_window": True, "use_non_causal": True, "has_sink": True}, ""),
        ({"has_sliding_window": True, "use_non_causal": True, "kv_cache_dtype": "fp8"}, "a window on both sides"),
        ({"has_sliding_window": True, "kv_cache_dtype": "fp8"}, ""),
        ({"use_non_causal": True, "kv_cache_dtype": "fp8"}, ""),
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
    if reason is None:  # the currently installed kernels decide
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


def test_scales_of_the_output_are_refused_before_anything_is_written(vllm):
    step = Step((1,), (9,))
    impl, output, before = vllm.impl(HEADS, DIM, 0.25, KV_HEADS), torch.zeros_like(step.q), step.kv.clone()
    with pytest.raises(errors.UnsupportedError, match="output_scale expected"):
        impl.forward(None, step.q, step.k_new, step.v_new, step.kv, built(vllm, step.common()), output, torch.ones(1))
    assert torch.equal(step.kv.nan_to_num(7.0), before.nan_to_num(7.0))


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
