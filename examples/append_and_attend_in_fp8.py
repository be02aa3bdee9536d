"""An fp8 cache: new rows are divided by the scale of their head and stored; a decode takes the same scales."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

from opfacade import Plan
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor

cache = PagedKvCacheDescriptor(num_total_pages=4, page_size=16, num_kv_heads=2, head_dim=64, dtype="f8_e4m3", layout="NHD")
pools = {name: torch.zeros(4, 16, 2, 64, device=DEVICE).to(torch.float8_e4m3fn) for name in ("k_data", "v_data")}
scales = {name: torch.full((2,), 0.02, device=DEVICE) for name in ("k_scale", "v_scale")}
tables = {"block_table": i32([[2, 1]]), "kv_lens": i32([20])}
k, v, q = bf16(20, 2, 64), bf16(20, 2, 64), bf16(1, 8, 64)
append = PagedKvAppendDescriptor(
    batch_size=1, total_num_rows=20, paged_kv=cache, page_table="block", new_dtype="bf16", kv_scale="head"
)
Plan.select(append).run(PagedKvAppendArgs(k_new=k, v_new=v, append_indptr=i32([0, 20]), **tables, **pools, **scales))
decode = BatchPagedDecodeDescriptor(
    batch_size=1, num_qo_heads=8, paged_kv=cache, page_table="block", q_dtype="bf16", kv_scale="head", return_lse=False
)
args = BatchPagedDecodeArgs(q=q, o=torch.empty_like(q), **tables, **pools, **scales)
Plan.select(decode).run(args)
stored = [0.02 * rows_of(pools[name].float(), [2, 1], 20) for name in ("k_data", "v_data")]
near(args.o, attention(q, *stored))
near(args.o, attention(q, k, v), 0.1)  # close to the unquantised result: e4m3 has three bits of mantissa
