"""Packing of masks in torch."""

from __future__ import annotations

from opfacade.backends.reference.declared import reference
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.plans.mask import PackMaskArgs, PackMaskDescriptor

_EXACT = PrecisionGuarantee(math_precision="integer", accumulator="none", error_model=ErrorModel(id="exact"))


def _pack(descriptor: PackMaskDescriptor, args: PackMaskArgs) -> None:
    import torch

    batch, total = descriptor.batch_size, descriptor.num_bits
    each = total // batch if batch else 0
    starts = [b * each for b in range(batch + 1)] if args.bits_indptr is None else args.bits_indptr.clamp(0, total).tolist()
    weights = 2 ** torch.arange(8, device=args.mask.device)
    weights = weights if descriptor.bit_order == "little" else weights.flip(0)
    at = 0
    args.packed.zero_()
    args.packed_indptr[0] = 0
    for request in range(batch):
        bits = (args.mask[starts[request] : starts[request + 1]] != 0).long()
        padded = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
        own = args.packed[at : at + len(padded)]  # overlapping segments may need more bytes than exist
        own.copy_((padded * weights).sum(-1)[: len(own)])
        at += len(padded)
        args.packed_indptr[request + 1] = at


CANDIDATES = (reference(PackMaskDescriptor, lambda d: _EXACT, lambda d: (("packed", "u8"),), _pack),)
