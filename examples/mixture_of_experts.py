"""A whole layer of a mixture of experts in one plan: routing, both products of each expert, and the weighted sum."""

import torch
from common import DEVICE, f32, near

from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor, FusedMoePlan, Router

ROWS, EXPERTS, TOP_K, HIDDEN, WIDTH = 7, 8, 2, 64, 32
dtype, name = (torch.bfloat16, "bf16") if DEVICE == "cuda" else (torch.float32, "f32")
router = Router(dtype="f32", score="softmax", renormalise=True)  # as Mixtral
desc = FusedMoeDescriptor(
    total_num_rows=ROWS, experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, width=WIDTH, dtype=name, router=router
)
x, logits = f32(ROWS, HIDDEN).to(dtype), f32(ROWS, EXPERTS)
up = (f32(EXPERTS, 2 * WIDTH, HIDDEN) / 8).to(dtype)  # for each expert, the gate rows, then the up rows
down = (f32(EXPERTS, HIDDEN, WIDTH) / 6).to(dtype)
ids = torch.empty(ROWS, TOP_K, dtype=torch.int32, device=DEVICE)
weights = torch.empty(ROWS, TOP_K, device=DEVICE)
out = torch.empty_like(x)
args = FusedMoeArgs(x=x, logits=logits, chosen_ids=ids, chosen_weights=weights, up=up, down=down, out=out)
FusedMoePlan.select(desc).run(args)

chosen = logits.topk(TOP_K)
assert torch.equal(ids.long(), chosen.indices)
near(weights, chosen.values.softmax(-1), 1e-5)  # renormalised
want = torch.zeros(ROWS, HIDDEN, dtype=torch.float64, device=DEVICE)
for row in range(ROWS):
    for slot in range(TOP_K):
        expert = chosen.indices[row, slot]
        gate, value = (up[expert].double() @ x[row].double()).chunk(2)
        want[row] += weights[row, slot].double() * (down[expert].double() @ (torch.nn.functional.silu(gate) * value))
near(out, want, 2e-2 if name == "bf16" else 1e-4)
