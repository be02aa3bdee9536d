"""The reference of the op restore."""

from __future__ import annotations

import torch
from opfacade.plans.two_level import MAX_SHARDS, RestoreArgs, RestoreDescriptor

from opfacade.backends.reference.declared import reference
from opfacade.core.tensor_lists import elements


def decoded(descriptor, args: RestoreArgs):
    """The weight as f64."""
    codes = torch.stack((args.weight & 15, args.weight >> 4), -1).flatten(1).double() - 8
    return codes * args.weight_scale.double().repeat_interleave(descriptor.group, 1) * args.weight_outer.double()[:, None]


def _restore(descriptor: RestoreDescriptor, args: RestoreArgs) -> None:
    total = decoded(descriptor, args)
    for name in elements("shard", MAX_SHARDS)[: descriptor.num_shards]:
        total += getattr(args, name).to(total.device).double()
    args.out.copy_(total)


CANDIDATES = (reference(RestoreDescriptor, "restore-f64", (("out", "f32"), ("weight", "u8")), _restore),)
