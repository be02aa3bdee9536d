"""Samples of torch's own tests of its operators, as calls of recipes."""

import inspect
import random
import sys
import types
import unittest
from dataclasses import dataclass
from functools import cache

import torch

from opfacade.core.dtypes import torch_dtype
from opfacade.recipes._tensors import Shaped, dtype_of

DROPPED = ("device", "layout", "requires_grad", "memory_format", "generator", "out", "pin_memory", "names", "inplace")


@cache
def infos():
    """{(name, variant): OpInfo}."""
    sys.modules.setdefault(
        "expecttest", types.SimpleNamespace(TestCase=unittest.TestCase)
    )  # a base class that no test here uses
    from torch.testing._internal.common_methods_invocations import op_db

    return {(info.name, info.variant_test_name): info for info in op_db}


def variants(name):
    """The OpInfos of an operator."""
    return [info for (known, _), info in infos().items() if known == name]


def samples(info, dtype, most=1000):
    """The first samples of an operator, none of which needs a gradient."""
    torch.manual_seed(0)
    random.seed(0)  # draws margins and other options
    found = []
    for sample in info.sample_inputs_func(info, "cpu", dtype, False):  # info.sample_inputs looks at the stack for each sample
        if len(found) == most:
            break
        found.append(sample)
    return found


def mapped(change, value):
    """change of every tensor in lists and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [mapped(change, item) for item in value]
    return value


def seen(tensor):
    return Shaped(tuple(tensor.shape), dtype_of(tensor.dtype))


@dataclass
class Call:
    """One call of a recipe: the arguments of torch's operator."""

    args: tuple
    options: dict

    @classmethod
    def of(cls, info, sample):
        """Samples of some operators begin with the second argument."""
        options = {name: value for name, value in sample.kwargs.items() if name not in DROPPED}
        args = (sample.input, *sample.args)
        return cls((args[1], args[0], *args[2:]) if info.name in ("where", "nn.functional.embedding") else args, options)

    def changed(self, change):
        return Call(tuple(mapped(change, a) for a in self.args), {n: mapped(change, v) for n, v in self.options.items()})

    def descriptor(self, recipe):
        call = self.changed(seen)
        return recipe(*call.args, **call.options)

    def tensors(self, recipe):
        """By the names of the descriptor's inputs."""
        bound = inspect.signature(recipe.make).bind(*self.args, **self.options).arguments
        found = {}
        for name, value in bound.items():
            items = value[0] if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], (list, tuple)) else value
            if isinstance(items, (list, tuple)):
                found |= {f"{name}{i}": item for i, item in enumerate(items)}
            else:  # the second tensor of max(a, b) is in the position of an axis
                found["other" if name == "dim" and isinstance(items, torch.Tensor) else name] = items
        return found


def bundle(descriptor, tensors):
    """The arguments of a plan: each operand in the descriptor's form, without copies; the results hold 77."""
    specs, found = descriptor.operands(), {}
    for i, given in enumerate(descriptor.inputs):
        found[given.name] = tensors[given.name].reshape([dim.size for dim in specs[f"in_{i}"].shape])
    for i, output in enumerate(descriptor.outputs):
        shape = [dim.size for dim in specs[f"out_{i}"].shape]
        found[output.name] = torch.full(shape, 77).to(torch_dtype(output.dtype))
    return descriptor.args(**found)
