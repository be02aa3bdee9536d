"""The sampler of SGLang on fakes: tokens against a slow race, joint filters, seeds by position, log probabilities."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.families.sampling.calls import slow_token
from tests.integrations.fakes import put
from tests.integrations.fakes import sglang as fake
from tests.integrations.test_sglang import fakes

ALL = 1 << 30  # SGLang's top_k value for a request without top_k


@pytest.fixture
def sampler(monkeypatch):
    put(monkeypatch, **fakes())
    from opfacade.integrations.sglang.sampler import OpfacadeSampler

    return OpfacadeSampler()


def info(rows, **changed):
    given = {
        "temperatures": torch.linspace(0.5, 2.0, rows)[:, None], "top_ps": torch.ones(rows), "min_ps": torch.zeros(rows),
        "top_ks": torch.full((rows,), ALL, dtype=torch.int32), "sampling_seed": torch.arange(rows) + 5,
    }  # fmt: skip
    return fake.SamplingBatchInfo(**(given | changed))


def tokens(sampler, logits, given, positions=None, logprobs=False):
    positions = torch.arange(len(logits)) + 40 if positions is None else positions
    output = SimpleNamespace(next_token_logits=logits.clone())
    found = sampler(output, given, logprobs, [], [], positions)
    assert found.dtype == torch.int32
    assert sampler.synced[-1] is found
    return (found.tolist(), output.next_token_logprobs) if logprobs else found.tolist()


def test_tokens_are_those_of_a_slow_race(sampler):
    logits, given = torch.randn(5, 67) * 2, info(5)
    wanted = [
        slow_token((row / t).tolist(), 5 + b, 40 + b)
        for b, (row, t) in enumerate(zip(logits, given.temperatures[:, 0], strict=True))
    ]
    assert tokens(sampler, logits, given) == wanted
    assert tokens(sampler, logits.bfloat16(), given) == tokens(sampler, logits.bfloat16().float(), given)
    order = torch.randperm(5)
    moved = info(5, temperatures=given.temperatures[order], sampling_seed=given.sampling_seed[order])
    assert tokens(sampler, logits[order], moved, 40 + order) == [wanted[i] for i in order]


def test_log_probabilities_come_from_sglang_and_tokens_are_the_same(sampler):
    logits, given = torch.randn(5, 67) * 2, info(5, need_top_k_sampling=True, top_ks=torch.tensor([1, 2, 3, ALL, 60]).int())
    found, logprobs = tokens(sampler, logits, given, logprobs=True)
    assert found == tokens(sampler, logits, given)
    assert found[0] == logits[0].argmax()
    wanted = (logits / given.temperatures).log_softmax(-1).gather(1, torch.tensor(found)[:, None])[:, 0]
    torch.testing.assert_close(logprobs, wanted)


def ever(sampler, draws=300, **changed):
    """The set of tokens drawn from a row of four probabilities."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(draws, -1)
    flags = {f"need_{name[:-1]}_sampling": True for name in changed}
    columns = {name: torch.full((draws,), value) for name, value in changed.items()}
    given = info(draws, temperatures=torch.ones(draws, 1), sampling_seed=None, **columns, **flags)
    return sorted(set(tokens(sampler, logits, given)))


def test_filters_are_joint(sampler):
    torch.manual_seed(0)
    assert ever(sampler) == [0, 1, 2, 3]
    assert ever(sampler, top_ks=1) == [0]
    assert ever(sampler, top_ks=2, top_ps=0.5) == [0, 1]  # top_p of the whole distribution, not of the two tokens
    assert ever(sampler, top_ps=0.69) == [0, 1]
    assert ever(sampler, min_ps=0.4) == [0, 1, 2]


def test_what_a_draw_does_not_report_is_refused(sampler):
    with pytest.raises(errors.UnsupportedError, match=r"^sglang\.sampler: return_sampling_mask expected False"):
        tokens(sampler, torch.randn(2, 9), info(2, sampling_mask_batch_indices=torch.tensor([1])))
    sampler.rl_on_policy_target = "fsdp"
    with pytest.raises(errors.UnsupportedError, match="rl_on_policy_target expected None, got fsdp"):
        tokens(sampler, torch.randn(2, 9), info(2))


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_seed_without_positions_is_refused(sampler, logprobs):
    output = SimpleNamespace(next_token_logits=torch.randn(2, 9))
    with pytest.raises(
        errors.ArgumentError, match=r"^sglang\.sampler: positions expected a tensor beside sampling_seed, got None"
    ):
        sampler(output, info(2), logprobs, [], [], None)
    assert sampler(output, info(2, sampling_seed=None), logprobs, [], [], None).shape == (2,)


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_row_without_candidates_has_token_0(sampler, logprobs):
    logits = torch.full((3, 9), -torch.inf)
    logits[1] = torch.nan
    logits[2, 5] = 1.0
    found = tokens(sampler, logits, info(3), logprobs=logprobs)
    assert (found[0] if logprobs else found) == [0, 0, 5]


def test_the_backend_is_entered_beside_that_of_attention(monkeypatch):
    put(monkeypatch, **fakes())
    from sglang.srt.layers.sampler import factories

    from opfacade.integrations.sglang import register

    register()
    assert isinstance(factories["opfacade"](), fake.Sampler)
