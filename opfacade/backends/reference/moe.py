"""Mixtures of experts in torch: keys and scores in f64 from f32 logits, exact positions, sums in f64."""

from __future__ import annotations

import math

from opfacade.backends.reference._routes import loads_of, physical, scores_of, top_experts
from opfacade.backends.reference.declared import READS_INDICES, Pairs, reference
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._composites.composed import composed
from opfacade.plans.moe import (
    FusedMoeDescriptor,
    MoeCombineArgs,
    MoeCombineDescriptor,
    MoeGatherArgs,
    MoeGatherDescriptor,
    MoeSortArgs,
    MoeSortDescriptor,
    RouteArgs,
    RouteDescriptor,
)


def _route(d: RouteDescriptor, args: RouteArgs) -> None:
    import torch

    rows = d.total_num_rows if args.num_valid is None else valid_count(args.num_valid, d.total_num_rows)
    z = args.logits[:rows].float()
    z = (z if args.bias is None else z + args.bias).double()
    ids = args.given_ids[:rows].long() if d.ids_given else top_experts(d, z, args.correction)
    known = (ids >= 0) & (ids < d.experts)
    chosen = ids.clamp(0, d.experts - 1)
    if d.score == "softmax_chosen":
        picked = z.gather(1, chosen).masked_fill(~known, -math.inf).softmax(1)
    else:
        picked = scores_of(d, z).gather(1, chosen)
    picked = torch.where(known, picked, 0.0)
    if d.renormalise:
        total = picked.sum(1, keepdim=True)
        picked = picked / torch.where(total == 0, 1.0, total)
    args.weights[:rows] = (picked * d.scale).float()
    if not d.ids_given:
        args.ids[:rows] = ids.to(torch.int32)
    if args.loads is not None:
        args.loads.copy_(loads_of(d, ids[known]))
    if args.physical_ids is not None:
        args.physical_ids[:rows] = physical(d, args, chosen)


def _sort(d: MoeSortDescriptor, args: MoeSortArgs) -> None:
    import torch

    local = args.ids.flatten().long() - d.first_expert
    own = (local >= 0) & (local < d.local)
    order = torch.where(own, local, d.local).argsort(dim=0, stable=True)[: int(own.sum())]
    counts = torch.bincount(local[own], minlength=d.local)
    args.indptr.copy_(torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    args.places.fill_(-1)
    args.places.view(-1)[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    for made, values in ((args.order, order), (args.x_rows, order // d.top_k)):
        made.zero_()
        made[: len(order)] = values.to(torch.int32)


def _gather(d: MoeGatherDescriptor, args: MoeGatherArgs) -> None:
    many = d.total_num_rows * d.top_k
    order = args.order if args.num_valid is None else args.order[: valid_count(args.num_valid, many)]
    order = order.long()
    at = ((order >= 0) & (order < many)).nonzero().flatten()
    rows = args.x[order[at] // d.top_k]
    if args.weights is not None:
        rows = (rows.double() * args.weights.view(-1)[order[at], None].double()).to(rows.dtype)
    args.out[at] = rows


def _combine(d: MoeCombineDescriptor, args: MoeCombineArgs) -> None:
    import torch

    total = args.out.new_zeros(args.out.shape, dtype=torch.float64)
    for slot in range(d.top_k):
        place = args.places[:, slot].long()
        at = ((place >= 0) & (place < d.total_num_rows * d.top_k)).nonzero().flatten()
        part = args.y[place[at]].double()
        total[at] += part if args.weights is None else part * args.weights[at, slot, None].double()
    total = total * d.scale
    args.out.copy_(total if args.add is None else total + args.add.double())


def _promise(model: str, **constants: float) -> PrecisionGuarantee:
    found = ErrorModel(id=model, constants=tuple(sorted(constants.items())))
    return PrecisionGuarantee(math_precision="f64", accumulator="f64", error_model=found, conditions=(READS_INDICES,))


def _routed(d: RouteDescriptor) -> PrecisionGuarantee:
    return _promise("route-f64", score=2.0**-48, u=2.0**-24)


def _sorted(d: MoeSortDescriptor) -> PrecisionGuarantee:
    return _promise("exact")


def _gathered(d: MoeGatherDescriptor) -> PrecisionGuarantee:
    return _promise("moe-f64", u_acc=2.0**-53) if d.weighted else _promise("exact")


def _combined(d: MoeCombineDescriptor) -> PrecisionGuarantee:
    return _promise("moe-f64", u_acc=2.0**-53)


def _logits(d: RouteDescriptor) -> Pairs:
    return (("logits", d.dtype),)


def _ids(d: MoeSortDescriptor) -> Pairs:
    return (("ids", "i32"),)


def _rows(d: MoeGatherDescriptor | MoeCombineDescriptor) -> Pairs:
    return (("x", d.dtype),)


def _choices(d: RouteDescriptor) -> Pairs:
    flags = ("bias", "correction", "ids_given", "renormalise")
    grouped = {"group_score": d.group_score} if d.groups > 1 else {}
    return tuple(sorted({"score": d.score, **grouped, **{name: True for name in flags if getattr(d, name)}}.items()))


def _weighted(d: MoeGatherDescriptor | MoeCombineDescriptor) -> Pairs:
    return tuple((name, True) for name in ("add", "weighted") if getattr(d, name, False))


def _layer_dtypes(d: FusedMoeDescriptor) -> Pairs:
    return (() if d.scaling is None else (("weight", "f8_e4m3"),)) + (("x", d.dtype),)


def _wiring(d: FusedMoeDescriptor) -> Pairs:
    """Facts about the order of steps; all others are in the SKUs of the steps."""
    halves = (("halves", d.halves),) if d.gated else ()
    return halves if d.scaling is None else (*halves, ("scale", d.scaling))


CANDIDATES = (
    reference(RouteDescriptor, _routed, _logits, _route, _choices),
    reference(MoeSortDescriptor, _sorted, _ids, _sort),
    reference(MoeGatherDescriptor, _gathered, _rows, _gather, _weighted),
    reference(MoeCombineDescriptor, _combined, _rows, _combine, _weighted),
    composed(FusedMoeDescriptor, "reference", _layer_dtypes, _wiring),
)
