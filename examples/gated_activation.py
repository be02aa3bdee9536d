"""silu(gate) * up of an MLP, and a user-defined activation as an expression."""

import torch
from common import bf16, near

from opfacade.plans.activation import GatedActivationArgs, GatedActivationDescriptor, GatedActivationPlan
from opfacade.words import maximum, value

x = bf16(4, 2 * 96)
args = GatedActivationArgs(x=x, out=torch.empty_like(x[:, :96]))
fields = {"total_num_rows": 4, "width": 96, "dtype": "bf16"}
GatedActivationPlan.select(GatedActivationDescriptor(**fields, activation="silu")).run(args)
gate, up = x.double().chunk(2, -1)
near(args.out, torch.nn.functional.silu(gate) * up)

relu_squared = maximum(value("gate", "f32"), 0.0) * maximum(value("gate", "f32"), 0.0) * value("up", "f32")
GatedActivationPlan.select(GatedActivationDescriptor(**fields, expression=relu_squared)).run(args)
near(args.out, gate.relu() ** 2 * up)
