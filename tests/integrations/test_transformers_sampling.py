"""`custom_generate=sample`: seeds belong to requests, greedy is greedy, filters keep their sets, and refusals."""

import numpy as np
import pytest
import torch

from opfacade import errors
from tests.families.sampling.calls import slow_token
from tests.integrations.tiny_models import generate, model_of, padded, prompts

pytestmark = pytest.mark.transformers
TOKENS = 8


@pytest.fixture(scope="module")
def model():
    return model_of("llama", "sdpa")


def sampled(model, inputs, **options):
    from opfacade.integrations.transformers import sample

    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=TOKENS, **{"do_sample": True, "custom_generate": sample, **options})
    return [row[inputs["input_ids"].shape[1] :] for row in out.tolist()]


def new_tokens(model, inputs, **options):
    return [row[inputs["input_ids"].shape[1] :] for row in generate(model, inputs, TOKENS, **options)]


def test_a_seed_gives_its_tokens_in_any_row_and_beside_any_request(model):
    requests, seeds = prompts(5, 23, 17), [11, 12, 2**40]
    alone = [sampled(model, padded([r]), seed=[s])[0] for r, s in zip(requests, seeds, strict=True)]
    assert len({tuple(tokens) for tokens in alone}) == 3
    assert sampled(model, padded(requests), seed=seeds) == alone
    assert sampled(model, padded(requests[::-1]), seed=torch.tensor(seeds[::-1])) == alone[::-1]
    same = sampled(model, padded([requests[0]] * 3), seed=[11, 12, 11])
    assert same[0] == same[2] == alone[0]
    assert same[1] != same[0]
    assert sampled(model, padded([requests[0]] * 3), seed=11)[:2] == same[:2]


def test_tokens_are_those_of_a_slow_race(model):
    inputs = padded(prompts(9))
    found = sampled(model, inputs, seed=[3], temperature=0.7, top_k=0)
    ids = inputs["input_ids"][0].tolist()
    for place, token in enumerate(found[0]):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        assert token == slow_token((logits / torch.tensor(0.7)).tolist(), 3, place)
        ids.append(token)


def test_greedy_is_greedy(model):
    inputs = padded(prompts(5, 23, 17))
    wanted = new_tokens(model, inputs)
    assert sampled(model, inputs, do_sample=False) == wanted
    assert sampled(model, inputs, top_k=1, seed=5) == wanted
    assert sampled(model, inputs, top_p=1e-9, top_k=0, seed=5) == wanted
    assert sampled(model, inputs, min_p=1.0, top_k=0, seed=5) == wanted
    assert sampled(model, inputs, temperature=1e-4, top_k=0, seed=5) == wanted
    assert sampled(model, inputs, temperature=5.0, top_k=0, seed=5) != wanted
    # A processor of transformers' own stands before the draw.
    assert sampled(model, inputs, do_sample=False, repetition_penalty=9.0) == new_tokens(model, inputs, repetition_penalty=9.0)
    assert sampled(model, inputs, do_sample=False, repetition_penalty=9.0) != wanted


def test_the_generator_of_torch_gives_seeds(model):
    inputs = padded([prompts(9)[0]] * 2)
    torch.manual_seed(4)
    first = sampled(model, inputs)
    assert first[0] != first[1]
    assert sampled(model, inputs) != first
    torch.manual_seed(4)
    assert sampled(model, inputs) == first
    assert sampled(model, padded(prompts(9)), num_return_sequences=2, seed=[1, 2])[0] == sampled(model, inputs, seed=1)[0]


def warpers(*found):
    """They come last, so no other filter of the call may precede them."""
    from transformers import LogitsProcessorList

    return {"logits_processor": LogitsProcessorList(found), "top_k": 0}


def of_transformers(name, *values, **fields):
    import transformers

    return getattr(transformers, name)(*values, **fields)


@pytest.mark.parametrize(
    ("name", "value", "fields", "named"),
    [
        ("TopPLogitsWarper", 0.5, {"min_tokens_to_keep": 2}, "min_tokens_to_keep expected 1, got 2 of TopPLogitsWarper"),
        ("MinPLogitsWarper", 0.5, {"min_tokens_to_keep": 3}, "min_tokens_to_keep expected 1, got 3 of MinPLogitsWarper"),
        ("TopPLogitsWarper", 0.5, {"filter_value": -9.0}, r"filter_value expected -inf, got -9\.0 of TopPLogitsWarper"),
        ("MinPLogitsWarper", 0.5, {"filter_value": 0.0}, r"filter_value expected -inf, got 0\.0 of MinPLogitsWarper"),
        ("TopKLogitsWarper", 5, {"filter_value": -1e4}, r"filter_value expected -inf, got -10000\.0 of TopKLogitsWarper"),
    ],
)
def test_a_filter_that_a_draw_does_not_have_is_refused_by_name(model, name, value, fields, named):
    with pytest.raises(errors.UnsupportedError, match=rf"^transformers\.sampler: {named}"):
        sampled(model, padded(prompts(5)), seed=1, **warpers(of_transformers(name, value, **fields)))


def test_top_k_keeps_no_fewer_than_it_must_and_no_more_than_there_are(model):
    inputs = padded(prompts(5, 23, 17))
    hot = of_transformers("TemperatureLogitsWarper", 3.0)
    at_least = warpers(hot, of_transformers("TopKLogitsWarper", 1, min_tokens_to_keep=4))
    wanted = sampled(model, inputs, seed=5, top_k=4, temperature=3.0)
    assert sampled(model, inputs, seed=5, **at_least) == wanted
    assert wanted != sampled(model, inputs, seed=5, top_k=1, temperature=3.0)
    for top_k in (2**31, 2**40, 2**70):
        assert sampled(model, inputs, seed=5, top_k=top_k) == sampled(model, inputs, seed=5, top_k=0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams expected 1, got 2"),
        ({"typical_p": 0.5}, "logits_processor expected none behind the first filter, got TypicalLogitsWarper"),
        ({"top_h": 0.5, "temperature": 0.5}, "got TopHLogitsWarper"),
    ],
)
def test_what_a_draw_cannot_do_is_refused_by_name(model, options, named):
    with pytest.raises(errors.UnsupportedError, match=named):
        sampled(model, padded(prompts(5)), seed=1, **options)


def test_seeds_of_another_batch_are_refused(model):
    with pytest.raises(errors.ShapeError, match=r"seed expected a number or \[2\], got \[3\]"):
        sampled(model, padded(prompts(5, 9)), seed=[1, 2, 3])


@pytest.mark.parametrize(
    ("seed", "named"),
    [
        ([0.5, 1.5], "0.5"),
        (torch.tensor([1.0, 2.0]), "torch.float32"),
        (1.0, "1.0"),
        (True, "True"),
        ([True, 2], "True"),
        (2**63, "9223372036854775808"),
        ([1, -(2**63) - 1], "-9223372036854775809"),
        ("seed", "'s'"),
        ([[1, 2], [3]], r"\[1, 2\]"),
    ],
)
def test_a_seed_that_is_no_integer_of_64_bits_is_refused(model, seed, named):
    with pytest.raises(errors.DTypeError, match=f"seed expected integers of 64 bits, got {named}"):
        sampled(model, padded(prompts(5, 9)), seed=seed)


def test_seeds_may_be_any_integers_of_64_bits(model):
    inputs = padded(prompts(5, 9))
    wanted = sampled(model, inputs, seed=[2**63 - 1, -(2**63)])
    assert sampled(model, inputs, seed=2**63 - 1) == wanted  # seeds of further rows count on modulo 2^64
    assert sampled(model, inputs, seed=np.array([2**63 - 1, -(2**63)])) == wanted
    assert sampled(model, inputs, seed=torch.tensor([3, 4], dtype=torch.int32)) == sampled(model, inputs, seed=(3, 4))
