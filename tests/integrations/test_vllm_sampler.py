"""The sampler of vLLM on fakes: one draw gives the tokens of vLLM's steps followed by a draw, and seeds stay with requests."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.families.sampling.calls import slow_token
from tests.integrations.fakes import put
from tests.integrations.fakes import vllm as fake

ROWS, VOCAB = 6, 103


def fakes():
    return {
        "vllm__v1__outputs": {"SamplerOutput": fake.SamplerOutput},
        "vllm__v1__sample__sampler": {"Sampler": fake.Sampler},
        "vllm__v1__worker__gpu_model_runner": {"Sampler": fake.Sampler},
        "vllm__v1__worker__gpu__sample__sampler": {"Sampler": fake.RunnerSampler},
        "vllm__v1__worker__gpu__model_runner": {"Sampler": fake.RunnerSampler},
    }


@pytest.fixture
def sampler(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.vllm.sampler import OpfacadeSampler

    return OpfacadeSampler()


def metadata(*processors, seeds=range(ROWS), **changed):
    """A step of six requests, the first of which is greedy; each has a generator."""
    given = {
        "temperature": torch.tensor([0.0, 0.5, 1.0, 1.5, 1e-6, 2.0]), "all_greedy": False, "all_random": False, "top_p": None,
        "top_k": None, "generators": {i: torch.Generator().manual_seed(s) for i, s in enumerate(seeds)},
        "max_num_logprobs": None, "no_penalties": True, "prompt_token_ids": None,
        "frequency_penalties": torch.tensor([0.5, 0.0, 2.0, -1.0, 0.0, 0.3]),
        "presence_penalties": torch.tensor([0.0, 1.0, -2.0, 0.0, 3.0, 0.1]),
        "repetition_penalties": torch.tensor([1.0, 2.0, 0.5, 1.2, 1.0, 3.0]), "output_token_ids": [],
        "allowed_token_ids_mask": None, "bad_words_token_ids": {}, "logitsprocs": fake.LogitsProcessors(processors),
    }  # fmt: skip
    return fake.SamplingMetadata(**(given | changed))


def logits():
    torch.manual_seed(3)
    return torch.randn(ROWS, VOCAB) * 3


def tokens(sampler, given, rows=None):
    out = sampler((logits() if rows is None else rows).clone(), given)
    assert out.sampled_token_ids.dtype == torch.int32
    assert out.sampled_token_ids.shape == (ROWS, 1)
    return out.sampled_token_ids[:, 0].tolist()


class Nothing:
    """A processor that a draw does not support."""

    def __init__(self, greedy):
        self.greedy = greedy

    def is_argmax_invariant(self):
        return self.greedy

    def apply(self, rows):
        return rows


def words(count, low=0):
    return torch.randint(low, VOCAB, (ROWS, count), generator=torch.Generator().manual_seed(8)).tolist()


FILTERS = {
    "top_k": torch.tensor([3, 5, 103, 1, 2, 40], dtype=torch.int32),
    "top_p": torch.tensor([1.0, 0.5, 0.9, 0.1, 1.0, 0.7]),
}
PENALTIES = {
    "no_penalties": False,
    "prompt_token_ids": torch.tensor([[*row[: 4 + i % 3], *[VOCAB] * (2 - i % 3)] for i, row in enumerate(words(6))]),
    # Likely tokens, some repeated, so that each penalty affects the result.
    "output_token_ids": [
        [*row, *row[:2]][:length] for row, length in zip(logits().topk(6).indices.tolist(), (6, 0, 3, 8, 1, 8), strict=True)
    ],
}
BIASES = {0: {102: 30.0}, 2: {5: 4.0, 7: -2.0, 9: 3.0}, 5: {1: -100.0}}
CASES = {
    "plain": ({}, list),
    "filters": (FILTERS, list),
    "min_p": ({"top_k": FILTERS["top_k"]}, lambda: [fake.MinPLogitsProcessor([0.1, 0.2, 0.0, 0.5, 0.1, 0.05])]),
    "penalties": (PENALTIES, list),
    "penalties of first tokens": (PENALTIES | {"output_token_ids": [[]] * ROWS}, list),
    "biases": ({}, lambda: [fake.LogitBiasLogitsProcessor(BIASES), fake.MinTokensLogitsProcessor({})]),
    "allowed": ({"allowed_token_ids_mask": torch.arange(VOCAB).expand(ROWS, -1) % 7 != 3}, list),
    "all of them": (
        FILTERS | PENALTIES | {"allowed_token_ids_mask": torch.arange(VOCAB).expand(ROWS, -1) % 3 == 1},
        lambda: [fake.LogitBiasLogitsProcessor(BIASES), fake.MinPLogitsProcessor([0.0] * ROWS)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_draw_gives_the_tokens_of_vllms_steps(sampler, case):
    changed, processors = CASES[case]
    found = tokens(sampler, metadata(*processors(), **changed))
    assert sampler.adjusted == 0  # vLLM's own steps did not run
    assert tokens(sampler, metadata(*processors(), Nothing(True), **changed)) == found
    assert tokens(sampler, metadata(*processors(), Nothing(False), **changed)) == found
    assert sampler.adjusted == 2
    plain = tokens(sampler, metadata())
    assert (found == plain) is (case == "plain")


def test_greedy_rows_are_greedy_and_others_are_a_slow_race(sampler):
    found, x = tokens(sampler, metadata()), logits()
    assert [found[0], found[4]] == x[[0, 4]].argmax(-1).tolist()
    for row, t in ((1, 0.5), (2, 1.0), (3, 1.5), (5, 2.0)):
        seed = int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=torch.Generator().manual_seed(row), dtype=torch.int64))
        assert found[row] == slow_token((x[row] / torch.tensor(t)).tolist(), seed, 0)
    everyone = tokens(sampler, metadata(all_greedy=True, temperature=None))
    assert everyone == x.argmax(-1).tolist()
    assert tokens(sampler, metadata(Nothing(True), all_greedy=True, temperature=None)) == everyone


def test_a_generator_stays_with_its_request_in_any_row(sampler):
    t = torch.full((ROWS,), 1.3)
    given = metadata(temperature=t, all_random=True, seeds=[9, 8, 7, 6, 5, 4])
    first, second = tokens(sampler, given), tokens(sampler, given)
    assert first != second  # the generators advance
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    moved = metadata(temperature=t, all_random=True, seeds=[[9, 8, 7, 6, 5, 4][i] for i in order])
    assert tokens(sampler, moved, logits()[order]) == [first[i] for i in order]
    assert tokens(sampler, moved, logits()[order]) == [second[i] for i in order]
    torch.manual_seed(1)
    rows = logits()[:1].expand(ROWS, -1)
    assert len(set(tokens(sampler, metadata(temperature=t * 5, all_random=True, generators={}), rows))) > 2


def test_min_p_before_top_p_leaves_the_mass_that_top_p_refers_to(sampler):
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(ROWS, 1)
    given = {"temperature": torch.ones(ROWS), "all_random": True, "top_p": torch.full((ROWS,), 0.56)}
    drawn = set()
    for seed in range(60):  # min_p leaves 0.4 and 0.3; the first has a share of 0.57
        step = metadata(fake.MinPLogitsProcessor([0.6] * ROWS), seeds=range(seed, seed + ROWS), **given)
        drawn |= set(tokens(sampler, step, rows))
    assert drawn == {0}


def test_log_probabilities_and_bad_words_are_those_of_vllm(sampler):
    given = metadata(max_num_logprobs=0)
    out = sampler(logits(), given)
    assert out.sampled_token_ids[:, 0].tolist() == tokens(sampler, metadata())
    assert torch.equal(out.logprobs_tensors, logits().log_softmax(-1).gather(1, out.sampled_token_ids.long()))
    banned = tokens(sampler, metadata(bad_words_token_ids={0: [[int(logits()[0].argmax())]]}))
    assert banned[0] == logits()[0].sort(descending=True).indices[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bits_need_no_copy(sampler, dtype):
    assert tokens(sampler, metadata(), logits().to(dtype)) == tokens(sampler, metadata(), logits().to(dtype).float())


def test_a_bias_that_changed_is_copied_again(sampler):
    bias = fake.LogitBiasLogitsProcessor({0: {3: 90.0}})
    assert tokens(sampler, metadata(bias))[0] == 3
    bias.biases[0] = {4: 90.0, 5: 95.0, 6: 1.0}
    bias.bias_tensor = bias.bias_tensor.clone()
    assert tokens(sampler, metadata(bias))[0] == 5
    assert tokens(sampler, replace(metadata(bias), no_penalties=True))[0] == 5


def test_processed_log_probabilities_are_refused(sampler):
    for mode in ("processed_logprobs", "processed_logits"):
        with pytest.raises(
            errors.UnsupportedError, match=f"vllm.sampler: logprobs_mode expected raw_logprobs or raw_logits, got {mode}"
        ):
            type(sampler)(mode)
        with pytest.raises(errors.UnsupportedError, match="logprobs_mode"):
            sampler(logits(), metadata(), logprobs_mode_override=mode)
    with pytest.raises(errors.DTypeError, match=r"^vllm\.sampler: logits expected f32 or bf16 or f16"):
        sampler(logits().double(), metadata())


WRONG = {
    "a mask of another vocabulary": (
        {"allowed_token_ids_mask": torch.zeros(ROWS, VOCAB - 1).bool()}, list, errors.ShapeError,
        r"allowed_token_ids_mask expected \[6, 103\], that of logits, got \[6, 102\]",
    ),
    "a mask of integers": (
        {"allowed_token_ids_mask": torch.zeros(ROWS, VOCAB).int()}, list, errors.DTypeError,
        r"allowed_token_ids_mask expected torch\.bool, got torch\.int32",
    ),
    "penalties without a prompt": (
        PENALTIES | {"prompt_token_ids": None}, list, errors.ArgumentError, "prompt_token_ids expected a tensor",
    ),
    "a bias of another batch": (
        {}, lambda: [fake.LogitBiasLogitsProcessor({ROWS: {1: 2.0}})], errors.ShapeError, "biases expected requests below 6",
    ),
    "a bias of a token beyond 32 bits": (
        {}, lambda: [fake.LogitBiasLogitsProcessor({0: {1: 2.0, 2**31: 2.0}})], errors.DTypeError,
        "biases expected token ids of 32 bits, each with a number",
    ),
    "a bias of a token beyond 64 bits": (
        {}, lambda: [fake.LogitBiasLogitsProcessor({0: {2**64: 2.0}})], errors.DTypeError,
        "biases expected token ids of 32 bits",
    ),
    "a bias of no request": (
        {}, lambda: [fake.LogitBiasLogitsProcessor({-1: {1: 2.0}})], errors.ShapeError, "biases expected requests below 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_step_that_does_not_fit_is_refused_by_name(sampler, case):
    changed, processors, kind, message = WRONG[case]
    step = metadata(*processors(), **changed)
    for _ in range(2):  # nothing of the refused step is kept
        with pytest.raises(kind, match=rf"^vllm\.sampler: {message}"):
            sampler(logits(), step)


def test_a_row_without_candidates_has_token_0(sampler):
    rows = logits()
    rows[:3] = -torch.inf
    rows[1] = torch.nan
    banned = torch.zeros(ROWS, VOCAB, dtype=torch.bool)
    banned[3] = True
    found = tokens(sampler, metadata(allowed_token_ids_mask=banned), rows)
    assert found[:4] == [0] * 4
    assert found[4] == rows[4].argmax()


def test_both_runners_find_their_sampler(monkeypatch):
    put(monkeypatch, **fakes())
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner

    from opfacade.integrations.vllm import register_sampler

    register_sampler()
    assert isinstance(gpu_model_runner.Sampler(logprobs_mode="raw_logits", use_fp64_gumbel=False), fake.Sampler)
    assert gpu_model_runner.Sampler.__module__ == "opfacade.integrations.vllm.sampler"
    assert isinstance(model_runner.Sampler(**RUNNER), fake.RunnerSampler)
    assert model_runner.Sampler.__module__ == "opfacade.integrations.vllm.second_sampler"


def test_a_runner_without_the_name_is_refused_and_none_is_replaced(monkeypatch):
    put(monkeypatch, **fakes() | {"vllm__v1__worker__gpu__model_runner": {}})
    from vllm.v1.worker import gpu_model_runner

    from opfacade.integrations.vllm import register_sampler

    with pytest.raises(errors.UnsupportedError, match=r"vllm\.register: vllm expected 0\.33\.0.*Sampler"):
        register_sampler()
    assert gpu_model_runner.Sampler is fake.Sampler


RUNNER = {"vllm_config": None, "max_num_reqs": 9, "vocab_size": VOCAB, "device": "cpu", "req_states": None}
T = [0.0, 0.5, 1.0, 1.5, 1.0, 2.0]


@pytest.fixture
def second(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.vllm.second_sampler import OpfacadeRunnerSampler

    return OpfacadeRunnerSampler


def drawn(sampler, rows=None, order=range(ROWS), positions=range(50, 50 + ROWS), **filters):
    """Tokens of a step of the second runner: request b has state 8 - b, seed 100 - b and a position."""
    order = list(order)
    states, slot = sampler.sampling_states, torch.tensor([8 - b for b in range(ROWS)])
    given = {"temperature": T, "seeds": [100 - b for b in range(ROWS)], **filters}
    for name, values in given.items():
        getattr(states, name).gpu[slot] = torch.as_tensor(values, dtype=getattr(states, name).gpu.dtype)
    x = logits() if rows is None else rows
    found, _ = sampler.sample(x[order], slot[order], None, None, torch.tensor([positions[b] for b in order]), None, None, None)
    assert found.dtype == torch.int64  # the runner indexes with them
    return found.tolist()


def test_the_second_runner_draws_by_seed_and_position(second):
    sampler, x = second(**RUNNER), logits()
    found = drawn(sampler)
    assert found[0] == x[0].argmax()
    for row in range(1, ROWS):
        assert found[row] == slow_token((x[row] / torch.tensor(T[row])).tolist(), 100 - row, 50 + row)
    order = [4, 0, 5, 2, 1, 3]
    assert drawn(sampler, order=order) == [found[row] for row in order]
    assert drawn(sampler, positions=range(60, 60 + ROWS))[1:] != found[1:]


def test_the_second_runner_filters_by_top_k_then_top_p(second):
    rows, sampler = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(ROWS, 1), second(**RUNNER)
    kept = {"none": {0, 1, 2, 3}, "top_k": {0, 1}, "top_p": {0, 1, 2}, "both": {0}, "min_p": {0, 1}}
    given = {
        "none": {}, "top_k": {"top_k": [2] * ROWS}, "top_p": {"top_p": [0.85] * ROWS}, "min_p": {"min_p": [0.6] * ROWS},
        "both": {"top_k": [2] * ROWS, "top_p": [0.56] * ROWS},  # of the mass that top_k leaves, the first token has 0.57
    }  # fmt: skip
    for name, wanted in kept.items():
        full = {"top_k": [4] * ROWS, "top_p": [1.0] * ROWS, "min_p": [0.0] * ROWS, "temperature": [1.0] * ROWS}
        found = [drawn(sampler, rows, positions=range(9 * i, 9 * i + ROWS), **full | given[name]) for i in range(40)]
        assert {token for tokens in found for token in tokens} == wanted, name


def test_the_second_runner_refuses_what_needs_filtered_logits_at_start(second):
    for mode in ("processed_logprobs", "processed_logits"):
        with pytest.raises(errors.UnsupportedError, match=f"logprobs_mode expected raw_logprobs or raw_logits, got {mode}"):
            second(**RUNNER, logprobs_mode=mode)
    with pytest.raises(errors.UnsupportedError, match=r"vllm\.sampler: return_sampling_mask expected False, got True"):
        second(**RUNNER, return_sampling_mask=True)


class Offset:
    """A GPU generator, which has a position."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, seed):
        self.seed, self.position = seed, 0

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.position

    def set_offset(self, position):
        self.position = position


def test_a_generator_of_a_gpu_gives_its_seed_and_its_position(sampler):
    mine, x = Offset(2**64 - 5), logits()
    given = metadata(temperature=torch.ones(ROWS), all_random=True, generators={3: mine, 9: Offset(1)})
    wanted = [slow_token(x[3].tolist(), -5, place) for place in range(3)]
    assert [tokens(sampler, given)[3] for _ in range(3)] == wanted
    mine.set_offset(mine.get_offset() - 4)  # as vLLM does when it discards a token
    assert tokens(sampler, given)[3] == wanted[2]
