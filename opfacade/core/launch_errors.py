"""Errors of launches, as the driver words them, told as a call of a SKU that failed."""

from __future__ import annotations

from functools import lru_cache

from opfacade.core.sku import KernelSku
from opfacade.errors import DeviceError


class BegunError(Exception):
    """A later kernel of a call was not launched, or not as it should be: no path may begin the call again, because its first
    kernel may have written in place. csrc/host/call_signature.h raises it; no path takes it for a refusal."""


@lru_cache(maxsize=1)
def register() -> None:
    """Let tvm-ffi raise BegunError where the host library names it."""
    import tvm_ffi

    tvm_ffi.register_error("BegunError", BegunError)


def device_error(sku: KernelSku, error: Exception) -> DeviceError:
    """The error that a run raises."""
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    raised = DeviceError(f"{sku.op}.run: {sku.id}: {text} [OPF-R010]", code="OPF-R010", op=sku.op, stage="run")
    raised.cuda_error = text
    raised.context_dead = "ILLEGAL_ADDRESS" in text or "illegal memory access" in text
    return raised
