"""Merging of attention states in torch."""

import math

from opfacade.backends.reference.declared import reference
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor


def _merge(descriptor: MergeStatesDescriptor, args: MergeStatesArgs) -> None:
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
        # The o of an empty state is not read: it may hold any value.
        o += torch.where((state_lse == -math.inf)[..., None], torch.zeros_like(o), state_o.double() * w[..., None])
    to_o.copy_(o / torch.where(total == 0, torch.ones_like(total), total)[..., None])
    to_lse.copy_(top + total.log())


CANDIDATES = (reference(MergeStatesDescriptor, "merge-f32", lambda d: (("o", d.dtype),), _merge),)
