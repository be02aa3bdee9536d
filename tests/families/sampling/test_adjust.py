"""Adjusted logits in place: the numbers from which `sample` draws."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import DescriptorError
from opfacade.plans.sampling import AdjustLogitsArgs, AdjustLogitsDescriptor
from opfacade.testing import determinism, problems
from opfacade.testing.subject import Subject
from tests import emulator
from tests.support.assert_guarantee import hold

PLACES = [pytest.param("host", marks=emulator.needed), pytest.param("gpu", marks=pytest.mark.gpu)]
KINDS = {
    "penalties": {"penalties": True, "temperature": True, "dtype": "bf16"},
    "list": {"bias": "sparse", "num_biases": 9, "bitmask": True},
    "capped": {"bias": "dense", "soft_cap": 5.0, "dtype": "f16"},
}


def of(place, kind, rows=4, vocab=1003):
    descriptor = AdjustLogitsDescriptor(total_num_rows=rows, vocab=vocab, **KINDS[kind])
    return emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda")


@pytest.mark.parametrize("subject", [None, pytest.param(emulator.subject, marks=emulator.needed)])
def test_each_operation_comes_in_its_order(subject):
    """(((4 + 1) / 2) - 0.5 * 3) - 0.25, capped at 2, divided by 0.5; NaN is not a candidate."""
    fields = {"bias": "dense", "penalties": True, "soft_cap": 2.0, "temperature": True}
    descriptor = AdjustLogitsDescriptor(total_num_rows=1, vocab=4, **fields)
    args = AdjustLogitsArgs(
        logits=torch.tensor([[4.0, -1.0, 0.5, math.nan]]), bias=torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
        prompt_mask=torch.tensor([[False, True, False, False]]), output_counts=torch.tensor([[3, 0, 0, 0]], dtype=torch.int32),
        temperature=torch.tensor([0.5]), repetition=torch.tensor([2.0]), frequency=torch.tensor([0.5]),
        presence=torch.tensor([0.25]),
    )  # fmt: skip
    (subject(descriptor) if subject else Plan.select(descriptor, target=Target.cpu())).run(args)
    want = torch.tensor([[math.tanh(x / 2) * 2 / 0.5 for x in (0.75, -2.0, 0.5)] + [-math.inf]])
    torch.testing.assert_close(args.logits, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_it_keeps_its_guarantee(place, kind):
    for seed in range(3):
        hold(of(place, kind), seed)


@pytest.mark.parametrize("seed", range(12))
def test_random_problems_on_the_reference(seed):
    hold(Subject(problems.random_descriptor("adjust_logits", seed), "reference", "cpu"), seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_row_has_its_bits_in_any_batch(place, kind):
    shown = determinism.batch_invariance(of(place, kind), determinism.Campaign(2, 2, 4, 1), seed=1)
    assert shown.different == 0 < shown.compared


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_runs_repeat_bitwise(kind):
    assert determinism.run_to_run(of("gpu", kind), 40, seed=1).different == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("vocab", "count"), [(70003, 300), (4200, 2100)], ids=["indexed", "beyond_the_index"])
def test_a_long_list_reaches_its_tokens_alone(place, vocab, count):
    """Tokens for every bit of the flags, tokens whose flags coincide, a repeated token, and ids outside the vocabulary."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(vocab, (1, count), generator=generator, dtype=torch.int32)
    tokens[0, :64] = torch.arange(4096, 4160)
    tokens[0, 64:72] = torch.tensor([3, 3 + 65536, 3, vocab - 1, -1, vocab, 2**31 - 1, 4101])
    values = torch.randn(1, count, generator=generator)
    logits = torch.randn(1, vocab, generator=generator)
    wanted = logits.clone()
    for token, value in zip(tokens[0].tolist(), values[0].tolist(), strict=True):
        if 0 <= token < vocab:
            wanted[0, token] += value
    descriptor = AdjustLogitsDescriptor(total_num_rows=1, vocab=vocab, bias="sparse", num_biases=count)
    subject = emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda")
    tensors = (x.to(subject.device) for x in (logits, tokens, values))
    args = AdjustLogitsArgs(**dict(zip(("logits", "bias_tokens", "bias_values"), tensors, strict=True)))
    subject.run(args)
    assert torch.equal(args.logits.cpu(), wanted)


@pytest.mark.parametrize("cap", [1e-50, 1e-46, 2.0**-127])
def test_a_cap_that_f32_has_no_normal_number_for_is_refused(cap):
    with pytest.raises(DescriptorError, match=r"soft_cap expected 0 or at least 2\^-126, because kernels divide by it in f32"):
        AdjustLogitsDescriptor(total_num_rows=1, vocab=4, soft_cap=cap)


def test_the_least_cap_gives_no_nan():
    descriptor = AdjustLogitsDescriptor(total_num_rows=1, vocab=4, soft_cap=2.0**-126)
    logits = torch.tensor([[0.0, 1.0, -2.0, math.inf]])
    Plan.select(descriptor, target=Target.cpu()).run(AdjustLogitsArgs(logits=logits))
    assert logits.tolist() == [[0.0, 2.0**-126, -(2.0**-126), 2.0**-126]]
