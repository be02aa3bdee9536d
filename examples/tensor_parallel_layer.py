"""The end of a tensor-parallel layer: partial results of two ranks are summed, added to the residual, and normalised.

`python examples/tensor_parallel_layer.py` starts two processes through torchrun, and `torchrun --nproc-per-node N` any number.
They run on GPUs if the machine has one for each, and otherwise on CPUs.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

from opfacade import Target
from opfacade.distributed import Group
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor, AllReduceNormPlan

ROWS, HIDDEN = 5, 64
ON_GPUS = torch.cuda.device_count() >= int(os.environ.get("WORLD_SIZE", "2"))


def layer(group):
    device = torch.device("cuda", group.rank) if ON_GPUS else "cpu"
    sizes = {"total_num_rows": ROWS, "hidden": HIDDEN}
    desc = AllReduceNormDescriptor(world=group.world, **sizes, dtype="f32", norm="rms", residual="replicated")
    plan = AllReduceNormPlan.select(desc, target=group.target if ON_GPUS else Target.cpu())
    group.reserve([plan])  # all plans of the program, once
    torch.manual_seed(0)  # all ranks draw the same tensors
    shapes = ((group.world, ROWS, HIDDEN), (ROWS, HIDDEN), (HIDDEN,))
    parts, residual, weight = (torch.randn(*shape).to(device) for shape in shapes)
    total = parts.sum(0) + residual
    out = torch.empty(ROWS, HIDDEN, device=device)
    plan.run(AllReduceNormArgs(group=group, x=parts[group.rank], residual=residual, weight=weight, out=out))
    torch.testing.assert_close(residual, total)  # overwritten with the sum
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(total, (HIDDEN,), weight, desc.eps))


if "RANK" not in os.environ:  # not yet under torchrun
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    subprocess.run(launch, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
else:
    if ON_GPUS:
        torch.cuda.set_device(int(os.environ["RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if ON_GPUS else "gloo")
    with Group(dist.group.WORLD) as group:
        layer(group)
    dist.destroy_process_group()
