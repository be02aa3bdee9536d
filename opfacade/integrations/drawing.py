"""One sampling step of an engine: rows of logits, and the tensors that adjust, filter and seed them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from opfacade import Target
from opfacade.core.dtypes import torch_dtype
from opfacade.core.target import of_device
from opfacade.integrations.refusal import refuse_draw
from opfacade.plans.mask import segment_packbits
from opfacade.plans.sampling import SampleArgs, SampleDescriptor, SamplePlan

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_FLAGS = ("temperature", "top_k", "top_p", "min_p", "bitmask")


def draw(way: str, logits: Tensor, operands: Mapping[str, Tensor | None], **fields: object) -> SampleArgs:
    """The args of a draw from logits [rows, vocab], after the draw has written its outputs. operands: operands of `SampleArgs`;
    None: absent. fields: fields of `SampleDescriptor` that do not follow from the operands. Raises DTypeError unless the logits
    are f32, bf16 or f16.
    """
    if logits.dtype not in _NAMES:
        refuse_draw(way, "OPF-I003", "logits", expected=" or ".join(_NAMES.values()), got=logits.dtype)
    given = {name: x for name, x in operands.items() if x is not None}
    flags: dict[str, Any] = {name: name in given for name in _FLAGS} | {"penalties": "output_counts" in given}
    if "bias" in given:
        flags["bias"] = "dense"
    if "bias_tokens" in given:
        flags |= {"bias": "sparse", "num_biases": given["bias_tokens"].shape[1]}
    rows, vocab = logits.shape
    descriptor = SampleDescriptor(total_num_rows=rows, vocab=vocab, dtype=_NAMES[logits.dtype], **flags, **fields)
    args = SampleArgs(logits=logits, **given, **_outputs(descriptor, logits.device))
    SamplePlan.select(descriptor, target=_target(logits.device)).run(args)
    return args


@lru_cache(maxsize=16)
def _target(device: torch.device) -> Target:
    return of_device(device.index or 0) if device.type == "cuda" else Target.cpu()


def _outputs(descriptor: SampleDescriptor, device: torch.device) -> dict[str, Tensor]:
    specs = {name: spec for name, spec in descriptor.operands().items() if spec.role == "out"}
    return {
        name: torch.empty([dim.size or 0 for dim in spec.shape], dtype=torch_dtype(spec.dtype), device=device)
        for name, spec in specs.items()
    }


def new_seeds(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Seeds, i64 [rows of like], from a generator, by default torch's generator of the device. Does not synchronise."""
    return torch.randint(-(2**63), 2**63 - 1, (len(like),), generator=generator, dtype=torch.int64, device=like.device)


def bitmask_of(allowed: Tensor) -> Tensor:
    """Converts bool [rows, vocab] to the words of a bitmask, i32 [rows, ceil(vocab / 32)]."""
    rows, vocab = allowed.shape
    padded = torch.nn.functional.pad(allowed, (0, -vocab % 32)) if vocab % 32 else allowed.contiguous()
    ends = torch.tensor([0, padded.numel()], dtype=torch.int32, device=allowed.device)
    return segment_packbits(padded.flatten(), ends)[0].view(torch.int32).view(rows, -1)


def counted(tokens: Tensor, vocab: int) -> Tensor:
    """i32 [rows, vocab]: the number of occurrences of each token in a row of `tokens` [rows, n]; ids outside the vocabulary are
    ignored."""
    inside = (tokens >= 0) & (tokens < vocab)
    counts = torch.zeros(len(tokens), vocab, dtype=torch.int32, device=tokens.device)
    return counts.scatter_add_(1, tokens.where(inside, 0).long(), inside.to(torch.int32))
