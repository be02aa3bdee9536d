"""Softmax of rows with a temperature."""

import torch
from common import bf16, near

from opfacade.plans.softmax import SoftmaxArgs, SoftmaxDescriptor, SoftmaxPlan

x = bf16(5, 333)
args = SoftmaxArgs(x=x, out=torch.empty_like(x))
SoftmaxPlan.select(SoftmaxDescriptor(shape=(5, 333), dtype="bf16", temperature=0.7)).run(args)
near(args.out, (x.double() / 0.7).softmax(-1), 1e-2)
