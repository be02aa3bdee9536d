"""GPU tests of sampling: every token is verified at real sizes, and batches, runs and graphs have equal bits."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.sampling import EXAMPLES, SampleDescriptor
from opfacade.testing import determinism, inputs, numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.subject import Subject
from tests.support.assert_guarantee import hold

pytestmark = pytest.mark.gpu

FILTERS = [
    {},
    {"top_k": True, "top_p": True},
    {"top_p": True},
    {"min_p": True},
    {"top_k": True, "top_p": True, "order": "joint"},
]
SAMPLES = [example for example in EXAMPLES if example.op == "sample"]


def written(descriptor):
    return [name for name, spec in descriptor.operands().items() if spec.written]


@pytest.mark.parametrize("descriptor", SAMPLES, ids=lambda d: d.digest()[:6])
def test_runs_repeat_bitwise(descriptor):
    shown = determinism.run_to_run(Subject(descriptor, "cuda", "cuda"), 40, seed=1)
    assert shown.different == 0


@pytest.mark.parametrize("descriptor", SAMPLES, ids=lambda d: d.digest()[:6])
def test_a_row_has_its_bits_in_any_batch(descriptor):
    shown = determinism.batch_invariance(Subject(descriptor, "cuda", "cuda"), determinism.QUICK, seed=1)
    assert shown.different == 0 < shown.compared


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("vocab", [32000, 128256, 151936, 262145])
def test_every_token_of_a_large_vocabulary_is_proven(vocab, dtype, filters):
    hold(Subject(SampleDescriptor(total_num_rows=9, vocab=vocab, dtype=dtype, **filters), "cuda", "cuda"), 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_flat_rows_keep_a_wide_nucleus(temperature):
    descriptor = SampleDescriptor(total_num_rows=16, vocab=128256, top_p=True, report="logprob", probs_out="filtered")
    args = inputs.make_args(descriptor, seed=2, device="cuda")
    args.logits.normal_()
    args.temperature.fill_(temperature), args.top_p.fill_(0.9)
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst <= 1


def test_a_graph_replays_with_new_numbers():
    descriptor = SampleDescriptor(total_num_rows=5, vocab=32000, top_k=True, num_valid=True)
    plan, args = Plan.select(descriptor, Preference(backend="cuda")), inputs.make_args(descriptor, seed=2, device="cuda")
    plan.run(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for seed in range(5):
        new = inputs.make_args(descriptor, seed=seed, device="cuda")
        for name in type(args).__slots__:
            if getattr(args, name) is not None:
                getattr(args, name).copy_(getattr(new, name))
        plan.run(replace(new))
        graph.replay()
        assert all(same_bits(getattr(args, name), getattr(new, name)) for name in ("token", "valid"))
