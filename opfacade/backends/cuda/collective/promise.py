"""Guarantees of calls that run a kernel after an exchange between ranks."""

from __future__ import annotations

from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku


def with_kernel(known: KernelSku, kernel: KernelSku, promise: PrecisionGuarantee) -> KernelSku:
    """The SKU of a candidate that runs a kernel after the exchange; it names the kernel."""
    spec = tuple(sorted((*known.spec, ("behind", f"{kernel.op}.{kernel.impl}.{kernel.revision}"))))
    return known.model_copy(update={"spec": spec, "precision_guarantee": promise}).revalidated()


def bounded(promise: PrecisionGuarantee, wait: str, evidence: tuple[str, ...]) -> PrecisionGuarantee:
    """The guarantee with `bounded_wait` set, and the tests that show it."""
    return promise.model_copy(update={"bounded_wait": wait, "evidence": (*promise.evidence, *evidence)}).revalidated()


def in_f32(known: KernelSku, kernel: KernelSku, model: str) -> PrecisionGuarantee:
    constants = kernel.precision_guarantee.error_model.constants
    update = {"math_precision": "f32", "accumulator": "f32", "error_model": ErrorModel(id=model, constants=constants)}
    return known.precision_guarantee.model_copy(update=update).revalidated()
