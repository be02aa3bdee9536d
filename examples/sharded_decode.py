"""Decode over a cache and a vocabulary that are sharded over ranks, beside the same on one rank.

    torchrun --nproc-per-node 2 examples/sharded_decode.py

It runs on CPUs. `examples/demo/ranks.py` is the model; this file is how a program makes its group.
"""

import torch
import torch.distributed as dist
from demo.ranks import compare

from opfacade.distributed import Group


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with Group(dist.group.WORLD) as group:
        same = compare(group, print)
    dist.destroy_process_group()
    assert same


if __name__ == "__main__":
    main()
