"""Compile what a spec says, once per machine, and load it: `load` is the only door. Knows no operator.

A spec is rendered; the text and the compilers give a key. Hit: verify the binary and load it, no process is started.
Miss: take the key's lock, build in a staging directory, publish by one rename, load.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

from .. import env, telemetry
from ..errors import CompileError, JitDisabledError, ToolchainError
from . import build as _build
from . import cache, codegen, toolchain
from .codegen import Sources
from .spec import JitSpec, source_root

__all__ = ["JitSpec", "build", "forget", "is_built", "key", "load", "source_digest", "source_root"]

_by_spec: dict[JitSpec, Any] = {}
_by_path: dict[Path, Any] = {}
_locks: dict[JitSpec, threading.Lock] = {}
_guard = threading.Lock()


def load(spec: JitSpec, *, allow_build: bool = True, label: str = "") -> Any:
    """The tvm-ffi module of `spec`, built if it must be; repeated calls cost one dict lookup.

    Raises JitDisabledError if a build is needed and not allowed, CompileError and its kinds if it fails. A real build is
    counted and announced in telemetry under `label`.
    """
    module = _by_spec.get(spec)
    return module if module is not None else _load(spec, allow_build, label)


def build(spec: JitSpec, *, label: str = "") -> Path:
    """The shared object of `spec` in the cache, built if it is not there. Loads nothing, needs no GPU."""
    return _ensure(spec, True, label)


def is_built(spec: JitSpec) -> bool:
    """Whether a `load` would find a valid binary; builds nothing."""
    return _ready(spec, codegen.render(spec)) is not None


def key(spec: JitSpec) -> str:
    """SHA-256 over all that a binary depends on: sources, headers, flags, arch, compilers, tvm-ffi, opfacade."""
    return _key(spec, codegen.render(spec), toolchain.find(cache.toolchain_memo()))


def source_digest(spec: JitSpec) -> str:
    """The part of `key` that is opfacade's own: rendered sources, own headers, flags, arch; no compiler is looked for."""
    return codegen.source_digest(spec, codegen.render(spec))


def forget(spec: JitSpec | None = None) -> None:
    """Look again at the next `load`, of one spec or of all, and so pick up edited sources. Loaded code stays in use."""
    with _guard:
        if spec is None:
            _by_spec.clear()
        else:
            _by_spec.pop(spec, None)


def _load(spec: JitSpec, allow_build: bool, label: str) -> Any:
    with _guard:
        lock = _locks.setdefault(spec, threading.Lock())
    with lock:
        if (module := _by_spec.get(spec)) is not None:
            return module
        path = _ensure(spec, allow_build, label)
        with _guard:
            module = _by_path.get(path)
            if module is None:
                module = _by_path[path] = _open(path)
            _by_spec[spec] = module
        return module


def _open(path: Path) -> Any:
    import tvm_ffi

    return tvm_ffi.load_module(str(path))


def _ensure(spec: JitSpec, allow_build: bool, label: str) -> Path:
    sources = codegen.render(spec)
    found = _ready(spec, sources)
    if found is not None:
        return found
    if not allow_build or env.jit_disabled():
        raise _disabled(spec, sources)
    tools = toolchain.find(cache.toolchain_memo())
    wanted = _key(spec, sources, tools)
    with cache.lock(wanted, env.jit_timeout()):
        return cache.valid(cache.entry(wanted)) or _build_now(spec, sources, tools, wanted, label)


def _ready(spec: JitSpec, sources: Sources) -> Path | None:
    """The valid binary, if there is one. Without a compiler, one that another machine built from the same sources."""
    try:
        tools = toolchain.find(cache.toolchain_memo())
        return cache.valid(cache.entry(_key(spec, sources, tools)))
    except ToolchainError:
        return cache.find_by_source(codegen.source_digest(spec, sources))


def _key(spec: JitSpec, sources: Sources, tools: toolchain.Toolchain) -> str:
    import tvm_ffi

    from .. import __version__

    return codegen.canonical_digest(
        {
            "schema": cache.SCHEMA,
            "opfacade": __version__,
            "name": spec.name,
            "sources": sources.digests(),
            "arch": spec.arch,
            "flags": list(spec.flags),
            "recipe": [list(_build.NVCC_FLAGS), list(_build.CXX_FLAGS), list(_build.LINK_FLAGS)],
            "compilers": tools.identity,
            "tvm_ffi": tvm_ffi.__version__,
            "machine": platform.machine(),
        }
    )


def _build_now(spec: JitSpec, sources: Sources, tools: toolchain.Toolchain, wanted: str, label: str) -> Path:
    started = time.monotonic()
    cache.quarantine(wanted)
    with cache.staging() as staging:
        try:
            facts = _build.compile_into(staging, spec, sources, tools, wanted)
        except CompileError as error:
            _keep_log(error, wanted, staging)
            raise
        seconds = time.monotonic() - started
        facts |= {"spec": spec.identity, "source_digest": codegen.source_digest(spec, sources), "seconds": seconds}
        path = cache.publish(wanted, staging, _build.OUTPUT, facts)
    if label:
        telemetry.count_build(label, seconds)
        telemetry.emit("build", sku=label, key=wanted, seconds=seconds)
    return path


def _keep_log(error: CompileError, wanted: str, staging: Path) -> None:
    """The log outlives the staging directory; the error says where."""
    if (staging / _build.LOG).exists():
        kept = str(cache.keep_failed(wanted, staging))
        error.args = tuple(str(arg).replace(str(staging), kept) for arg in error.args)
        error.log_path, error.key = str(Path(kept) / _build.LOG), wanted


def _disabled(spec: JitSpec, sources: Sources) -> JitDisabledError:
    try:
        wanted = _key(spec, sources, toolchain.find(cache.toolchain_memo()))
    except ToolchainError:
        wanted = codegen.source_digest(spec, sources)
    return JitDisabledError(
        f"{spec.name} for {spec.arch} (key {wanted}) is not built and must not be built now. Prebuild it: call "
        f"plan.compile() where builds are allowed, with the same cache ({cache.root()}). [OPF-J040]",
        code="OPF-J040",
    )


def _after_fork() -> None:
    """A child has one thread; locks that others held at the fork would never open."""
    global _guard
    _guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)
