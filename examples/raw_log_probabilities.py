"""Log-probabilities as in vLLM's default: of the model's logits, before penalties and temperature."""

import torch
from common import DEVICE, f32, i32, near

from opfacade.plans.sampling import SampleArgs, SampleDescriptor, SamplePlan

ROWS, VOCAB = 3, 200
logits = f32(ROWS, VOCAB)
temperature = torch.tensor([0.0, 0.5, 1.0], device=DEVICE)
more = {name: torch.zeros(ROWS, dtype=torch.int64, device=DEVICE) for name in ("seed", "offset")}


def sampled(temperature):
    desc = SampleDescriptor(total_num_rows=ROWS, vocab=VOCAB, dtype="f32", report="logprob")
    out = {"token": i32([-2] * ROWS), "rank": i32([-2] * ROWS), "logprob": torch.empty(ROWS, device=DEVICE)}
    valid = torch.zeros(ROWS, dtype=torch.uint8, device=DEVICE)
    SamplePlan.select(desc).run(SampleArgs(logits=logits, temperature=temperature, valid=valid, **more, **out))
    return out


drawn = sampled(temperature)
token = drawn["token"].long()[:, None]
# The draw reports log-probabilities of adjusted logits, divided by the temperature unless the row is greedy.
scale = torch.where(temperature > 0, temperature, 1.0)[:, None]
near(drawn["logprob"], (logits / scale).double().log_softmax(-1).gather(1, token)[:, 0], 1e-4)
# Raw log-probabilities use the input logits. They are equal for rows without penalties that are greedy or have temperature 1.
raw = (logits.gather(1, token) - logits.logsumexp(-1, keepdim=True))[:, 0]
near(drawn["logprob"][[0, 2]], raw[[0, 2]], 1e-4)
assert (drawn["logprob"][1] - raw[1]).abs() > 1e-3
