"""Prefill of one long request by two ranks: each computes some of its rows, over K and V from both in one exchange.

`torchrun --nproc-per-node N examples/prefill_over_ranks.py`, or without torchrun for two ranks, on N GPUs or else on CPUs.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from common import attention, near

from opfacade import Plan, Target
from opfacade.distributed import Group
from opfacade.plans.attention import BatchPagedPrefillArgs, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor, PrefillShares
from opfacade.plans.collective import CollectiveArgs, CollectiveDescriptor
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor

TOKENS, PAGE, HEADS, KV, DIM = 512, 16, 8, 2, 64
ON_GPUS = torch.cuda.device_count() >= int(os.environ.get("WORLD_SIZE", "2"))


def prefill(group):
    shares, target = PrefillShares.zigzag((TOKENS,), (TOKENS,), group.world), group.target if ON_GPUS else Target.cpu()
    rows = shares.rows(group.rank)  # an early run and a late one: equal work
    torch.manual_seed(0)  # all ranks draw the same tensors, and use their own rows
    q, kv = (torch.randn(TOKENS, n, DIM).bfloat16() for n in (HEADS, 2 * KV))
    fields = {"kind": "all_gather", "counts": shares.counts, "width": 2 * KV * DIM, "dtype": "bf16"}
    gather = Plan.select(CollectiveDescriptor(world=group.world, **fields), target=target)
    group.reserve([gather])
    k_data, v_data = torch.zeros(2, TOKENS // PAGE, PAGE, KV, DIM, dtype=torch.bfloat16)
    arrived, o = torch.empty_like(kv), torch.empty_like(q[rows])
    sent = kv.new_zeros(max(shares.counts), 2 * KV, DIM)  # all ranks send tensors of one size
    sent[: len(rows)] = kv[rows]
    gather.run(CollectiveArgs(group=group, x=sent.flatten(1), out=arrived.flatten(1)))
    table, sizes = torch.arange(TOKENS // PAGE, dtype=torch.int32)[None], {"page_size": PAGE, "num_kv_heads": KV}
    pool = PagedKvCacheDescriptor(num_total_pages=TOKENS // PAGE, **sizes, head_dim=DIM, dtype="bf16", layout="NHD")
    indptr, lens, requests = shares.gathered()  # each run of each rank is a request of the append
    cache, of = {"k_data": k_data, "v_data": v_data}, {"paged_kv": pool, "page_table": "block", "max_kv_indices": 256}
    new = {"k_new": arrived[:, :KV], "v_new": arrived[:, KV:], "append_indptr": indptr, "kv_lens": lens}
    append = Plan.select(PagedKvAppendDescriptor(batch_size=len(lens), total_num_rows=TOKENS, **of), target=target)
    append.run(PagedKvAppendArgs(**cache, **new, block_table=table[requests]))
    own, runs = table[shares.requests(group.rank)], {"causal": True, "return_lse": False, "num_qo_heads": HEADS}
    attend = Plan.select(BatchPagedPrefillDescriptor(batch_size=2, total_num_rows=len(rows), **runs, **of), target=target)
    ends = {"q_indptr": shares.q_indptr(group.rank), "kv_lens": shares.kv_lens(group.rank)}
    attend.run(BatchPagedPrefillArgs(**cache, q=q[rows], block_table=own, o=o, **ends))
    near(o, attention(q, kv[:, :KV], kv[:, KV:], causal=True)[rows])


if "RANK" not in os.environ:  # not yet under torchrun
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    subprocess.run(launch, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
else:
    device = torch.device("cuda", int(os.environ["RANK"])) if ON_GPUS else torch.device("cpu")
    torch.set_default_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if ON_GPUS else "gloo")
    with Group(dist.group.WORLD) as group, torch.cuda.device(device) if ON_GPUS else device:
        prefill(group)
    dist.destroy_process_group()
