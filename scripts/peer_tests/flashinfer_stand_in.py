"""`import flashinfer` imports opfacade.compat.flashinfer. A missing name becomes a stand-in that raises when it is called."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any

import torch

import opfacade.compat.flashinfer as ours

MODULES = (
    "activation", "attention", "cascade", "decode", "mla", "norm", "page", "prefill", "quantization", "rope", "sampling",
    "topk",
)  # fmt: skip


class NotHere(NotImplementedError):
    """A part of FlashInfer that opfacade.compat does not have was called."""


class Missing:
    """A stand-in for a missing name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise NotHere(f"{self._name} is not in opfacade.compat.flashinfer")

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __getitem__(self, key: object) -> Missing:  # FlashInfer's table of kernel sources
        return Missing(f"{self._name}[{key!r}]")

    def __or__(self, other: object) -> Missing:  # in annotations
        return self

    __ror__ = __or__

    def __iter__(self):
        return iter(())

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()


def _utilities() -> dict[str, Any]:
    """Functions by which tests query the machine."""

    def capability(device: object = None) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (9, 0)

    kind = lambda name: type(name, (Exception,), {})  # noqa: E731
    return {
        "get_compute_capability": capability,
        "device_support_pdl": lambda device: True,
        "has_flashinfer_jit_cache": lambda: True,
        "is_sm90a_supported": lambda device=None: capability(device)[0] == 9,
        "is_sm100a_supported": lambda device=None: False,
        "is_sm110a_supported": lambda device=None: False,
        "is_sm12x_supported": lambda device=None: False,
        "is_fa3_backend_supported": lambda *args, **kwargs: True,
        "get_device_sm_count": lambda device=None: torch.cuda.get_device_properties(device).multi_processor_count,
        "GPUArchitectureError": kind("GPUArchitectureError"),
        "BackendSupportedError": kind("BackendSupportedError"),
        "LibraryError": kind("LibraryError"),
    }


def _jit() -> dict[str, Any]:
    names = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
    none = lambda *args, **kwargs: []  # noqa: E731
    return {
        "JitSpec": type("JitSpec", (), {}),
        "MissingJITCacheError": type("MissingJITCacheError", (Exception,), {}),
        "build_jit_specs": none,
        "filename_safe_dtype_map": names,
        "gen_batch_mla_module": none,
        "gen_single_decode_module": none,
        "gen_single_prefill_module": none,
        "gen_batch_decode_module": none,
        "gen_batch_prefill_module": none,
        "gen_batch_attention_module": none,
        "gen_batch_mla_tvm_binding": none,
        "gen_quantization_module": none,
    }


def _check_of_fp8(wanted: list[torch.Tensor], got: list[torch.Tensor], *, max_mismatch_pct: float, **more: object) -> bool:
    """Whether at most this many elements of two fp8 tensors differ by one step or more."""
    pairs = zip(wanted, got, strict=True)
    shares = [torch.isclose(b.float(), a.float(), rtol=0.1, atol=0.1).float().mean().item() for a, b in pairs]
    return all(100 * (1 - share) <= max_mismatch_pct for share in shares)


# Names of modules besides those of the adapter; every algorithm of top-k is ours.
_MORE: dict[str, dict[str, Any]] = {
    "cutile.cutile_common": {"is_cuda_tile_available": lambda: False},
    "topk": {"can_implement_filtered_topk": lambda: True},
    "trace": {"default_check": _check_of_fp8},
}


class _Finder:
    """flashinfer and its modules, all from here."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name == "flashinfer" or name.startswith("flashinfer."):
            return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: object) -> None:
        return None

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        _fill(module, module.__name__.removeprefix("flashinfer").lstrip("."))


def _fill(module: types.ModuleType, tail: str) -> None:
    found: dict[str, Any] = {}
    if tail == "":
        found = {name: value for name, value in vars(ours).items() if not name.startswith("_") and name not in MODULES}
        found["__version__"] = "0.7.2"
    elif tail in MODULES:
        found = {name: value for name, value in vars(getattr(ours, tail)).items() if not name.startswith("__")}
    elif tail == "utils":
        found = _utilities()
    elif tail.split(".")[0] == "jit":
        found = _jit()
    module.__dict__.update(found | _MORE.get(tail, {}))
    module.__getattr__ = lambda name: _later(module.__name__, name)  # type: ignore[method-assign]


def _later(module: str, name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    if module == "flashinfer" and name in (*MODULES, "utils", "jit"):
        return importlib.import_module(f"{module}.{name}")
    return Missing(f"{module}.{name}")


def install() -> None:
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
    for name in ("flashinfer", *(f"flashinfer.{module}" for module in (*MODULES, "utils", "jit"))):
        importlib.import_module(name)
