"""Writes a .clangd file, so that an editor resolves kernels/, csrc/ and generated sources like the compilers."""

from __future__ import annotations

import json
from pathlib import Path

from opfacade.jit import cache
from opfacade.jit.spec import source_root
from opfacade.jit.toolchain import Toolchain, find, tvm_ffi_paths


def text(tools: Toolchain, arch: str) -> str:
    """The configuration, with one part for device code and one for bindings. JSON strings are valid YAML strings."""
    includes, _ = tvm_ffi_paths()
    own = [f"-I{source_root()}", "-std=c++17"]
    cuda = [*own, "-xcuda", f"--cuda-gpu-arch={arch}", f"--cuda-path={tools.home}", "--cuda-device-only"]
    cuda += ["-nocudalib", "-Wno-unknown-cuda-version", f"-isystem{tools.cuda_include}", f"-isystem{tools.cuda_include}/cccl"]
    host = [*own, "-xc++", *(f"-isystem{path}" for path in (*includes, tools.cuda_include))]
    return "---\n".join([_part(r".*\.(cu|cuh)", cuda), _part(r".*\.(cc|h)", host)])


def write(place: Path | None = None, arch: str = "sm_90a") -> tuple[Path, ...]:
    """Write the configuration to `place`, or to the directory of kernels/ and, for generated sources, to the cache. Returns the
    files."""
    content = text(find(cache.toolchain_memo()), arch)
    folders = [place] if place else [source_root(), cache.root()]
    for folder in folders:
        (folder / ".clangd").write_text(content)
    return tuple(folder / ".clangd" for folder in folders)


def _part(pattern: str, flags: list[str]) -> str:
    added = "\n".join(f"    - {json.dumps(flag)}" for flag in flags)
    return f"If:\n  PathMatch: {json.dumps(pattern)}\nCompileFlags:\n  Add:\n{added}\n"
