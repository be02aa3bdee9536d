"""A padded batch through flash-attn's varlen call: what flash_attn.bert_padding does, in three lines of torch."""

import torch
from common import DEVICE, attention, bf16, near

from opfacade.compat.flash_attn import flash_attn_varlen_func

batch, longest, heads, dim = 2, 6, 4, 64
q, k, v = (bf16(batch, longest, heads, dim) for _ in range(3))
mask = torch.arange(longest, device=DEVICE) < torch.tensor([[6], [3]], device=DEVICE)  # [batch, longest]: real tokens

# unpad_input: the real rows, where they are, and where each request begins.
places = mask.flatten().nonzero().flatten()
starts = torch.nn.functional.pad(mask.sum(-1).cumsum(0), (1, 0)).int()
rows = [x.flatten(0, 1)[places] for x in (q, k, v)]

packed = flash_attn_varlen_func(*rows, starts, starts, max_seqlen_q=longest, max_seqlen_k=longest, causal=True)

# pad_input: rows back to their places, zeros elsewhere.
out = torch.zeros_like(q)
out.flatten(0, 1)[places] = packed

for request, length in enumerate(mask.sum(-1).tolist()):
    real = (x[request, :length] for x in (q, k, v))
    near(out[request, :length], attention(*real, causal=True))
    assert not out[request, length:].any()
