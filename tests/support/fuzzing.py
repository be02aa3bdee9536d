"""Inputs for the fuzzers: values, JSON texts and tensors that a careless or hostile caller might pass. They are seeded."""

import json
import math
from dataclasses import replace

import torch

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import ArgumentError
from opfacade.testing import problems
from opfacade.testing.harness import harness_for

VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 128, 2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5,
    1e308, -1e-320, math.nan, math.inf, -math.inf, "", "8", "bf16", "f16", "f8_e4m3", "int4", "HND", "NHD", "csr", "block",
    "auto", "off", "cuda", "../../x", "a\0b", "'; DROP", "{{7*7}}", "é" * 50, [], [1], {}, {"page_size": 1}, b"x", 1 + 2j,
)  # fmt: skip
EXTRA = ("", "op", "pagesize", "__class__", "schema_version", "model_config", "batch_size ", "🙂")


def mutated_fields(rng, fields, times):
    """A dict of fields with some replaced, dropped, added or moved one level down or up."""
    fields = {k: dict(v) if isinstance(v, dict) else v for k, v in fields.items()}
    for _ in range(times):
        nested = [v for v in fields.values() if isinstance(v, dict) and v]
        target = rng.choice([fields, fields, *nested])
        name = rng.choice(list(target) or ["op"])
        what = rng.random()
        if what < 0.7:
            target[name] = rng.choice(VALUES)
        elif what < 0.85:
            target.pop(name, None)
        elif what < 0.95:
            target[rng.choice(EXTRA)] = rng.choice(VALUES)
        else:
            target[name] = {name: target.get(name)}
    return fields


def mutated_text(rng, text):
    """JSON with a character lost, doubled or swapped, or cut short."""
    what, at = rng.random(), rng.randrange(len(text))
    if what < 0.4:
        return text[:at]
    if what < 0.6:
        return text[:at] + text[at + 1 :]
    if what < 0.8:
        return text[:at] + rng.choice('{}[]",:0-eE\\\x00é') + text[at:]
    return text[:at] + text[at:][::-1]


def as_text(fields):
    return json.dumps(fields, default=repr)


def small(op, rng):
    """A tiny valid problem of an op."""
    return harness_for(op).small(op, rng)


def draw(rng):
    """An op and a seed for it: problems of every size, also such as a kernel may decline."""
    if rng.random() < 0.3:
        return problems.special_descriptor(rng.choice(problems.SPECIAL), rng.randrange(10**9))
    return problems.random_descriptor(rng.choice(problems.OPS), rng.randrange(10**9))


def meta_args(descriptor: Descriptor):
    """A valid bundle without memory."""
    tensors = {}
    for name, spec in descriptor.operands().items():
        shape = [d.size if d.size is not None else 5 for d in spec.shape]
        tensors[name] = torch.empty(shape, dtype=torch_dtype(spec.dtype), device="meta")
    return descriptor.args_type(**tensors)


def spoiled_tensor(rng, tensor, others):
    """A replacement for a tensor; sometimes it is still valid."""
    choices = (
        lambda: None,
        lambda: rng.choice(VALUES),
        lambda: tensor.to(rng.choice((torch.int64, torch.int32, torch.float16, torch.float64, torch.bool, torch.complex64))),
        lambda: tensor[1:] if tensor.dim() and tensor.shape[0] else tensor,
        lambda: tensor[..., None],
        lambda: tensor.flatten(),
        lambda: tensor.transpose(0, -1) if tensor.dim() > 1 else tensor,
        lambda: tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor,
        lambda: tensor[..., ::2] if tensor.dim() else tensor,
        lambda: rng.choice(others),
        lambda: torch.empty(tensor.shape[:1], dtype=tensor.dtype),
        lambda: torch.empty_like(tensor, requires_grad=tensor.is_floating_point()),
        lambda: torch.nn.Parameter(tensor, requires_grad=False),
        lambda: torch.empty_strided(tensor.shape, [0] * tensor.dim(), dtype=tensor.dtype, device="meta"),
        lambda: torch.empty(2, 2, device="meta").to_sparse() if rng.random() < 0.1 else tensor.conj(),
        lambda: tensor.clone() if tensor.device.type == "meta" else tensor.to("meta"),
        lambda: type("Sneaky", (), {"data_ptr": lambda self: 0, "shape": tensor.shape, "dtype": tensor.dtype})(),
    )
    try:
        return rng.choice(choices)()
    except (RuntimeError, NotImplementedError):  # torch itself has no such tensor
        return None


def spoiled_args(rng, args, times):
    names = [n for n in type(args).__slots__ if getattr(args, n) is not None]
    others = [getattr(args, n) for n in names]
    spoiled = {n: spoiled_tensor(rng, getattr(args, n), others) for n in rng.sample(names, min(times, len(names)))}
    try:
        return replace(args, **spoiled)
    except ArgumentError as error:  # a bundle with a number that is no factor cannot be made: it lacks that operand instead
        if error.code != "OPF-A063":
            raise
        return replace(args, **{n: None if isinstance(v, (int, float)) else v for n, v in spoiled.items()})
