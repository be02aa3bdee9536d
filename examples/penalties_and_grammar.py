"""Penalties, a bias for chosen tokens, and a grammar's bitmask, applied before the draw."""

import torch
from common import DEVICE, f32, i32

from opfacade.plans.sampling import SampleArgs, SampleDescriptor, SamplePlan

ROWS, VOCAB = 2, 100
desc = SampleDescriptor(
    total_num_rows=ROWS, vocab=VOCAB, dtype="f32", penalties=True, bias="sparse", num_biases=2, bitmask=True
)
logits = f32(ROWS, VOCAB)
counts = torch.zeros(ROWS, VOCAB, dtype=torch.int32, device=DEVICE)
counts[:, 7] = 3  # token 7 was generated three times
allowed = torch.zeros(ROWS, VOCAB, dtype=torch.bool, device=DEVICE)
allowed[:, 5:40] = True  # what the grammar allows next
bits = torch.nn.functional.pad(allowed, (0, -VOCAB % 32)).view(ROWS, -1, 32).long()
bitmask = (bits << torch.arange(32, device=DEVICE)).sum(-1).to(torch.int32)  # token t is bit t % 32 of word t // 32
ones = torch.ones(ROWS, device=DEVICE)
args = SampleArgs(
    logits=logits,
    temperature=0 * ones,  # greedy
    seed=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
    offset=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
    prompt_mask=torch.zeros(ROWS, VOCAB, dtype=torch.bool, device=DEVICE),
    output_counts=counts,
    repetition=ones,  # off
    frequency=0.5 * ones,
    presence=0.25 * ones,
    bias_tokens=i32([[9, -1], [9, 11]]),  # -1: unused entry
    bias_values=torch.tensor([[2.0, 0.0], [2.0, -torch.inf]], device=DEVICE),
    bitmask=bitmask,
    token=i32([-2] * ROWS),
    valid=torch.zeros(ROWS, dtype=torch.uint8, device=DEVICE),
)
SamplePlan.select(desc).run(args)
want = logits.clone()
want[:, 7] -= 0.5 * 3 + 0.25
want[:, 9] += 2.0
want[1, 11] = -torch.inf
assert torch.equal(args.token.long(), want.masked_fill(~allowed, -torch.inf).argmax(-1))
