"""FlashInfer's wrapper on plans: the import is all that changes."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

import opfacade.compat.flashinfer as flashinfer

workspace = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
wrapper.plan(i32([0, 2]), i32([3, 1]), i32([5]), 8, 2, 64, 16, q_data_type=torch.bfloat16)
k_data, v_data, q = bf16(4, 16, 2, 64), bf16(4, 16, 2, 64), bf16(1, 8, 64)
o = wrapper.run(q, (k_data, v_data))
near(o, attention(q, rows_of(k_data, [3, 1], 21), rows_of(v_data, [3, 1], 21)))
