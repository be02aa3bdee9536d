"""A candidate is timed only after a correct call: with overwritten outputs, and restored states."""

import math

import pytest
import torch

from opfacade import Plan, Preference, Target, errors
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.select.registry import examples
from opfacade.testing import numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.inputs import make_args
from opfacade.testing.numerics import Report
from opfacade.tune.tune import eligible, proven

MERGE = MergeStatesDescriptor(num_states=3, total_num_rows=5, num_heads=2, head_dim=64, dtype="f32")
IN_PLACE = MERGE.model_copy(update={"in_place": True}).revalidated()


@pytest.mark.parametrize("worst", [1.01, math.inf, math.nan])
def test_a_candidate_beyond_its_bound_is_refused(monkeypatch, worst):
    monkeypatch.setattr(numerics, "check", lambda *given, **more: Report(worst, worst, "o[3]", 1))
    with pytest.raises(errors.OpfacadeError, match="OPF-T002"):
        proven(Plan.select(MERGE, target=Target.cpu()), make_args(MERGE, seed=1))


@pytest.mark.parametrize("descriptor", [MERGE, IN_PLACE], ids=["apart", "in place"])
def test_every_candidate_is_judged_on_the_same_call(monkeypatch, descriptor):
    plan, args = Plan.select(descriptor, target=Target.cpu()), make_args(descriptor, seed=1)
    given = args.states_o.clone()
    for _ in range(2):
        call, worst = proven(plan, args)
        assert worst <= 1
        assert same_bits(args.states_o, given)
    call()
    assert descriptor is MERGE or not same_bits(args.states_o, given)


def test_what_another_candidate_wrote_is_spoiled_first(monkeypatch):
    """A plan that writes nothing is wrong, although the right result was there before it ran."""
    plan, args = Plan.select(MERGE, target=Target.cpu()), make_args(MERGE, seed=1)
    proven(plan, args)
    assert bool(args.o.isfinite().all())
    monkeypatch.setattr(Plan, "run", lambda self, args, workspace=None: None)
    with pytest.raises(errors.OpfacadeError, match="OPF-T002"):
        proven(plan, args)
    assert bool(torch.isnan(args.o).all())


def test_the_reference_is_measured_where_no_kernel_fits_and_nowhere_else():
    decode = next(e for e in examples() if e.op == "paged_decode")
    odd = decode.model_copy(update={"paged_kv": decode.paged_kv.model_copy(update={"head_dim": 65})}).revalidated()
    found = [eligible(problem, Preference(), Target.parse("sm_90a")) for problem in (decode, odd)]
    assert [{option.candidate.backend for option in options} for options in found] == [{"cuda"}, {"reference"}]
