"""The error model race-f32: every token, rank and flag is checked against the fp64 set and keys of its row."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Target
from opfacade.plans.sampling import SampleDescriptor
from opfacade.testing import inputs, numerics, problems
from opfacade.testing.families.sampling.race import minus_log2_exponential, words
from tests.families.sampling.calls import call


def checked(descriptor, args):
    return numerics.check(descriptor, args, Plan.select(descriptor, target=Target.cpu()).sku).worst


def right(logits, **given):
    descriptor, args = call(logits, **given)
    Plan.select(descriptor, target=Target.cpu()).run(args)
    assert checked(descriptor, args) <= 1
    return descriptor, args


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_are_held(seed):
    descriptor = problems.random_descriptor("sample", 1000 + seed)
    args = inputs.make_args(descriptor, seed=seed)
    Plan.select(descriptor, target=Target.cpu()).run(args)
    assert checked(descriptor, args) <= 1


def test_any_other_token_is_wrong():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    descriptor, args = right(logits, top_k=10, offset=list(range(6)), temperature=[1.0, 0.0] * 3)
    for row in range(6):
        for token in {*range(50)} - {args.token[row].item()} | {-1, 50, 2**31 - 1}:
            other = args.token.clone()
            other[row] = token
            assert checked(descriptor, replace(args, token=other)) > 1


def test_a_race_that_is_close_is_decided_as_f32_may():
    """Two tokens whose keys differ by less than a kernel's bound: either is right for a kernel, but only one for fp64."""
    noise = minus_log2_exponential(words(1, 0, 0, 2))
    logits = torch.tensor([[0.0, float(noise[0] - noise[1]) * math.log(2) + 3e-6]])
    descriptor, args = call(logits)
    constants = dict(Plan.select(descriptor, target=Target.cpu()).sku.precision_guarantee.error_model.constants)
    f32 = constants | {"exp2": 2.0**-22, "key": 2.0**-17, "roundoff": 2.0**-24}
    for token in (0, 1):
        args.token.fill_(token), args.valid.fill_(1)
        assert (numerics.check(descriptor, args, Constants(f32)).worst <= 1, token) == (True, token)
    args.token.fill_(0)
    assert checked(descriptor, args) > 1


class Constants:
    """A SKU with other constants."""

    def __init__(self, constants):
        self.precision_guarantee = self.error_model = self
        self.constants = constants.items()


def test_wrong_flags_ranks_and_logprobs_are_seen():
    descriptor, args = right(torch.randn(3, 40), report="top_n", top_n=3, probs_out="filtered", top_p=0.9)
    spoiled = {
        "valid": 0, "rank": -1, "logprob": 0.5, "top_logprobs": 0.5, "top_tokens": 0, "probs": 0.1,
    }  # fmt: skip
    for name, value in spoiled.items():
        wrong = getattr(args, name).clone()
        wrong[1] = value
        assert checked(descriptor, replace(args, **{name: wrong})) > 1, name
    wrong = args.logprob.clone()
    wrong[2] += 1e-4
    assert checked(descriptor, replace(args, logprob=wrong)) > 1


def test_a_row_without_candidates_is_empty():
    descriptor, args = right([[-math.inf] * 5], report="top_n", top_n=2, probs_out="filtered")
    for name in ("token", "valid", "logprob", "rank", "top_tokens", "top_logprobs", "probs"):
        wrong = torch.zeros_like(getattr(args, name)) + 1
        assert checked(descriptor, replace(args, **{name: wrong})) > 1, name


def test_random_problems_reach_every_field():
    drawn = [problems.random_descriptor("sample", seed) for seed in range(200)]
    for name, field in SampleDescriptor.model_fields.items():
        if name not in ("op", "schema_version", "total_num_rows"):
            assert len({getattr(d, name) for d in drawn}) >= 2, (name, field)
    assert {d.bias for d in drawn} == {"none", "dense", "sparse"}
    assert {d.report for d in drawn} == {"none", "logprob", "top_n"}
    assert {(d.order, d.top_k and d.top_p) for d in drawn} == {(o, f) for o in ("joint", "top_k_first") for f in (False, True)}
