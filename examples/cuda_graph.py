"""A decode captured once and replayed with other lengths. Without a GPU, the step runs without a graph."""

import torch
from common import DEVICE, attention, bf16, i32, near, rows_of

from opfacade import PlanCache, Workspace
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedDecodeDescriptor, PagedKvCacheDescriptor

cache = PagedKvCacheDescriptor(num_total_pages=16, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
workspace = Workspace(DEVICE)
plans = PlanCache(
    lambda n: BatchPagedDecodeDescriptor(
        batch_size=n, num_qo_heads=8, paged_kv=cache, page_table="block", max_kv_len=48, return_lse=False
    ),
    sizes=(1, 2, 4),
    workspace=workspace,
)
plans.compile()  # builds, loads, and reserves the workspace
workspace.freeze()
size = plans.size_for(3)  # 4: three requests, and a padding request of length 0
plan, k_data, v_data, q = plans.at(size), bf16(16, 16, 2, 64), bf16(16, 16, 2, 64), bf16(size, 8, 64)
pages = [[3, 1, 4], [5, 9, 2], [6, 8, 7], [0, 0, 0]]
args = BatchPagedDecodeArgs(
    q=q, k_data=k_data, v_data=v_data, block_table=i32(pages), kv_lens=i32([1, 1, 1, 0]), o=torch.empty_like(q)
)
plan.run(args, workspace.of(plan))
if DEVICE == "cuda":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, workspace.of(plan))
args.kv_lens.copy_(i32([40, 33, 2, 0]))  # change buffers in place, then replay
graph.replay() if DEVICE == "cuda" else plan.run(args, workspace.of(plan))
for row, length in enumerate((40, 33, 2)):
    keys, values = rows_of(k_data, pages[row], length), rows_of(v_data, pages[row], length)
    near(args.o[[row]], attention(q[[row]], keys, values))
assert (args.o[3] == 0).all()
