"""Sampling as ops of torch: torch's own checks for every example, and a compiled step that draws the tokens of eager mode."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from opfacade import Plan
from opfacade.plans.sampling import EXAMPLES, SampleDescriptor, VerifyDraftsDescriptor
from tests.torch_ops.test_ops import CPU, call_of, dtypes_of, made_of, op, with_weight

OPS = torch.ops.opfacade
VOCAB, WIDTH = 97, 16


def without_count(descriptor):
    """Rows past num_valid may have any bits, so two runs of a functional form differ there."""
    return type(descriptor).model_validate(descriptor.model_dump() | {"num_valid": False})


@pytest.mark.parametrize("descriptor", [with_weight(without_count(example)) for example in EXAMPLES])
def test_torch_checks_pass_for_every_example(descriptor):
    torch.library.opcheck(op(descriptor.op), call_of(descriptor)[2])
    plan, args, _ = call_of(descriptor)
    given = [plan.handle, *made_of(descriptor, args)]
    torch.library.opcheck(op(f"{descriptor.op}_functional"), given, dtypes_of(descriptor, args))


def step(weight, hidden, controls, plan):
    """The end of a decode: logits, and the token of each row."""
    logits = hidden @ weight
    written = {"return_logprob": False, "return_rank": False, "return_probs": False}
    none = {"return_top_tokens": False, "return_top_logprobs": False}
    token = OPS.sample_functional(plan, [0], [0], logits, **controls, **written, **none)[0]
    return token * 2  # an operation after it, inside the graph


def step_in_place(weight, hidden, controls, plan):
    """The same with outputs that the caller allocates."""
    logits = hidden @ weight
    token, valid = hidden.new_empty(len(hidden), dtype=torch.int32), hidden.new_empty(len(hidden), dtype=torch.uint8)
    OPS.sample(plan, logits, controls["seed"], controls["offset"], token, valid, **{n: controls[n] for n in FILTERS})
    return token * 2


FILTERS = ("temperature", "top_k", "top_p")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("function", [step, step_in_place])
def test_a_compiled_step_draws_the_tokens_of_eager_mode(function, backend):
    torch._dynamo.reset()
    torch.manual_seed(2)
    weight, counter, counts = torch.randn(WIDTH, VOCAB), CompileCounterWithBackend(backend), []
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    drawn = set()
    for rows in (3, 5, 8, 4):
        descriptor = SampleDescriptor(total_num_rows=rows, vocab=VOCAB, top_k=True, top_p=True)
        plan = Plan.select(descriptor, target=CPU)
        controls = {
            "temperature": torch.linspace(0.0, 1.0, rows),
            "top_k": torch.arange(rows, dtype=torch.int32),
            "top_p": torch.full((rows,), 0.9),
            "seed": torch.arange(rows),
            "offset": torch.full((rows,), 7),
        }
        hidden = torch.randn(rows, WIDTH)
        with torch.no_grad():
            found = compiled(weight, hidden, controls, plan.handle)
        assert torch.equal(found, function(weight, hidden, controls, plan.handle))
        assert found[0] == 2 * (hidden @ weight)[0].argmax()
        drawn |= set(found.tolist())
        counts.append(counter.frame_count)
    assert len(drawn) > 5
    assert counts == [1, 2, 2, 2]  # sizes and the plan are symbols in the second graph


def test_a_compiled_verification_accepts_the_drafts_of_eager_mode():
    torch._dynamo.reset()
    descriptor = VerifyDraftsDescriptor(kind="coupled", batch_size=4, num_drafts=3, vocab=VOCAB)
    plan = Plan.select(descriptor, target=CPU)
    drafts = torch.randint(VOCAB, (4, 3), dtype=torch.int32)
    target = torch.cat([drafts, torch.full((4, 1), 5, dtype=torch.int32)], 1)
    target[2, 1] += 1

    def verified(drafts, target, plan):
        return OPS.verify_drafts_functional(plan, drafts, target_tokens=target, return_nodes=False)[:3]

    tokens, accepted, emitted = torch.compile(verified, backend="aot_eager", fullgraph=True)(drafts, target, plan.handle)
    assert accepted.tolist() == [3, 3, 1, 3]
    assert emitted.tolist() == [4, 4, 2, 4]
    assert torch.equal(tokens[0], target[0])
    assert tokens[2].tolist() == [*target[2, :2].tolist(), -1, -1]
