"""The end of a tensor-parallel layer: partial results of two ranks are summed, added to the residual, and normalised.

`python examples/tensor_parallel_layer.py` starts two processes through torchrun; it runs on CPUs. On GPUs, pass
"cpu:gloo,cuda:nccl" to `init_process_group` and place the tensors on the GPU of the rank.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

from opfacade.distributed import Group
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor, AllReduceNormPlan

ROWS, HIDDEN = 5, 64


def layer(group):
    sizes = {"total_num_rows": ROWS, "hidden": HIDDEN}
    desc = AllReduceNormDescriptor(world=group.world, **sizes, dtype="f32", norm="rms", residual="replicated")
    plan = AllReduceNormPlan.select(desc)
    group.reserve([plan])  # all plans of the program, once
    torch.manual_seed(0)  # all ranks draw the same tensors
    parts, residual, weight = torch.randn(group.world, ROWS, HIDDEN), torch.randn(ROWS, HIDDEN), torch.rand(HIDDEN)
    total = parts.sum(0) + residual
    out = torch.empty(ROWS, HIDDEN)
    plan.run(AllReduceNormArgs(group=group, x=parts[group.rank], residual=residual, weight=weight, out=out))
    torch.testing.assert_close(residual, total)  # overwritten with the sum
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(total, (HIDDEN,), weight, desc.eps))


if "RANK" not in os.environ:  # not yet under torchrun
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    subprocess.run(launch, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
else:
    dist.init_process_group("gloo")
    with Group(dist.group.WORLD) as group:
        layer(group)
    dist.destroy_process_group()
