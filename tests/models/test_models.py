"""Named models: their sizes, and problems of which every one has a kernel."""

import pytest

from opfacade import Plan, Target, errors
from opfacade.models import descriptors, facts_of
from opfacade.models.facts import MODELS
from tests.support.assemblers import any_assembler

HOPPER = Target.parse("sm_90a")
# The ops that a server runs. Latent attention needs the op rotary, because no qkv_prepare serves it.
COMMON = {"norm", "quantize", "gated_activation", "sample"}
OPS = {
    "llama3-8b": COMMON | {"paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
    "qwen3-30b": COMMON | {"paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
    "deepseek-v3": COMMON | {"mla_decode", "paged_kv_append", "ragged_prefill", "rotary"},
    "gpt-oss": COMMON | {"paged_decode", "paged_prefill", "paged_kv_append", "qkv_prepare"},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_problem_of_a_model_has_a_kernel(name):
    with any_assembler():
        plans = [Plan.select(descriptor, target=HOPPER) for descriptor in descriptors(name)]
    assert {plan.sku.op for plan in plans} == OPS[name]
    assert {plan.sku.backend for plan in plans} == {"cuda"}
    # A build takes about a second of one core: under a minute on two, with room for slower machines.
    assert len({spec for plan in plans for spec in plan.jit_specs}) <= 20


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
    if model.latent is None:
        assert getattr(config, "head_dim", 128) == model.head_dim  # Qwen 3 has none by default, and its releases 128
    else:
        dims = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)
        assert dims == (model.latent.nope_dim, model.latent.rope_dim, model.latent.value_dim)


def test_sizes_of_llama_are_those_of_its_release():
    llama = facts_of("llama3-8b")
    assert (llama.hidden, llama.heads, llama.kv_heads, llama.head_dim) == (4096, 32, 8, 128)
    assert (llama.intermediate, llama.vocab, llama.eps) == (14336, 128256, 1e-5)
