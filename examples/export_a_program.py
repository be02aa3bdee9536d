"""Write a program of torch.export with its plans, and load it: the same kernels run in the other process, or loading fails."""

import tempfile
from pathlib import Path

import torch
from common import DEVICE, f32, near

import opfacade.torch_ops
from opfacade import Plan
from opfacade.plans.norm import NormDescriptor
from opfacade.torch_ops import exported

plan = Plan.select(NormDescriptor(kind="rms", total_num_rows=4, hidden=64, dtype="f32", eps=1e-6))
assert "norm" in opfacade.torch_ops.defined()


class Layer(torch.nn.Module):
    def __init__(self, handle):
        super().__init__()
        self.handle = handle  # a constant of the exported program

    def forward(self, x, weight):
        out = torch.empty_like(x)
        torch.ops.opfacade.norm(self.handle, x, out, weight=weight)
        return 2 * out


x, weight = f32(4, 64), torch.ones(64, device=DEVICE)
with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder) / "layer.pt2")
    exported.save(torch.export.export(Layer(plan.handle), (x, weight)), file)
    layer = exported.load(file).module()  # OPF-S012 if this machine has no candidate with the plan's SKU
near(layer(x, weight), 2 * torch.nn.functional.rms_norm(x.double(), (64,), eps=1e-6), 1e-5)
