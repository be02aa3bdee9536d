"""Grouped products, such as those of experts: the rows of each expert are adjacent."""

import torch
from common import bf16, i32, near

from opfacade.plans.matmul import GroupedMatmulArgs, GroupedMatmulDescriptor, GroupedMatmulPlan

desc = GroupedMatmulDescriptor(groups=3, total_num_rows=9, n=64, k=96, dtype="bf16")
x, weight, ends = bf16(9, 96), bf16(3, 64, 96), [0, 4, 4, 9]  # expert 1 has no rows
out = torch.empty(9, 64, dtype=torch.bfloat16, device=x.device)
GroupedMatmulPlan.select(desc).run(GroupedMatmulArgs(x=x, weight=weight, indptr=i32(ends), out=out))
for expert in range(3):
    rows = slice(ends[expert], ends[expert + 1])
    near(out[rows], x[rows].double() @ weight[expert].double().T, 3e-2)
