"""Continuous batching on opfacade: prefix sharing, chunked prefill, windows; tokens equal those of the reference
implementation.
"""

import pytest
import torch

from tests.integrations.tiny_models import FAMILIES, model_of, prompts

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("registered")]

PAGED = [family for family in FAMILIES if not family.startswith("deepseek")]
# Their attention equals llama's.
ALIKE = ("qwen3",)
SHOWN = [pytest.param(family, marks=pytest.mark.heavy if family in ALIKE else ()) for family in PAGED]


def batched(model, given, **options):
    """Tokens of each prompt. Pages of 16 tokens and steps of 64, so that long prompts are cut into chunks."""
    import transformers
    from transformers import ContinuousBatchingConfig, GenerationConfig

    import opfacade.integrations.transformers as ours
    from opfacade.integrations.transformers.releases import parse

    page = "block_size" if parse(transformers.__version__) < (5, 18) else "page_size"
    config = ContinuousBatchingConfig(**{page: 16}, num_blocks=48, max_batch_tokens=64, **options)
    generation = GenerationConfig(max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert ours.names().continuous
    out = model.generate_batch(given, generation_config=generation, continuous_batching_config=config)
    assert [o.error for o in out.values()] == [None] * len(given)
    return [o.generated_tokens for o in out.values()]


def shared():
    """Prompts of every length around a page's length, three of which share a beginning."""
    base = prompts(3, 90, 17, 33, 5, 64, 80, 16)
    return [*base, base[1][:64] + base[3][:9], base[1][:64] + base[4]]


def peer_of(family):
    from opfacade.integrations.transformers import names

    older = names().continuous.startswith("paged")
    return "paged|eager" if FAMILIES[family][2] == "eager" else "paged|sdpa" if older else "sdpa"


@pytest.mark.parametrize("family", SHOWN)
def test_tokens_are_those_of_the_peer(family, registered, fresh_telemetry):
    from opfacade.integrations.transformers import use_continuous_batching

    ours = batched(use_continuous_batching(model_of(family, "opfacade")), shared())
    ops = {name.split("/")[1] for name, counted in fresh_telemetry.snapshot().items() if counted["runs"]}
    paged = registered.continuous.startswith("paged")
    assert ops >= ({"paged_kv_append", "paged_prefill", "paged_decode"} if paged else {"ragged_prefill"})
    assert ours == batched(model_of(family, peer_of(family)), shared())


def test_padded_steps_give_the_same_tokens(registered):
    """Sizes padded like a captured graph pads them: extra rows and requests belong to no request."""
    import transformers

    from opfacade.integrations.transformers import use_continuous_batching

    if transformers.__version__.startswith("5.17."):
        pytest.skip("transformers 5.17 compiles a step as one graph, which breaks at an attention call")
    plain = batched(use_continuous_batching(model_of("llama", "opfacade")), shared())
    padded = batched(use_continuous_batching(model_of("llama", "opfacade")), shared(), default_compile_level=1)
    assert plain == padded


def test_no_page_of_another_layer_is_written():
    """Since 5.18, K and V of all layers are pages of one buffer: a step of one layer leaves the other layers unchanged."""
    from opfacade.integrations.transformers.cache_pages import layer_pages

    class Allocator:
        supports_block_table, block_physical_stride = True, 2 * 2 * 4

    class Cache:
        layer_to_allocator = (Allocator, Allocator)
        buffer = torch.zeros(12, 4, 2, 8)

        def get_cache_for_block_table(self, layer):
            return 0, self.buffer[2 * layer :], self.buffer[2 * layer + 1 :]

    cache = Cache()
    for layer in (0, 1):
        pages = layer_pages(cache, layer)
        pages.k.fill_(10 + layer)
        pages.v.fill_(20 + layer)
    assert cache.buffer[:, 0, 0, 0].tolist() == [10, 20, 11, 21] * 3


def test_a_release_that_is_not_known_is_refused_with_the_reason(monkeypatch):
    from opfacade import errors
    from opfacade.integrations.transformers import registration

    model = model_of("llama", "sdpa")
    monkeypatch.setattr(registration, "_version", lambda: "5.25.0")
    with pytest.raises(errors.UnsupportedError, match=r"expected 5\.17 to 5\.24, got 5\.25\.0.*last tried with.*OPF-I005"):
        registration.use_continuous_batching(model)
    assert registration.names() == ("opfacade", "", "continuous batching was last tried with transformers 5.24")
    assert model.config._attn_implementation == "sdpa"


def without_a_paged_path():
    import transformers

    sizes = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    encoder = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}
    return {
        "T5ForConditionalGeneration": transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)),
        "BertModel": transformers.BertModel(transformers.BertConfig(**encoder)),
        "NoneType": None,
    }


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "BertModel", "NoneType"])
def test_a_model_without_a_paged_path_is_refused_by_its_class(kind):
    from opfacade import errors
    from opfacade.integrations.transformers import use_continuous_batching

    model = without_a_paged_path()[kind]
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    with pytest.raises(errors.UnsupportedError, match=rf"model expected a decoder with generate_batch, got {kind}.*OPF-I008"):
        use_continuous_batching(model)
    assert getattr(getattr(model, "config", None), "_attn_implementation", None) == before


@pytest.mark.parametrize("family", ["deepseek_v3"])
def test_a_model_without_pages_for_its_values_says_so(family, registered):
    from opfacade.integrations.transformers import use_continuous_batching

    if not registered.continuous.startswith("paged"):
        pytest.skip("the cache of transformers 5.19 and later refuses such a model itself")
    with pytest.raises(AssertionError, match=r"value expected head_dim 24, that of key: a page has one, got 16.*OPF-I001"):
        batched(use_continuous_batching(model_of(family, "opfacade")), prompts(5))
