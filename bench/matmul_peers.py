"""Products of other libraries on our tensors. Each function returns a call, or raises if the library does not support the
problem.

torch uses the first algorithm that the heuristics of cuBLASLt suggest. Another peer is the fastest of all suggested algorithms,
which are timed here beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module, metadata

import torch

from bench.matmul_problems import Problem, dense
from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.backends.library import matmul as library
from opfacade.backends.library.cublaslt_product import Call as LibraryCall
from opfacade.backends.library.cublaslt_product import Chosen, Product
from opfacade.plans.matmul import MatmulArgs
from opfacade.testing.timing import time_gpu

Call = Callable[[], torch.Tensor]
TRIED = 3  # times of each algorithm before the fastest is chosen
REFUSALS = (ImportError, RuntimeError, TypeError, AttributeError, OSError, ValueError, AssertionError, NotImplementedError)


@contextmanager
def _library(name: str) -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _torch(problem: Problem, args: MatmulArgs, library: str) -> Call:
    """Selects torch's BLAS library in each call, because contenders alternate."""
    made = _torch_halves(problem, args) if problem.descriptor.scaling is None else _torch_scaled(problem, args)

    def call() -> torch.Tensor:
        with _library(library):
            return made()

    return call


def _torch_halves(problem: Problem, args: MatmulArgs) -> Call:
    """Codes are decoded before the timing, so torch gets a 16-bit weight."""
    x, weight, out = args.x, args.weight, args.out
    weight = dense(problem.descriptor, args) if problem.kind == "W4A16" else weight
    assert x is not None
    assert weight is not None
    found, turned = torch.empty_like(out), weight.T
    return lambda: torch.mm(x, turned, out=found)


def _torch_scaled(problem: Problem, args: MatmulArgs) -> Call:
    """Scales in torch's form: a single scale, a column and a row, or blocks; the blocks of x are column-major."""
    x, weight, x_scale, weight_scale = args.x, args.weight, args.x_scale, args.weight_scale
    assert weight is not None
    assert x_scale is not None
    assert weight_scale is not None
    if problem.kind == "token":
        scales = (x_scale[:, None], weight_scale[None, :])
    elif problem.kind == "block":
        scales = (x_scale[:, : problem.descriptor.total_num_rows].T, weight_scale.T)
    else:
        scales = (x_scale, weight_scale)
    return lambda: torch._scaled_mm(x, weight.T, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)


def _best_algorithm(problem: Problem, args: MatmulArgs) -> Call:
    """The fastest algorithm that the heuristics suggest, with the workspace that NVIDIA recommends."""
    if problem.kind != "bf16":
        raise NotImplementedError(f"operands of kind {problem.kind}")
    found = torch.empty_like(args.out)
    version, loaded = cublaslt.installed(), args.out.device
    if version is None:
        raise NotImplementedError("cuBLAS is not installed")
    opened = cublaslt.load(version)
    facts = library._facts_of(problem.descriptor, replace(args, out=found), library._WORKSPACE)
    product = Product(opened, opened.handle(loaded), facts)
    room = torch.empty(library._WORKSPACE, dtype=torch.uint8, device=loaded)
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def call() -> torch.Tensor:
        a, b, c, workspace = (library._address(one) for one in (args.weight, args.x, found, room))
        product.run(LibraryCall(one, zero, a, b, c, c, 0, workspace, library.stream_of(loaded)))
        return found

    def microseconds(chosen: Chosen) -> float:
        product.chosen = chosen
        return time_gpu(call, samples=TRIED, warmup=1).median

    product.chosen = min(product.allowed(), key=microseconds)
    return call


def _deep_gemm(problem: Problem, args: MatmulArgs) -> Call:
    module, found = import_module("deep_gemm"), torch.empty_like(args.out)
    if problem.kind == "bf16":
        return lambda: (module.bf16_gemm_nt(args.x, args.weight, found), found)[1]
    if problem.kind != "block":
        raise NotImplementedError(f"scales of kind {problem.kind}")
    assert args.x_scale is not None
    x_scale = args.x_scale.T[: problem.descriptor.total_num_rows]
    return lambda: (module.fp8_gemm_nt((args.x, x_scale), (args.weight, args.weight_scale), found), found)[1]


def _flashinfer(problem: Problem, args: MatmulArgs) -> Call:
    module = import_module("flashinfer")
    if problem.kind != "bf16":
        raise NotImplementedError(f"scales of kind {problem.kind} on sm_90")
    assert args.weight is not None
    turned = args.weight.T
    return lambda: module.mm_bf16(args.x, turned)


PEERS: dict[str, Callable[[Problem, MatmulArgs], Call]] = {
    "torch, cuBLASLt": lambda problem, args: _torch(problem, args, "cublaslt"),
    "torch, cuBLAS": lambda problem, args: _torch(problem, args, "cublas"),
    "cuBLASLt, best of its algorithms": _best_algorithm,
    "DeepGEMM": _deep_gemm,
    "FlashInfer": _flashinfer,
}


def versions() -> dict[str, str]:
    """The versions of the installed peers."""
    found = {}
    for package in ("deep_gemm", "flashinfer-python", "nvidia-cublas", "nvidia-cublas-cu12"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
