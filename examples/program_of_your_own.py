"""An elementwise kernel and a reduction over rows, written as expressions."""

import torch
from common import f32, near

from opfacade import Plan
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.programs.fields import Input, Output
from opfacade.words import exp, stage, value

x = value("x", "f32")
data = f32(5, 33)
swish = MapDescriptor(
    shape=(5, 33), inputs=(Input(name="x", dtype="f32"),), outputs=(Output(name="y", dtype="f32", value=x / (1 + exp(-x))),)
)
y = torch.empty_like(data)
Plan.select(swish).run(swish.args(x=data, y=y))
near(y, torch.nn.functional.silu(data.double()), 1e-5)

norms = FoldDescriptor(
    shape=(5, 33),
    fold=(1,),
    inputs=(Input(name="x", dtype="f32"),),
    stages=(Stage(reducer="sum", value=x * x),),
    outputs=(FoldOutput(name="squares", dtype="f32", value=stage(0, "f32"), over=(0,)),),
)
squares = torch.empty(5, device=data.device)
Plan.select(norms).run(norms.args(x=data, squares=squares))
near(squares, data.double().square().sum(-1), 1e-4)
