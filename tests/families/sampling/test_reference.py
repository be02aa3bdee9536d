"""The contract of sampling on the reference: known answers, edges, and a slow sampler in plain Python."""

import math

import numpy as np
import pytest
import torch

from opfacade import Plan, Target
from opfacade.backends.reference.sampling import philox as torch_noise
from opfacade.errors import DescriptorError
from opfacade.plans.sampling import ProbabilitiesDescriptor, SampleDescriptor
from opfacade.testing import inputs
from opfacade.testing.families.sampling import race
from tests.families.sampling.calls import call, drawn, kept, philox, slow_token

INF, NAN = math.inf, math.nan
# Test vectors of Random123: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_words_are_those_of_random123(counter, key, words):
    assert tuple(philox(counter, key)) == words
    assert tuple(int(w) for w in race.philox(counter, key)) == words
    tensors = [[torch.tensor([x]) for x in part] for part in (counter, key)]
    assert tuple(int(w) for w in torch_noise.philox(*map(tuple, tensors))) == words


@pytest.mark.parametrize("seed", [0, 5, -1, 2**62 + 12345, -(2**63)])
@pytest.mark.parametrize("offset", [0, 7, 2**32 + 7, -3])
@pytest.mark.parametrize("stream", [0, 2**32 - 1])
def test_a_token_is_the_winner_of_its_race(seed, offset, stream):
    for at in range(6):
        logits = torch.randn(1, 23, generator=torch.Generator().manual_seed(at))
        want = slow_token(logits[0].double().tolist(), seed, offset + 11 * at, stream)
        assert drawn(logits, seed=seed, offset=offset + 11 * at, stream=stream).token.tolist() == [want]


def test_every_word_of_seed_offset_and_stream_counts():
    logits = torch.zeros(1, 4096)
    plain = {"seed": 9, "offset": 4}
    others = [plain | {"seed": 9 + 2**32}, plain | {"offset": 4 + 2**32}, {"seed": 4, "offset": 9}]
    tokens = [drawn(logits, **at).token.item() for at in (plain, *others)] + [drawn(logits, **plain, stream=1).token.item()]
    assert len(set(tokens)) == 5


def test_the_slot_has_no_influence():
    logits, order = torch.randn(64, 300), torch.randperm(64)
    seeds, offsets = torch.arange(64) * 77, torch.arange(64) % 5
    first = drawn(logits, seed=seeds, offset=offsets, top_p=0.8)
    again = drawn(logits[order], seed=seeds[order], offset=offsets[order], top_p=0.8)
    assert torch.equal(first.token[order], again.token)
    assert len(set(drawn(torch.zeros(64, 300), seed=3, offset=8).token.tolist())) == 1


def test_noise_is_finite_for_every_word_and_its_float_form_is_near():
    word = np.concatenate([np.arange(70000), 2**26 + np.arange(-70000, 70000), 2**32 - 1 - np.arange(70000),
                           np.random.default_rng(1).integers(0, 2**32, 10**6)]).astype(np.uint64)  # fmt: skip
    want = race.minus_log2_exponential(word)
    assert np.isfinite(want).all()
    assert 32.9999 < want.max() <= 33
    f = np.float32
    halves = (word.astype(f), (word ^ np.uint64(2**32 - 1)).astype(f))
    v, rest = ((x.astype(np.float64) * 2**-32 + 2**-33).astype(f) for x in halves)  # rounded once, as fmaf
    series = v + v * v * (f(0.5) + v * (f(1 / 3) + v * f(0.25)))
    e = np.where(word < 2**26, series, -np.log(rest))
    assert np.abs(-np.log2(e) - want).max() < 3.5e-6


def test_a_temperature_of_zero_takes_the_first_of_the_largest():
    args = drawn([[0.0, 2.0, 2.0, -1.0]] * 4, temperature=[0.0, -1.0, NAN, 1e-6], offset=[0, 1, 2, 3])
    assert args.token.tolist()[:3] == [1, 1, 1]
    assert args.token[3] in (1, 2)
    assert drawn([[-0.0, 0.0, -1.0]], temperature=0.0).token.item() == 0


def test_what_is_no_number_is_no_candidate():
    rows = [[NAN, -INF, 1.0], [NAN, NAN, NAN], [-INF] * 3, [-INF, INF, INF], [NAN, -3e38, -INF]]
    for temperature in (0.0, 1.0, 0.1, 3.0):
        args = drawn(rows, temperature=temperature, report="logprob")
        assert args.token.tolist() == [2, -1, -1, args.token[3].item(), 1]
        assert args.token[3] in (1, 2)
        assert args.valid.tolist() == [1, 0, 0, 1, 1]
        assert args.rank.tolist() == [0, -1, -1, args.token[3].item() - 1, 0]
        assert args.logprob.isnan().tolist() == [False, True, True, False, False]


def test_top_k_is_exact_and_ties_go_to_the_lower_id():
    assert kept([0.1, 0.3, 0.3, 0.2, 0.1], top_k=2) == [1, 2]
    assert kept([0.1, 0.2, 0.2, 0.2, 0.3], top_k=3) == [1, 2, 4]
    assert kept([0.25] * 4, top_k=1) == [0]
    for off in (0, -1, 4, 5, 2**31 - 1):
        assert kept([0.25] * 4, top_k=off) == [0, 1, 2, 3]
    assert kept([0.25] * 4, top_k=0, max_top_k=3) == [0, 1, 2]


def test_top_p_keeps_the_shortest_prefix_that_reaches_p():
    shares = [0.125, 0.5, 0.125, 0.25]
    assert kept(shares, top_p=0.49) == [1]
    assert kept(shares, top_p=0.51) == [1, 3]
    assert kept(shares, top_p=0.74) == [1, 3]
    assert kept(shares, top_p=0.76) == [0, 1, 3]
    assert kept(shares, top_p=0.88) == [0, 1, 2, 3]
    assert kept([0.25] * 4, top_p=0.5) == [0, 1]
    for off in (1.0, 1.5, INF, NAN):
        assert kept(shares, top_p=off) == [0, 1, 2, 3]
    for least in (0.0, -1.0, -INF):
        assert kept(shares, top_p=least) == [1]


def test_min_p_compares_with_the_largest():
    shares = [0.1, 0.4, 0.3, 0.2]
    assert kept(shares, min_p=0.6) == [1, 2]
    assert kept(shares, min_p=0.3) == [1, 2, 3]
    assert kept(shares, min_p=1.0) == kept(shares, min_p=2.0) == [1]
    for off in (0.0, -1.0, NAN):
        assert kept(shares, min_p=off) == [0, 1, 2, 3]


def test_the_order_of_filters_says_which_mass_p_refers_to():
    shares = [0.4, 0.3, 0.2, 0.1]
    assert kept(shares, top_k=2, top_p=0.5, order="top_k_first") == [0]
    assert kept(shares, top_k=2, top_p=0.5, order="joint") == [0, 1]
    assert kept(shares, top_k=3, top_p=0.75, min_p=0.7, order="joint") == [0, 1]


def test_adjustments_come_in_their_order():
    """(((4 + 1) / 2) - 0.5 * 3) - 0.25, capped at 2, divided by 0.5."""
    given = {
        "bias": torch.tensor([[1.0, 0.0, 0.0]]), "output_counts": torch.tensor([[3, 0, 0]], dtype=torch.int32),
        "prompt_mask": torch.tensor([[False, True, False]]), "repetition": 2.0, "frequency": 0.5, "presence": 0.25,
        "soft_cap": 2.0, "temperature": 0.5,
    }  # fmt: skip
    args = drawn([[4.0, -1.0, 0.5]], report="top_n", top_n=3, **given)
    a = [math.tanh(x / 2) * 2 / 0.5 for x in (0.75, -2.0, 0.5)]
    assert args.top_tokens.tolist() == [[0, 2, 1]]
    want = torch.tensor([a]).log_softmax(-1)[:, [0, 2, 1]]
    torch.testing.assert_close(args.top_logprobs, want, rtol=1e-5, atol=1e-6)


def test_a_list_of_biases_adds_in_its_order_and_ignores_unknown_ids():
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    listed = torch.tensor([[2, -1, 2, 4, 2**31 - 1, 0]], dtype=torch.int32), torch.tensor([[-1.5, 9.0, -1.0, 9.0, 9.0, 0.5]])
    args = drawn(logits, bias_tokens=listed[0], bias_values=listed[1], report="top_n", top_n=4)
    assert args.top_tokens.tolist() == [[1, 0, 2, 3]]
    banned = drawn(logits, bias_tokens=listed[0][:, :1], bias_values=torch.tensor([[-INF]]), temperature=0.0)
    assert banned.token.item() == 1


def test_a_bitmask_leaves_only_its_tokens():
    mask = torch.zeros(50, 3, dtype=torch.int32)
    mask[:, 1], mask[:, 2] = 1 << 3, -(2**31)
    logits = torch.zeros(50, 70)
    assert set(drawn(logits, bitmask=mask, offset=list(range(50))).token.tolist()) == {35}  # token 95 is past the vocabulary


def test_reports_are_of_all_candidates_and_probabilities_of_the_kept():
    logits = torch.randn(9, 200, generator=torch.Generator().manual_seed(3)) * 3
    given = {"top_k": 20, "top_p": 0.7, "offset": list(range(9)), "temperature": 0.8}
    args = drawn(logits, report="top_n", top_n=5, probs_out="filtered", **given)
    logprobs = (logits / 0.8).log_softmax(-1)
    at = args.token.long()[:, None]
    torch.testing.assert_close(args.logprob, logprobs.gather(1, at)[:, 0], rtol=1e-5, atol=1e-5)
    assert torch.equal(args.rank.long(), (logprobs > logprobs.gather(1, at)).sum(-1))
    torch.testing.assert_close(args.top_logprobs, logprobs.topk(5).values, rtol=1e-5, atol=1e-5)
    assert (args.probs.gather(1, at) > 0).all()
    torch.testing.assert_close(args.probs.sum(-1), torch.ones(9))
    inside = args.probs > 0
    torch.testing.assert_close((args.probs / logprobs.exp())[inside].log().std(), torch.tensor(0.0), atol=0.5, rtol=0)
    assert inside.sum(-1).max() <= 20


def test_rows_name_their_logits_and_rows_that_are_not_valid_stay():
    logits = torch.full((3, 9), -INF)
    logits[[0, 1, 2], [5, 6, 7]] = 0.0
    args = drawn(logits, rows=5, indices=[2, 2, 0, 1, 0], num_valid=[4], report="logprob")
    assert args.token.tolist() == [7, 7, 5, 6, 77]
    assert (args.valid.tolist(), args.rank.tolist()) == ([1, 1, 1, 1, 77], [0, 0, 0, 0, 77])
    for count in (0, -1, 6):
        assert drawn(logits, rows=5, indices=0, num_valid=[count]).token.tolist() == [77] * 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"report": "top_n"}, "top_n expected 1 or more"),
        ({"top_n": 3}, "top_n expected 1 or more"),
        ({"top_n": 129, "report": "top_n"}, "top_n"),
        ({"bias": "sparse"}, "num_biases expected 1 or more"),
        ({"num_logits": 3}, "num_logits expected None without indices"),
        ({"max_top_k": 3}, "max_top_k expected None without top_k"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"soft_cap": 1e-46}, r"soft_cap expected 0 or at least 2\^-126, because .* NaN, got 1e-46\. \[OPF-D002\]"),
        ({"soft_cap": 1e39}, "soft_cap"),
        ({"stream": 2**32}, "stream"),
        ({"order": "any"}, "order"),
    ],
)
def test_fields_that_contradict_are_refused(fields, message):
    with pytest.raises(DescriptorError, match=message):
        SampleDescriptor(total_num_rows=1, vocab=4, **fields)


def test_no_field_of_a_size_or_a_number_is_in_the_sku():
    def sku(**fields):
        return Plan.select(SampleDescriptor(dtype="bf16", top_k=True, **fields), target=Target.cpu()).sku.id

    assert sku(total_num_rows=1, vocab=4) == sku(total_num_rows=9, vocab=8, stream=3, max_top_k=9)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
def test_full_validation_refuses_what_is_no_number(name, monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    descriptor, args = call(torch.randn(3, 8), temperature=1.0, top_p=0.9, min_p=0.1)
    getattr(args, name)[1] = NAN
    with pytest.raises(Exception, match=rf"{name}.*OPF-V003"):
        Plan.select(descriptor, target=Target.cpu()).run(args)


def test_inputs_for_tools_have_ties_and_rows_without_candidates():
    descriptor = SampleDescriptor(total_num_rows=400, vocab=64)
    logits = inputs.make_args(descriptor, seed=1).logits
    assert (~(logits > -INF)).all(-1).any()
    assert logits.isnan().any()
    assert any(row.unique().numel() < 50 for row in logits)


def test_rows_without_any_row_of_logits_are_refused():
    """A wrong index draws from row 0, which must exist."""
    fields = {"vocab": 5, "indices": True, "num_logits": 0}
    with pytest.raises(DescriptorError, match="num_logits expected 1 or more if rows draw tokens"):
        SampleDescriptor(total_num_rows=2, **fields)
    assert SampleDescriptor(total_num_rows=0, **fields).num_logits == 0


@pytest.mark.parametrize(
    "fields", [{"top_p": True}, {"report": "logprob"}, {"report": "top_n", "top_n": 3}, {"probs_out": "filtered"}]
)
def test_more_tokens_than_a_sum_of_masses_holds_are_refused(fields):
    """A mass is at most 2^40, and a sum is an i64."""
    assert SampleDescriptor(total_num_rows=1, vocab=2**23 - 1, **fields)
    with pytest.raises(DescriptorError, match="vocab expected at most 8388607 if masses are added"):
        SampleDescriptor(total_num_rows=1, vocab=2**23, **fields)
    assert SampleDescriptor(total_num_rows=1, vocab=2**31 - 1, top_k=True, min_p=True)


def test_more_probabilities_than_a_sum_of_masses_holds_are_refused():
    for fields in ({}, {"form": "renorm"}, {"form": "mask", "top_p": True}):
        assert ProbabilitiesDescriptor(total_num_rows=1, vocab=2**23 - 1, **fields)
        with pytest.raises(DescriptorError, match="vocab expected at most 8388607 if masses are added"):
            ProbabilitiesDescriptor(total_num_rows=1, vocab=2**23, **fields)
    assert ProbabilitiesDescriptor(total_num_rows=1, vocab=2**23, form="mask", top_k=True, min_p=True)
