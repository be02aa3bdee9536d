"""The mean cross entropy of a batch as one fold of two levels: each row to its loss, and the losses to their mean.

`recipes.cross_entropy(logits, target)` gives a descriptor of the same kind; here the program is written out.
"""

import torch
from common import DEVICE, f32, near

from opfacade.plans.reduction import FoldDescriptor, FoldOutput, FoldPlan, Stage
from opfacade.programs.fields import Input
from opfacade.words import coord, equal, log, stage, value, where

rows, classes = 6, 500
x, target = value("x", "f32"), value("target", "i64")
log_sum = stage(0, "f32", "max") + log(stage(0, "f32", "sum"))
desc = FoldDescriptor(
    shape=(rows, classes),
    fold=(0, 1),
    inputs=(Input(name="x", dtype="f32"), Input(name="target", dtype="i64", over=(0,))),
    stages=(
        Stage(reducer="expsum", value=x, axes=(1,)),  # the logarithm of the sum of exponentials, for each row
        Stage(reducer="sum", value=where(equal(coord(1), target), x, 0.0), axes=(1,)),  # the logit of the target, for each row
        Stage(reducer="welford", value=log_sum - stage(1, "f32"), axes=(0,)),  # the mean over rows
    ),
    outputs=(
        FoldOutput(name="losses", dtype="f32", value=log_sum - stage(1, "f32"), over=(0,)),
        FoldOutput(name="mean", dtype="f32", value=stage(2, "f32", "mean"), over=()),
    ),
)
logits, chosen = f32(rows, classes), torch.randint(classes, (rows,), device=DEVICE)
losses, mean = torch.empty(rows, device=DEVICE), torch.empty((), device=DEVICE)
FoldPlan.select(desc).run(desc.args(x=logits, target=chosen, losses=losses, mean=mean))
near(losses, torch.nn.functional.cross_entropy(logits.double(), chosen, reduction="none"), 1e-5)
near(mean, torch.nn.functional.cross_entropy(logits.double(), chosen), 1e-5)
