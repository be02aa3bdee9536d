"""Latent attention in torch: attention of one KV head whose keys are [ckv, kpe] and whose values are ckv."""

from __future__ import annotations

from opfacade.backends.reference.attention import promise
from opfacade.backends.reference.inference import in_inference_mode
from opfacade.backends.reference.page_table import checked, token_index
from opfacade.core.candidate import Candidate, Launcher
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor


def _decode(descriptor: BatchMlaDecodeDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    import torch

    from opfacade.backends.reference.attention.softmax import attend

    def launch(args: BatchMlaDecodeArgs, workspace: object) -> None:
        rows = descriptor.q_len
        scoring = promise.scoring(descriptor, args, causal=descriptor.causal and rows > 1)
        for request, (pages, length) in enumerate(checked(descriptor, args)):
            at, row = token_index(descriptor.paged_kv, pages, 0, length), slice(request * rows, (request + 1) * rows)
            latent = args.ckv[at][:, None]
            q = torch.cat([args.q_nope[row], args.q_pe[row]], -1)
            k = torch.cat([latent, args.kpe[at][:, None]], -1)
            attend(q, k, latent, scoring, args.o[row], args.lse[row] if args.lse is not None else None)

    return launch


CANDIDATES = (
    Candidate(
        "reference",
        "torch",
        BatchMlaDecodeDescriptor,
        promise.declines,
        promise.sku,
        promise.no_workspace,
        in_inference_mode(_decode),
        allocates=True,
        synchronises=True,
    ),
)
