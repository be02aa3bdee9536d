"""CUDA latent attention: no kernel yet, so the candidate says what is missing and is never chosen."""

from __future__ import annotations

from typing import NoReturn

from opfacade.backends.cuda import support
from opfacade.errors import UnsupportedError
from opfacade.plans.mla import BatchMlaDecodeDescriptor
from opfacade.registry import Candidate, Reason
from opfacade.target import Target


def _declines(descriptor: BatchMlaDecodeDescriptor, target: Target) -> list[Reason]:
    missing = Reason("OPF-S009", "op", descriptor.op, "an op with a CUDA kernel", 'Use Preference(backend="reference").')
    return [*support.arch_reasons(target), missing]


def _absent(descriptor: BatchMlaDecodeDescriptor, *rest: object) -> NoReturn:
    message = f"{descriptor.op}: a candidate that declined was asked to run. [OPF-S009]"
    raise UnsupportedError(message, code="OPF-S009", op=descriptor.op, stage="select")


CANDIDATES = (Candidate("cuda", "latent_tiles", BatchMlaDecodeDescriptor, _declines, _absent, _absent, _absent),)
