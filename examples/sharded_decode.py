"""Decode over a cache and a vocabulary that are sharded over two ranks, compared with a single rank.

`python examples/sharded_decode.py` starts two processes through torchrun, which run on CPUs. The model is
`examples/demo/ranks.py`; this file shows how a program creates its group.
"""

import os
import subprocess
import sys

import torch.distributed as dist
from demo.ranks import compare

from opfacade.distributed import Group

if "RANK" not in os.environ:  # not yet under torchrun
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    subprocess.run(launch, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
else:
    dist.init_process_group("gloo")
    with Group(dist.group.WORLD) as group:
        same = compare(group, print)
    dist.destroy_process_group()
    assert same
