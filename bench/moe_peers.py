"""Layers of experts by torch and Triton on our tensors. Each function returns a call, or raises if it does not support the
layer.

A call writes and returns one tensor. `captured`: whether it runs as a CUDA graph; the loop over experts reads their numbers on
the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import silu

from bench.moe_problems import Problem
from opfacade.plans.moe import FusedMoeArgs, FusedMoeDescriptor

Call = Callable[[], torch.Tensor]
REFUSALS = (ImportError, RuntimeError, TypeError, AttributeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class Peer:
    make: Callable[[Problem, FusedMoeArgs], Call]
    captured: bool = True


def activated(d: FusedMoeDescriptor, both: torch.Tensor) -> torch.Tensor:
    """The results between the two products."""
    if d.halves == "interleaved":
        gate, up = both[..., 0::2], both[..., 1::2]
    else:
        gate, up = both.chunk(2, -1)
    if d.limit is not None:
        gate, up = gate.clamp(max=d.limit), up.clamp(-d.limit, d.limit)
    gate = silu(gate) if d.alpha is None else gate * torch.sigmoid(d.alpha * gate)
    return gate * (up + d.beta if d.beta else up)


def by_k(d: FusedMoeDescriptor, weight: torch.Tensor) -> torch.Tensor:
    """A weight with the k axis before the columns."""
    return weight.transpose(-2, -1) if d.weight_layout == "nk" else weight


def loop(problem: Problem, args: FusedMoeArgs) -> Call:
    """As in transformers' eager layers: one expert after the other."""
    d, out = problem.descriptor, torch.empty_like(args.out)
    if d.scaling is not None:
        raise NotImplementedError("torch has no product of scaled blocks on this GPU")
    up, down = by_k(d, args.up), by_k(d, args.down)

    def call() -> torch.Tensor:
        out.zero_()
        for expert in args.ids.unique().tolist():
            rows, slots = (args.ids == expert).nonzero(as_tuple=True)
            h = args.x[rows] @ up[expert]
            h = activated(d, h + args.up_bias[expert] if d.bias else h)
            y = h @ down[expert]
            y = y + args.down_bias[expert] if d.bias else y
            out.index_add_(0, rows, (y * args.weights[rows, slots, None]).to(out.dtype))
        return out

    return call


def grouped(problem: Problem, args: FusedMoeArgs) -> Call:
    """Sorted rows and torch's grouped product; the sum in the order of slots, without atomics."""
    d = problem.descriptor
    if d.scaling is not None:
        raise NotImplementedError("torch has no grouped product of scaled blocks on this GPU")
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    up, down = by_k(d, args.up), by_k(d, args.down)
    experts = torch.arange(d.experts, device=args.x.device, dtype=torch.int32)

    def call() -> torch.Tensor:
        sorted_ids, order = args.ids.flatten().sort(stable=True)
        ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
        h = product(args.x[order // d.top_k], up, offs=ends)
        h = activated(d, h + args.up_bias[sorted_ids] if d.bias else h)
        y = product(h, down, offs=ends)
        y = y + args.down_bias[sorted_ids] if d.bias else y
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return (y[places].view(problem.tokens, d.top_k, d.hidden) * args.weights[..., None]).sum(1).to(args.out.dtype)

    return call


def triton(problem: Problem, args: FusedMoeArgs) -> Call:
    from bench.moe_triton import layer

    return layer(problem, args)


PEERS = {"torch, grouped_mm": Peer(grouped), "torch, loop": Peer(loop, captured=False), "Triton": Peer(triton)}
