"""Reports a launch error of the driver as the failed call of a SKU."""

from __future__ import annotations

from functools import lru_cache

from opfacade.core.sku import KernelSku
from opfacade.errors import DeviceError


class BegunError(Exception):
    """A kernel after the first of a call failed to launch. No path may retry the call, because its first kernel may have
    written in place. csrc/host/call_signature.h raises this error, and no path treats it as a refusal."""


@lru_cache(maxsize=1)
def register() -> None:
    """Registers BegunError with tvm-ffi, so that the host library can raise it by name."""
    import tvm_ffi

    tvm_ffi.register_error("BegunError", BegunError)


def device_error(sku: KernelSku, error: Exception) -> DeviceError:
    """The error that `run` raises for a failed launch."""
    text = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    raised = DeviceError(f"{sku.op}.run: {sku.id}: {text} [OPF-R010]", code="OPF-R010", op=sku.op, stage="run")
    raised.cuda_error = text
    raised.context_dead = "ILLEGAL_ADDRESS" in text or "illegal memory access" in text
    return raised
