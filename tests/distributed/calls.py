"""Calls of every op over ranks, on any device: the rank number determines the inputs."""

from dataclasses import dataclass
from typing import Any

import torch

from opfacade import Plan
from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.core.target import Target
from opfacade.plans._quantize.quant import Quant
from opfacade.plans.collective import (
    AllReduceNormDescriptor,
    CollectiveDescriptor,
    LogprobAcrossDescriptor,
    MergeAcrossDescriptor,
    SampleAcrossDescriptor,
)

ROWS = 5


@dataclass
class Call:
    """One call of a rank. Each `with_group` creates new args, so that outputs contain nothing from an earlier call."""

    descriptor: Any
    inputs: dict

    def with_group(self, group, device):
        return self.descriptor.args_type(group=group, **self.filled(device))

    def filled(self, device):
        """Copies of the inputs, and zeros for written operands."""
        made = {name: tensor.to(device, copy=True) for name, tensor in self.inputs.items()}
        for name, spec in operands_of(self.descriptor).items():
            if name not in made:
                made[name] = torch.zeros([dim.size for dim in spec.shape], dtype=torch_dtype(spec.dtype), device=device)
        return made

    def written(self, args):
        return {name: getattr(args, name) for name, spec in operands_of(self.descriptor).items() if spec.written}


def descriptors(world):
    """By name; calls whose names have the same prefix have the same bits."""
    counts = tuple(range(1, world + 1))
    norm = {"world": world, "total_num_rows": ROWS, "hidden": 256, "dtype": "bf16", "residual": "replicated"}
    return {
        "all_gather": CollectiveDescriptor(world=world, kind="all_gather", counts=counts, width=24, dtype="bf16"),
        "all_reduce": CollectiveDescriptor(world=world, kind="all_reduce", counts=counts, width=24, dtype="bf16"),
        "reduce_scatter": CollectiveDescriptor(world=world, kind="reduce_scatter", counts=counts, width=24, dtype="f32"),
        "all_to_all": CollectiveDescriptor(world=world, kind="all_to_all", counts=counts, width=24, dtype="f16"),
        "merge": MergeAcrossDescriptor(
            world=world, states=2, total_num_rows=ROWS, num_heads=4 * world, head_dim=64, dtype="bf16"
        ),
        "merge_heads": MergeAcrossDescriptor(
            world=world, total_num_rows=ROWS, num_heads=4 * world, head_dim=64, dtype="f32", scatter="heads", sinks=True
        ),
        "merge_kept": MergeAcrossDescriptor(
            world=world, total_num_rows=ROWS, num_heads=4 * world, head_dim=64, dtype="bf16", scatter="heads"
        ),
        "norm/one": AllReduceNormDescriptor(**norm, steps="one_shot"),
        "norm/two": AllReduceNormDescriptor(**norm, steps="two_shot"),
        "fp8/one": AllReduceNormDescriptor(**norm, steps="one_shot", quant=Quant(scale="token")),
        "fp8/two": AllReduceNormDescriptor(**norm, steps="two_shot", quant=Quant(scale="token")),
        "draw": SampleAcrossDescriptor(world=world, total_num_rows=ROWS, vocab=99 * world, shard=100),
        "draw_list": SampleAcrossDescriptor(
            world=world, total_num_rows=ROWS, vocab=99 * world, shard=100, top_k=True, max_top_k=20, top_p=True
        ),
        "draw_bins": SampleAcrossDescriptor(
            world=world, total_num_rows=ROWS, vocab=99 * world, shard=100, top_p=True, min_p=True
        ),
        "logprob": LogprobAcrossDescriptor(world=world, total_num_rows=ROWS, vocab=99 * world, shard=100, dtype="f32", tile=50),
    }


_ALIKE = {"weight", "sinks", "temperature", "top_k", "top_p", "min_p", "seed", "offset", "label"}


def call_of(name, descriptor, rank):
    """The inputs of a rank; inputs that must be equal on all ranks are drawn from a stream that does not depend on the rank."""
    inputs = {}
    for operand, spec in operands_of(descriptor).items():
        if spec.role == "out" or (spec.role == "inout" and operand == "scale"):
            continue
        seed = 1000 if operand in _ALIKE or operand == "residual" else rank
        random = torch.Generator().manual_seed(seed * 101 + sum(map(ord, operand + name.split("/")[0])))
        shape, dtype = [dim.size for dim in spec.shape], torch_dtype(spec.dtype)
        inputs[operand] = (
            torch.randn(shape, generator=random).to(dtype)
            if dtype.is_floating_point and operand not in ("temperature", "top_p", "min_p")
            else torch.full(shape, 0.7 if operand != "min_p" else 0.02)
            if dtype.is_floating_point
            else torch.randint(1, 50, shape, generator=random).to(dtype)
        )
    return Call(descriptor, inputs)


def run(call, group, device):
    """The tensors that a call writes, by name."""
    args = call.with_group(group, device)
    known = getattr(group, "plans", {})
    (known.get(call.descriptor) or plan_for(call.descriptor, device)).run(args)
    return call.written(args)


def plan_for(descriptor, device):
    return Plan.select(descriptor, target=Target.cpu() if device == "cpu" else Target.current())


def bits(tensors):
    """The bytes of tensors on the host, for exact comparison."""
    return {name: tensor.detach().contiguous().view(torch.uint8).flatten().tolist() for name, tensor in tensors.items()}
