"""The identity of a binary: its key, and the part of the key that a machine without compilers can compute."""

from __future__ import annotations

import platform
import re
from typing import Any

from opfacade.jit import build, codegen, options
from opfacade.jit.cache.store import SCHEMA
from opfacade.jit.codegen import Sources
from opfacade.jit.spec import JitSpec
from opfacade.jit.toolchain import Toolchain


def key(spec: JitSpec, sources: Sources, tools: Toolchain) -> str:
    """SHA-256 over everything that a binary depends on, in labelled fields, without paths and times."""
    from opfacade import __version__

    return codegen.canonical_digest(
        {
            "schema": SCHEMA,
            "opfacade": __version__,
            "name": spec.name,
            "sources": sources.digests(),
            "arch": spec.arch,
            "flags": list(spec.flags),
            "recipe": _recipe(),
            "compilers": tools.identity,
            "abi": abi(),
        }
    )


def portable(spec: JitSpec, sources: Sources) -> str:
    """The part of a key that is independent of the compiler and of the version among compatible tvm-ffi versions."""
    fields = {"source_digest": codegen.source_digest(spec, sources), "recipe": _recipe(), "arch": spec.arch}
    own = {**abi(), "tvm_ffi": _release(abi()["tvm_ffi"])[:2]}
    return codegen.canonical_digest({"schema": SCHEMA, "name": spec.name, **fields, "abi": own})


def code(spec: JitSpec, sources: Sources) -> str:
    """Digest of a kernel's inputs except the compilers: code without comments, flags, recipe, architecture.

    It does not depend on the version of opfacade, on paths or on installed software, so records of tests and measurements use
    it to identify kernels.
    """
    return codegen.canonical_digest({"code": codegen.source_digest(spec, sources.code), "recipe": _recipe(), "name": spec.name})


def compilers(tools: Toolchain) -> str:
    """Digest of the content of the compilers and the CUDA headers."""
    return codegen.canonical_digest(tools.identity)


def abi() -> dict[str, str]:
    """Facts that must be equal for a binary and the process that loads it."""
    import tvm_ffi

    return {
        "tvm_ffi": tvm_ffi.__version__,
        "cxx11_abi": build.CXX11_ABI,
        "machine": platform.machine(),
        "os": platform.system(),
    }


def fits(meta: dict[str, Any]) -> bool:
    """Whether this process can load an entry: its tvm-ffi must be of the same series and not older than the entry's."""
    built, here = meta.get("abi"), abi()
    if not isinstance(built, dict) or any(built.get(name) != here[name] for name in here if name != "tvm_ffi"):
        return False
    made_for, ours = _release(str(built.get("tvm_ffi"))), _release(here["tvm_ffi"])
    return made_for[:2] == ours[:2] and made_for <= ours


def _recipe() -> list[list[str]]:
    device = [*build.NVCC_FLAGS, *build.LEAN_FLAGS, *options.device()]
    return [device, [*build.CXX_FLAGS, *options.host()], list(build.LINK_FLAGS)]


def _release(version: str) -> list[int]:
    """A version as numbers: 0.1.15.post2 -> [0, 1, 15]."""
    return [int(number) for number in re.match(r"[0-9.]*[0-9]|", version)[0].split(".") if number]  # type: ignore[index]
