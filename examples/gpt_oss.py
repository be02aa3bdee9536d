"""gpt-oss: learned sinks, and a sliding window of 128 tokens, which is window_left = 127."""

import torch
from common import attention, bf16, f32, i32, near, rows_of

from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    PagedKvCacheDescriptor,
)

WINDOW = 128  # the config's sliding_window counts the token itself; window_left counts the keys before it
cache = PagedKvCacheDescriptor(num_total_pages=16, page_size=16, num_kv_heads=8, head_dim=64, dtype="bf16", layout="NHD")
desc = BatchPagedDecodeDescriptor(
    batch_size=1, num_qo_heads=64, paged_kv=cache, page_table="block", window_left=WINDOW - 1, sinks=True, return_lse=False
)
k_data, v_data, q = bf16(16, 16, 8, 64), bf16(16, 16, 8, 64), bf16(1, 64, 64)
sinks = f32(64)  # [num_qo_heads] in f32: convert the model's bf16 parameter after its weights are loaded
pages = [*range(10, 0, -1)]
args = BatchPagedDecodeArgs(
    q=q, k_data=k_data, v_data=v_data, block_table=i32([pages]), kv_lens=i32([150]), sinks=sinks, o=torch.empty_like(q)
)
BatchPagedDecodePlan.select(desc).run(args)
near(args.o, attention(q, rows_of(k_data, pages, 150), rows_of(v_data, pages, 150), window=WINDOW - 1, sinks=sinks))
