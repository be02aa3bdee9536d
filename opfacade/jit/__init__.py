"""Compiles specs, once per machine, and loads them; `load` is the only entry point. Independent of operators.

A spec is rendered; the text and the compilers determine a key. Hit: verify the binary and load it, without starting a process.
Miss: take the key's lock, build in a staging directory, publish by one rename, load.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opfacade import env, telemetry
from opfacade.errors import CacheError, CacheSecurityError, JitDisabledError, ToolchainError
from opfacade.jit import build as _build
from opfacade.jit import cache, codegen, findings, identity, rendered, toolchain
from opfacade.jit.codegen import Sources
from opfacade.jit.findings import SassFinding
from opfacade.jit.host import HOST
from opfacade.jit.spec import JitSpec, source_root

__all__ = [
    "HOST", "JitSpec", "build", "build_for_plan", "cache_state", "cache_state_for_plan", "code_digest", "code_digest_of",
    "compiler_digest", "compiler_digest_of", "forget", "is_built", "is_built_for_plan", "key", "load", "slow_code",
    "source_digest", "source_root",
]  # fmt: skip

_by_spec: dict[JitSpec, Any] = {}
_by_path: dict[Path, Any] = {}
_slow: dict[JitSpec, list[str]] = {}  # loaded kernels with slow code, and their findings
_locks: dict[JitSpec, threading.Lock] = {}
_guard = threading.Lock()


def load(spec: JitSpec, *, allow_build: bool = True, label: str = "") -> Any:
    """The tvm-ffi module of `spec`, built if it must be; repeated calls cost one dict lookup.

    Raises JitDisabledError if a build is needed and not allowed, and CompileError or a subclass if the build fails. Telemetry
    counts and reports each actual build under `label`, and each load of a kernel with slow code.
    """
    module = _by_spec.get(spec)
    if module is None:
        module = _load(spec, allow_build, label)
    if label and spec in _slow:
        telemetry.stats(label).spills.add()
        telemetry.emit("spill", sku=label, kernels=_slow[spec])
    return module


def build(spec: JitSpec, *, allow_build: bool = True, label: str = "") -> Path:
    """The shared object of `spec` in the cache, built if it is not there. Loads nothing, needs no GPU."""
    return _ensure(spec, allow_build, label)


def is_built(spec: JitSpec) -> bool:
    """Whether a `load` would find a valid binary; builds nothing."""
    return _ready(spec, rendered.sources(spec)) is not None


def cache_state(spec: JitSpec) -> str:
    """ "shared", "private" (built by this process for itself, because the cache cannot be used) or "absent"."""
    found = _ready(spec, rendered.sources(spec))
    return cache.state(found) if found else "absent"


def slow_code(spec: JitSpec) -> tuple[SassFinding, ...]:
    """Spills and other slow code in the built kernel of `spec`; () also if it is not built. Builds nothing."""
    found = _ready(spec, rendered.sources(spec))
    return findings.of_library(found) if found else ()


def build_for_plan(spec: JitSpec, *, allow_build: bool = True, label: str = "") -> Path:
    """`build` for a plan with this kernel, whose calls also need the host library."""
    kernel = build(spec, allow_build=allow_build, label=label)
    build(HOST, allow_build=allow_build)
    return kernel


def is_built_for_plan(spec: JitSpec) -> bool:
    return is_built(spec) and is_built(HOST)


def cache_state_for_plan(*specs: JitSpec) -> str:
    states = {cache_state(spec) for spec in (*specs, HOST)}
    return next(state for state in ("absent", "private", "shared") if state in states)


def key(spec: JitSpec) -> str:
    """SHA-256 over everything that a binary depends on: sources, headers, flags, arch, compilers, tvm-ffi, opfacade."""
    return identity.key(spec, codegen.render(spec), toolchain.find(cache.toolchain_memo()))


def source_digest(spec: JitSpec) -> str:
    """The part of `key` that does not depend on compilers: rendered sources, our headers, flags, arch."""
    return codegen.source_digest(spec, codegen.render(spec))


def code_digest(spec: JitSpec) -> str:
    """Digest of a kernel's code: rendered sources and headers without comments, flags, arch; no compiler."""
    return identity.code(spec, rendered.sources(spec))


def code_digest_of(specs: Sequence[JitSpec]) -> str:
    """`code_digest` of the kernels of one plan; for several, a digest of their digests in order."""
    return _together([code_digest(spec) for spec in specs])


def compiler_digest_of(specs: Sequence[JitSpec]) -> str:
    """`compiler_digest` of a plan's kernels: the common digest, or a digest of several; "" if one is unknown."""
    found = [compiler_digest(spec) for spec in specs]
    if not all(found):
        return ""
    return found[0] if len(set(found)) == 1 else _together(found)


def _together(digests: Sequence[str]) -> str:
    return digests[0] if len(digests) == 1 else codegen.canonical_digest({"parts": list(digests)})


def compiler_digest(spec: JitSpec) -> str:
    """Digest of the compilers of the binary that a load would return: from its cache entry if no compiler may run, otherwise
    from this machine; "" if unknown."""
    sources = rendered.sources(spec)
    try:
        tools = toolchain.find(cache.toolchain_memo())
        if not env.jit_disabled() or cache.valid(identity.key(spec, sources, tools)):
            return identity.compilers(tools)
    except ToolchainError:
        pass
    except CacheSecurityError:
        return ""
    found = _portable(spec, sources)
    return str(cache.meta(found.parent.name).get("compilers", "")) if found else ""


def forget(spec: JitSpec | None = None) -> None:
    """Make the next `load` of one spec, or of all, read the sources again. Loaded code stays in use."""
    with _guard:
        for one in list(_by_spec) if spec is None else [spec]:
            _by_spec.pop(one, None)
            _slow.pop(one, None)


def _load(spec: JitSpec, allow_build: bool, label: str) -> Any:
    with _guard:
        lock = _locks.setdefault(spec, threading.Lock())
    with lock:
        if (module := _by_spec.get(spec)) is None:
            module = _by_spec[spec] = _open_found(spec, allow_build, label)
        return module


def _open_found(spec: JitSpec, allow_build: bool, label: str) -> Any:
    try:
        return _opened(spec, _ensure(spec, allow_build, label))
    except CacheError as error:
        if error.errno != errno.ENOENT:
            raise
    # The library was removed between the check and the load. A clean-up skips locked keys, so load it under the lock.
    if not allow_build or env.jit_disabled():
        return _opened(spec, _ensure(spec, allow_build, label))
    opened, tools = [None], toolchain.find(cache.toolchain_memo())
    _Build(spec, rendered.refresh(spec), tools, label).run(lambda path: opened.append(_opened(spec, path)))
    return opened[-1]


def _opened(spec: JitSpec, path: Path) -> Any:
    findings.require_fast(spec.name, path)
    module = _open_once(path)
    if slow := findings.of_library(path):
        _slow[spec] = [str(finding) for finding in slow]
    return module


def _open_once(path: Path) -> Any:
    with _guard:
        if path not in _by_path:
            _by_path[path] = _open(path)
        return _by_path[path]


def _open(path: Path) -> Any:
    import tvm_ffi

    try:
        return tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError) as error:
        raise _unloadable(path, error) from error


def _unloadable(path: Path, error: Exception) -> CacheError:
    """The reason why an intact library cannot be loaded: removed since, on a noexec disk, or built for another system."""
    if not path.exists():
        why, number = "it was removed", errno.ENOENT
    elif os.statvfs(path).f_flag & os.ST_NOEXEC:
        why, number = "its file system is mounted noexec. Set OPFACADE_CACHE_DIR to one that is not", errno.EPERM
    else:
        why, number = str(error), errno.ENOEXEC
    return CacheError.of(f"{path} cannot be loaded: {why}. [OPF-J024]", OSError(number, os.strerror(number), str(path)))


def _ensure(spec: JitSpec, allow_build: bool, label: str) -> Path:
    library = _found_or_built(spec, allow_build, label)
    findings.require_fast(spec.name, library)
    return library


def _found_or_built(spec: JitSpec, allow_build: bool, label: str) -> Path:
    found = _ready(spec, rendered.sources(spec))
    if found is not None:
        return found
    sources = rendered.refresh(spec)
    if not allow_build or env.jit_disabled():
        # A binary of the same sources by another compiler is better than no binary.
        found = _portable(spec, sources)
        if found is not None:
            return found
        raise _disabled(spec, sources)
    return _Build(spec, sources, toolchain.find(cache.toolchain_memo()), label).run()


def _ready(spec: JitSpec, sources: Sources) -> Path | None:
    """The valid binary, if there is one; without a compiler, a binary that another machine built from the same sources."""
    try:
        tools = toolchain.find(cache.toolchain_memo())
        return cache.valid(identity.key(spec, sources, tools))
    except ToolchainError:
        return _portable(spec, sources)


def _portable(spec: JitSpec, sources: Sources) -> Path | None:
    return cache.find(identity.portable(spec, sources), identity.fits)


@dataclass(frozen=True)
class _Build:
    """One requested build: spec, compilers, and the label for telemetry."""

    spec: JitSpec
    sources: Sources
    tools: toolchain.Toolchain
    label: str

    def run(self, use: cache.Use | None = None) -> Path:
        """The library, built if necessary. use: called with it while it is protected from removal."""
        key, built = identity.key(self.spec, self.sources, self.tools), []

        def make(staging: Path) -> dict[str, Any]:
            started = time.monotonic()
            facts = _build.compile_into(staging, self.spec, self.sources, self.tools, key)
            built.append(time.monotonic() - started)
            return {**facts, **self.record(), "seconds": built[-1]}

        path = cache.obtain(key, _build.OUTPUT, make, use)
        if built and self.label:
            telemetry.count_build(self.label, built[-1])
            telemetry.emit("build", sku=self.label, key=key, seconds=built[-1], cache=cache.state(path))
        return path

    def record(self) -> dict[str, Any]:
        """Contents of an entry's meta.json in addition to the compilers' reports."""
        return {
            "name": self.spec.name,
            "arch": self.spec.arch,
            "sku": self.label,
            "spec": self.spec.identity,
            "source_digest": codegen.source_digest(self.spec, self.sources),
            "portable": identity.portable(self.spec, self.sources),
            "compilers": identity.compilers(self.tools),
            "abi": identity.abi(),
        }


def _disabled(spec: JitSpec, sources: Sources) -> JitDisabledError:
    try:
        wanted = identity.key(spec, sources, toolchain.find(cache.toolchain_memo()))
    except ToolchainError:
        wanted = codegen.source_digest(spec, sources)
    return JitDisabledError(
        f"{spec.name} for {spec.arch} (key {wanted}) is not built and must not be built now. Prebuild it where "
        f"builds are allowed, with the same cache ({cache.root()}): plan.compile(), or `opfacade warmup FILE`. Or bring it in "
        "a bundle: `opfacade cache import BUNDLE`. [OPF-J040]",
        code="OPF-J040",
    )


def _after_fork() -> None:
    """Renews locks in a forked child, which has one thread: locks that other threads held would never be released."""
    global _guard
    _guard = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)
