"""attn_implementation="opfacade": tokens of seven families equal those of sdpa or eager, for every form of a
call to generate.
"""

import pytest
import torch

from tests.integrations.tiny_models import FAMILIES, generate, model_of, padded, prompts

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("registered")]

CALLS = {
    "even": (lambda: padded(prompts(23, 23)), {}),
    "left padded": (lambda: padded(prompts(5, 23, 17)), {}),
    "static cache": (lambda: padded(prompts(30)), {"cache_implementation": "static"}),
    "padded static cache": (lambda: padded(prompts(9, 30)), {"cache_implementation": "static"}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_in_f32_are_those_of_the_peer(family, fresh_telemetry):
    ours, peer = model_of(family, "opfacade"), model_of(family, FAMILIES[family][2])
    for call, (inputs, options) in CALLS.items():
        assert generate(ours, inputs(), **options) == generate(peer, inputs(), **options), call
    runs = [counted["runs"] for sku, counted in fresh_telemetry.snapshot().items() if sku.startswith("attention/")]
    assert sum(runs) == 2 * 8 * len(CALLS)


def logits(model, sequences, mask):
    with torch.no_grad():
        return model(input_ids=sequences, attention_mask=mask).logits.float()[mask.bool()]


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_as_near_to_f32_as_the_peer_and_tokens_differ_in_near_ties_alone(family):
    """Greedy outputs diverge after a tie, so each position is compared after the same tokens."""
    peer = FAMILIES[family][2]
    inputs = padded(prompts(5, 23, 17))
    models = {name: model_of(family, name, torch.bfloat16) for name in ("opfacade", peer)}
    sequences = torch.tensor(generate(models[peer], inputs))
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(sequences[:, inputs["input_ids"].shape[1] :])], 1)
    exact = logits(model_of(family, peer), sequences, mask)
    found = {name: logits(model, sequences, mask) for name, model in models.items()}
    error = {name: ((x - exact).square().mean().sqrt() / exact.std()).item() for name, x in found.items()}
    assert error["opfacade"] <= 1.25 * error[peer]
    top = exact.topk(2).values
    # A near tie relative to the error of the peer's logits, which depends on the machine, because bf16 products round
    # differently on each CPU. Two logits whose difference is six such errors change order once in 10^5 positions.
    clear = (top[:, 0] - top[:, 1]) > 6 * error[peer] * exact.std()
    assert clear.float().mean() > 0.7
    assert torch.equal(found["opfacade"].argmax(-1)[clear], exact.argmax(-1)[clear])


def test_a_chunk_behind_a_cache_and_an_empty_static_cache_are_aligned_as_sdpa_aligns_them():
    """Two calls without a mask: rows at the end of the keys, and rows at the start of a larger cache."""
    from transformers import StaticCache

    inputs = padded(prompts(20))
    found = []
    for name in ("opfacade", "sdpa"):
        model = model_of("llama", name)
        with torch.no_grad():
            first = model(input_ids=inputs["input_ids"][:, :13], use_cache=True)
            rest = model(input_ids=inputs["input_ids"][:, 13:], past_key_values=first.past_key_values)
            static = StaticCache(config=model.config, max_cache_len=50)
            found.append((rest.logits, model(input_ids=inputs["input_ids"], past_key_values=static).logits))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_attention_without_a_causal_mask_sees_all_keys():
    ours, theirs = (model_of("llama", name) for name in ("opfacade", "sdpa"))
    ids = padded(prompts(11))["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(ours(input_ids=ids, is_causal=False).logits, theirs(input_ids=ids, is_causal=False).logits)


def test_a_compiled_call_that_wants_gradients_is_refused():
    from opfacade import errors

    model = torch.compile(model_of("llama", "opfacade"), backend="eager")
    with pytest.raises(errors.GradNotSupportedError, match=r"query, key, value expected tensors without gradients.*OPF-I007"):
        model(**padded(prompts(11)))


@pytest.mark.parametrize(
    "backend", [pytest.param("eager", marks=pytest.mark.heavy), "aot_eager"]
)  # which does all of the first
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_a_model_compiled_as_one_graph_gives_the_logits_of_the_eager_one(family, backend):
    model, inputs = model_of(family, "opfacade"), padded(prompts(11, 20))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3", marks=pytest.mark.heavy)])
def test_autocast_gives_the_dtypes_that_it_gives_to_sdpa(family, compiled):
    torch._dynamo.reset()
    inputs, found = padded(prompts(5, 9)), {}
    for name in ("opfacade", "sdpa"):
        model = model_of(family, name)
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found[name] = call(**inputs).logits.float()[inputs["attention_mask"].bool()]
    assert (found["opfacade"] - found["sdpa"]).abs().max() <= 0.02 * found["sdpa"].abs().max()
