"""Draws one token per row, greedy, with top-k or with top-p, in one launch. The same seed gives the same token."""

import torch
from common import DEVICE, bf16, i32

from opfacade.plans.sampling import SampleArgs, SampleDescriptor, SamplePlan

plan = SamplePlan.select(SampleDescriptor(total_num_rows=3, vocab=1000, dtype="bf16", top_k=True, top_p=True))
logits = 3 * bf16(3, 1000)


def draw():
    args = SampleArgs(
        logits=logits,
        temperature=torch.tensor([0.0, 0.8, 1.0], device=DEVICE),  # 0 is greedy
        top_k=i32([0, 5, 0]),  # 0 is off
        top_p=torch.tensor([1.0, 1.0, 0.5], device=DEVICE),  # 1 is off
        seed=torch.tensor([1, 2, 3], device=DEVICE),
        offset=torch.tensor([17, 0, 5], device=DEVICE),  # the token's position in its request
        token=i32([-2, -2, -2]),
        valid=torch.zeros(3, dtype=torch.uint8, device=DEVICE),
    )
    plan.run(args)
    return args.token


token = draw()
assert token[0] == logits[0].float().argmax()
assert token[1] in logits[1].float().topk(5).indices
assert torch.equal(draw(), token)
