"""Merging of attention states in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opfacade.backends.reference.inference import in_inference_mode
from opfacade.descriptor import once_a_kind
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor
from opfacade.registry import Candidate, Launcher, Reason
from opfacade.sku import ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target


def _declines(descriptor: MergeStatesDescriptor, target: Target) -> Sequence[Reason]:
    return ()


def _no_workspace(descriptor: MergeStatesDescriptor, target: Target) -> int:
    return 0


@once_a_kind
def _sku(descriptor: MergeStatesDescriptor, target: Target) -> KernelSku:
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="reference",
        arch=target.arch,
        impl="torch",
        revision=1,
        dtypes=(("o", descriptor.dtype),),
        layout="strided",
        precision_guarantee=PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=ErrorModel(id="merge-f32")),
    )


def _merge(descriptor: MergeStatesDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: MergeStatesArgs, workspace: object) -> None:
        import torch

        states_o, lse = descriptor.states_of(args)
        to_o, to_lse = descriptor.merged(args)
        states_lse = torch.stack(tuple(lse)).double()
        top = states_lse.amax(dim=0)
        top = torch.where(top == -math.inf, torch.zeros_like(top), top)
        weight = (states_lse - top).exp()
        total = weight.sum(dim=0)
        o = torch.zeros(to_o.shape, dtype=torch.float64, device=to_o.device)
        for state_o, w, state_lse in zip(states_o, weight, states_lse, strict=True):
            # The o of an empty state is not looked at: it may hold anything.
            o += torch.where((state_lse == -math.inf)[..., None], torch.zeros_like(o), state_o.double() * w[..., None])
        to_o.copy_(o / torch.where(total == 0, torch.ones_like(total), total)[..., None])
        to_lse.copy_(top + total.log())

    return launch


CANDIDATES = (
    Candidate("reference", "torch", MergeStatesDescriptor, _declines, _sku, _no_workspace, in_inference_mode(_merge)),
)
