"""Requests of many lengths, from which batches are built. Four neighbours have no keys; others have NaN and infinities."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.plans._attention.work import rows_each
from opfacade.testing import inputs
from opfacade.testing.batches import NEIGHBOURS, Campaign, changed, log_uniform
from opfacade.testing.families.attention import oracle
from opfacade.testing.families.attention.requests import Requests, put_kv

if TYPE_CHECKING:
    from opfacade.testing.subject import Subject


def population(subject: Subject, campaign: Campaign, rng: random.Random) -> Requests:
    """One call with all needles, followed by all neighbours."""
    kv = [log_uniform(rng, campaign.longest) for _ in range(campaign.needles)]
    kv += [0, 0, 0, 0, *(log_uniform(rng, campaign.longest) for _ in range(NEIGHBOURS - 4))]
    decode = "q_indptr" not in operands_of(subject.descriptor)
    q = [rows_each(subject.descriptor) if decode else min(n, log_uniform(rng, campaign.q_longest)) for n in kv]
    descriptor = _grown(subject.descriptor, q, kv)
    args = inputs.make_args(descriptor, rng.randrange(2**31), subject.device, inputs.DrawnLengths(q=q, kv=kv))
    for request in range(campaign.needles, len(kv)):
        for at, value in ((0, math.nan), (1, math.inf)):
            tensors = oracle.request_kv(descriptor, args, request)
            spoilt = tensors[at].clone()
            spoilt[:: 1 + request % 3] = value
            put_kv(descriptor, args, request, **{"kv"[at]: spoilt})
    return Requests(descriptor, args)


def _grown(descriptor: Descriptor[Any], q: Sequence[int], kv: Sequence[int]) -> Any:
    fields: dict[str, Any] = {"batch_size": len(kv)}
    if "q_indptr" in operands_of(descriptor):
        fields["total_num_rows"] = sum(q)
    if not hasattr(descriptor, "paged_kv"):
        return changed(descriptor, **fields, total_kv_rows=sum(kv))
    cache = descriptor.paged_kv.model_dump()
    pages = sum(-(-n // cache["page_size"]) for n in kv) + 3
    return changed(descriptor, **fields, max_kv_indices=None, paged_kv=cache | {"num_total_pages": pages})
