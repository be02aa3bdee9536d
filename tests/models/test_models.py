"""Named models: their sizes, and a kernel for each of their problems."""

import pytest

from opfacade import Plan, Target, errors
from opfacade.models import descriptors, facts_of
from opfacade.models.facts import MODELS
from tests.support.assemblers import any_assembler

HOPPER = Target.parse("sm_90a")
# The ops that a server runs. Latent attention needs the op rotary, because qkv_prepare does not support it.
COMMON = {"norm", "quantize", "gated_activation", "sample", "matmul"}
OPS = {
    "llama3-8b": COMMON | {"paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
    "qwen3-30b": COMMON | {"fused_moe", "paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
    "deepseek-v3": COMMON | {"fused_moe", "mla_decode", "paged_kv_append", "ragged_prefill", "rotary"},
    "gpt-oss": COMMON | {"fused_moe", "paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_problem_of_a_model_has_a_kernel(name):
    with any_assembler():
        plans = [Plan.select(descriptor, target=HOPPER) for descriptor in descriptors(name)]
    assert {plan.sku.op for plan in plans} == OPS[name]
    assert {plan.sku.backend for plan in plans} == {"cuda"}
    # A build takes one to two seconds of one core: under a minute on two cores, with a margin for slower machines.
    assert len({spec for plan in plans for spec in plan.jit_specs}) <= 40


def test_a_model_with_windows_has_both_kinds_of_layers():
    decodes = [d for d in descriptors("gpt-oss") if d.op == "paged_decode"]
    assert {d.window_left for d in decodes} == {127, -1}
    assert all(d.sinks for d in decodes)


def test_a_norm_of_heads_is_part_of_what_precedes_attention():
    norms = {name: {d.norm for d in descriptors(name) if d.op == "qkv_prepare"} for name in ("llama3-8b", "qwen3-30b")}
    assert norms == {"llama3-8b": {"none"}, "qwen3-30b": {"rms"}}


def test_experts_have_rows_for_each_token_and_expert():
    gated = {(d.total_num_rows, d.width) for d in descriptors("qwen3-30b") if d.op == "gated_activation"}
    assert {(256, 6144), (2048, 768), (16384, 768)} <= gated


# n and k of every product, and whether its weight is in e4m3.
PRODUCTS = {
    "llama3-8b": {
        (6144, 4096, False), (4096, 4096, False), (28672, 4096, False), (4096, 14336, False), (128256, 4096, False),
    },
    "qwen3-30b": {(5120, 2048, False), (2048, 4096, False), (128, 2048, False), (151936, 2048, False)},
    "deepseek-v3": {
        (1536, 7168, True), (576, 7168, True), (24576, 1536, True), (32768, 512, True), (7168, 16384, True),
        (36864, 7168, True), (7168, 18432, True), (512, 128, False), (128, 512, False), (256, 7168, False),
        (129280, 7168, False),
    },
    "gpt-oss": {(5120, 2880, False), (2880, 4096, False), (32, 2880, False), (201088, 2880, False)},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_products_of_the_model(name):
    found = [d for d in descriptors(name) if d.op == "matmul"]
    for rows in (1, 8, 64, 256, 2048):
        heads = set() if rows < 2048 else {(facts_of(name).vocab, facts_of(name).hidden, False)}  # one row per request
        kinds = {(d.n, d.k, d.dtype == "f8_e4m3") for d in found if d.total_num_rows == rows}
        assert kinds == PRODUCTS[name] - heads
    assert all(d.scaling.kind == "block" for d in found if d.dtype == "f8_e4m3")
    assert {d.batch for d in found if 128 in (d.n, d.k) and d.k != 2048} <= {128}
    assert {d.bias for d in found} == ({True, False} if name == "gpt-oss" else {False})


def test_a_layer_of_experts_is_that_of_the_model():
    layers = {name: next((d for d in descriptors(name) if d.op == "fused_moe"), None) for name in MODELS}
    assert layers.pop("llama3-8b") is None
    facts = {name: (d.experts, d.top_k, d.hidden, d.width, d.shared_width, d.scaling) for name, d in layers.items()}
    assert facts == {
        "qwen3-30b": (128, 8, 2048, 768, 0, None), "deepseek-v3": (256, 8, 7168, 2048, 2048, "block"),
        "gpt-oss": (32, 4, 2880, 2880, 0, None),
    }  # fmt: skip
    assert (layers["gpt-oss"].limit, layers["gpt-oss"].alpha, layers["gpt-oss"].beta) == (7.0, 1.702, 1.0)
    assert layers["deepseek-v3"].router.groups == 8
    rows = {d.total_num_rows for d in descriptors("qwen3-30b") if d.op == "fused_moe"}
    assert rows == {1, 8, 64, 256, 2048}


def test_an_unknown_name_is_refused_with_the_one_that_was_meant():
    with pytest.raises(errors.DescriptorError, match=r"name expected one of llama3-8b, .*Did you mean llama3-8b\?.*OPF-D060"):
        facts_of("llama-3-8b")
    with pytest.raises(errors.DescriptorError, match="OPF-D060"):
        descriptors(3)


@pytest.mark.transformers
@pytest.mark.parametrize(
    ("name", "kind"), [("deepseek-v3", "DeepseekV3Config"), ("gpt-oss", "GptOssConfig"), ("qwen3-30b", "Qwen3MoeConfig")]
)
def test_sizes_are_those_that_transformers_has_by_default(name, kind):
    import transformers

    config, model = getattr(transformers, kind)(), facts_of(name)
    expert = getattr(config, "moe_intermediate_size", config.intermediate_size)
    found = (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size, expert)
    assert found == (model.hidden, model.heads, model.kv_heads, model.intermediate, model.width)
    assert (config.vocab_size, config.num_experts_per_tok) == (model.vocab, model.top)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or config.n_routed_experts
    assert experts == (128 if name == "gpt-oss" else model.experts)  # its default is the larger release; 32 belongs to 20b
    if model.router.score == "sigmoid":
        assert (config.n_group, config.topk_group) == (model.router.groups, model.router.top_groups)
        assert (config.routed_scaling_factor, config.first_k_dense_replace) == (model.router.scale, model.dense_layers)
        assert config.n_shared_experts * config.moe_intermediate_size == model.shared_width
        assert (config.q_lora_rank, config.kv_lora_rank) == (model.latent.q_rank, model.latent.rank)
    if model.latent is None:
        assert getattr(config, "head_dim", 128) == model.head_dim  # Qwen 3 has no default, its releases have 128
    else:
        dims = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)
        assert dims == (model.latent.nope_dim, model.latent.rope_dim, model.latent.value_dim)


def test_sizes_of_llama_are_those_of_its_release():
    llama = facts_of("llama3-8b")
    assert (llama.hidden, llama.heads, llama.kv_heads, llama.head_dim) == (4096, 32, 8, 128)
    assert (llama.intermediate, llama.vocab, llama.eps) == (14336, 128256, 1e-5)
