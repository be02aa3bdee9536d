"""Filtered distributions: softmax, renormalised probabilities and masked logits against torch, and the bits of batches."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import DescriptorError
from opfacade.plans.sampling import ProbabilitiesArgs, ProbabilitiesDescriptor
from opfacade.testing import determinism, numerics, problems
from opfacade.testing.bits import same_bits
from opfacade.testing.subject import Subject
from tests import emulator
from tests.families.sampling.calls import NAMES, column, split_as
from tests.support.assert_guarantee import hold

PLACES = [pytest.param("host", marks=emulator.needed), pytest.param("gpu", marks=pytest.mark.gpu)]
BACKENDS = [None, pytest.param(emulator.subject, marks=emulator.needed)]
FORMS = ("softmax", "renorm", "mask")


def of(place, form):
    descriptor = ProbabilitiesDescriptor(total_num_rows=4, vocab=1003, form=form, top_k=True, top_p=True, min_p=True)
    return emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda")


def written(x, form, subject=None, **given):
    """The output of a run."""
    x = torch.as_tensor(x)
    tensors = {n: column(v, n, len(x)) for n, v in given.items() if n not in ("order", "max_top_k")}
    fields = {n: n in given for n in ("temperature", "top_k", "top_p", "min_p", "num_valid")}
    fields |= {n: v for n, v in given.items() if n not in tensors}
    descriptor = ProbabilitiesDescriptor(total_num_rows=len(x), vocab=x.shape[1], form=form, dtype=NAMES[x.dtype], **fields)
    out = torch.full(x.shape, 77.0, dtype=x.dtype if form == "mask" else torch.float32)
    args = ProbabilitiesArgs(x=x, **{descriptor.output: out}, **tensors)
    plan = subject(descriptor) if subject else Plan.select(descriptor, target=Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, (plan.plan if subject else plan).sku).worst <= 1
    return out


@pytest.mark.parametrize("subject", BACKENDS)
def test_softmax_without_filters_is_that_of_torch(subject):
    x = torch.randn(3, 400, generator=torch.Generator().manual_seed(1)) * 3
    torch.testing.assert_close(written(x, "softmax", subject), x.softmax(-1), rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(written(x, "softmax", subject, temperature=0.5), (x / 0.5).softmax(-1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("subject", BACKENDS)
def test_filters_leave_a_prefix_of_the_order(subject):
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3, 0.0]])
    close = {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(written(p, "renorm", subject, top_k=2), torch.tensor([[0, 4 / 7, 0, 3 / 7, 0]]), **close)
    torch.testing.assert_close(written(p * 5, "renorm", subject, top_p=0.5), torch.tensor([[0, 4 / 7, 0, 3 / 7, 0]]), **close)
    torch.testing.assert_close(written(p, "renorm", subject, min_p=0.6), torch.tensor([[0, 4 / 7, 0, 3 / 7, 0]]), **close)
    torch.testing.assert_close(written(p, "renorm", subject), p, **close)
    joint = written(p, "renorm", subject, top_k=2, top_p=0.5, order="joint")
    assert (joint > 0).tolist() == [[False, True, False, True, False]]
    first = written(p, "renorm", subject, top_k=2, top_p=0.5)
    assert first.tolist() == [[0, 1, 0, 0, 0]]


@pytest.mark.parametrize("subject", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_filter_that_is_no_number_is_off(subject, form):
    x = torch.tensor([[0.1, 0.4, 0.2, 0.3]] * 6)
    want = written(x, form, subject)[:1].expand(6, -1)
    nan, inf = math.nan, math.inf
    assert same_bits(written(x, form, subject, min_p=[nan, -nan, 0.0, -0.0, -1.0, -inf]), want)
    assert same_bits(written(x, form, subject, top_p=[nan, -nan, 1.0, 1.5, 2.0, inf]), want)
    assert (written(x, form, subject, min_p=[1.0, 1.5, inf, 3e38, 2.0, 1.0]) > 0).sum(-1).tolist() == [1] * 6


@pytest.mark.parametrize("subject", BACKENDS)
def test_masked_logits_are_as_they_were(subject):
    inf = math.inf
    x = torch.tensor([[3e38, -0.0, 0.0, math.nan, -inf], [-1.0, -2.0, -1.0, -1.0, 5.0], [-inf] * 5])
    out = written(x, "mask", subject, top_k=2)
    assert out.tolist()[1:] == [[-1.0, -inf, -inf, -inf, 5.0], [-inf] * 5]
    assert same_bits(out[0, :2], x[0, :2])
    assert out[0, 2:].tolist() == [-inf] * 3


@pytest.mark.parametrize("form", FORMS)
def test_a_row_without_candidates_is_empty_and_rows_that_are_not_valid_stay(form):
    x = torch.full((3, 7), math.nan)
    for subject in (None, emulator.subject) if emulator.compiler() else (None,):
        out = written(x, form, subject, num_valid=[2])
        assert out.tolist() == [[-math.inf if form == "mask" else 0.0] * 7] * 2 + [[77.0] * 7]


def test_fields_that_contradict_are_refused():
    with pytest.raises(DescriptorError, match="temperature expected False for probabilities"):
        ProbabilitiesDescriptor(total_num_rows=1, vocab=4, form="renorm", temperature=True)
    with pytest.raises(DescriptorError, match="max_top_k"):
        ProbabilitiesDescriptor(total_num_rows=1, vocab=4, max_top_k=3)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems(place, seed):
    descriptor = problems.random_descriptor("probabilities", 10 + seed)
    hold(emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda"), seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_a_row_has_its_bits_in_any_batch(place, form):
    shown = determinism.batch_invariance(of(place, form), determinism.Campaign(2, 2, 4, 1), seed=1)
    assert shown.different == 0 < shown.compared


@emulator.needed
@pytest.mark.parametrize("form", FORMS)
def test_no_number_of_ctas_changes_a_bit(form):
    subject = of("host", form)
    args = subject.args(5)
    subject.run(args)
    out = getattr(args, subject.descriptor.output)
    want = out.clone()
    for ctas, held in ((2, 10**5), (4, 0)):
        out.fill_(77)
        with split_as(ctas, held):
            of("host", form).run(args)
        assert same_bits(out, want)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_runs_repeat_bitwise(form):
    assert determinism.run_to_run(of("gpu", form), 40, seed=1).different == 0


def test_wrong_outputs_are_seen():
    x = torch.randn(2, 30)
    for form in FORMS:
        given = x.softmax(-1) if form == "renorm" else x
        descriptor = ProbabilitiesDescriptor(total_num_rows=2, vocab=30, form=form, top_k=True)
        out = written(given, form, top_k=5)
        args = ProbabilitiesArgs(x=given, **{descriptor.output: out}, top_k=torch.tensor([5, 5], dtype=torch.int32))
        sku = Plan.select(descriptor, target=Target.cpu()).sku
        assert numerics.check(descriptor, args, sku).worst <= 1
        out[1, given[1].argmax()] += 1e-3
        assert numerics.check(descriptor, args, sku).worst > 1
