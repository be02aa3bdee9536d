"""Builds FlashInfer's modules for the work of our attention EXAMPLES (bf16, head_dim 128), one JSON line per module.

    PYTHONPATH=DIR python bench/compile_flashinfer.py WORKDIR CUDA_HOME [decode|prefill_fa2|prefill_fa3 ...]

DIR holds the unpacked package. Needs CPU torch and curand's headers (pip install nvidia-curand); this script creates a libcuda
to link against. Nothing is loaded, so no GPU is needed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = ("decode", "prefill_fa2", "prefill_fa3")


def prepare(work: Path, cuda_home: Path) -> None:
    """FlashInfer's environment variables: one architecture, a separate workspace for this run, and the compiler that we use."""
    nvidia = [Path(p) for p in spec.submodule_search_locations or ()] if (spec := find_spec("nvidia")) else []
    headers = [f"-isystem {path}" for root in nvidia for path in root.glob("*/include") if (path / "curand.h").exists()]
    os.environ.update(
        FLASHINFER_WORKSPACE_BASE=str(work),
        FLASHINFER_CUDA_ARCH_LIST="9.0a",
        CUDA_HOME=str(cuda_home),
        FLASHINFER_EXTRA_CFLAGS=" ".join(headers),
        FLASHINFER_EXTRA_CUDAFLAGS=" ".join(headers),
        FLASHINFER_EXTRA_LDFLAGS=f"-L{_stubs(work / 'stubs', cuda_home)}",
    )


def _stubs(place: Path, cuda_home: Path) -> Path:
    place.mkdir(parents=True)
    subprocess.run(["cc", "-shared", "-o", place / "libcuda.so", "-x", "c", "/dev/null"], check=True)
    runtime = next(path for folder in ("lib64", "lib") for path in sorted((cuda_home / folder).glob("libcudart.so*")))
    (place / "libcudart.so").symlink_to(runtime)
    return place


def spec_of(module: str) -> Any:
    import torch
    from flashinfer.jit import attention

    types = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, 128, 128, 0, False, False)
    if module == "decode":
        return attention.gen_batch_decode_module(*types)
    return attention.gen_batch_prefill_module(module.removeprefix("prefill_"), *types, False)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(module: str) -> dict[str, Any]:
    spec = spec_of(module)
    wall, cpu = time.perf_counter(), cpu_seconds()
    spec.build()
    facts = {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(cpu_seconds() - cpu, 2)}
    return {"module": f"flashinfer/{module}", **facts, "bytes": spec.get_library_path().stat().st_size}


def main() -> None:
    work, cuda_home, *modules = sys.argv[1:]
    prepare(Path(work), Path(cuda_home))
    import flashinfer

    for module in modules or MODULES:
        print(json.dumps(measure(module) | {"version": flashinfer.__version__}), flush=True)


if __name__ == "__main__":
    main()
