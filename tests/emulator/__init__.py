"""Kernels without a GPU: device code and its binding, compiled for the host and run thread by thread.

Each thread is a fiber (simt.h); headers here shadow the launch and the headers of kernels/ptx that wrap instructions. The
emulator shows the values of a kernel, the bytes it reads and writes, and missing waits for copies and products; it shows races
in shared memory only where asked (watching), and neither the rounding of tensor cores nor time. It is slow: use small problems.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import tvm_ffi

from opfacade.backends.cuda import support
from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import DTYPES, torch_dtype
from opfacade.core.target import Target
from opfacade.jit import codegen, toolchain
from opfacade.testing.subject import Subject
from tests.emulator import builds
from tests.jit.fake_cuda import _Device, _Fake, _Tensor

ROOT = Path(__file__).resolve().parents[2]
_CODES = {torch_dtype(name): (facts.dlpack_code, facts.bits) for name, facts in DTYPES.items()}


def compiler() -> str | None:
    return shutil.which("g++")


needed = pytest.mark.skipif(compiler() is None, reason="no g++ to build kernels for the host with")


def build(spec, first: tuple[Path, ...] = (), made=builds.library) -> Path:
    """The shared library of a JitSpec. Headers in `first` precede those of the project."""
    sources = codegen.render(spec)
    system, library = toolchain.tvm_ffi_paths()
    includes = [token for path in (*first, ROOT / "tests/emulator", ROOT) for token in ("-I", str(path))]
    includes += [token for path in system for token in ("-isystem", str(path))]
    return made(compiler(), (sources.device, sources.binding), includes, (str(library), "-ldl"))


def cuda_view(tensor: torch.Tensor, held: list[object], device: int = 0) -> object:
    """The memory of a CPU tensor, labelled as memory of a GPU. DLPack borrows what is appended to `held`."""
    code, bits = _CODES[tensor.dtype]
    sizes = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
    steps = (ctypes.c_int64 * tensor.ndim)(*tensor.stride())
    managed = _Tensor(tensor.data_ptr(), _Device(2, device), tensor.ndim, code, bits, 1, sizes, steps, 0, None, None)
    held.append((managed, sizes, steps, tensor))
    return tvm_ffi.from_dlpack(_Fake(managed))


@cache
def library_of(spec) -> Path:
    """The library of a spec, built once per process."""
    return build(spec)


@cache
def whole(spec) -> Path:
    """A library that contains its kernels, so that a copy of it runs independently."""
    return build(spec, made=builds.whole)


def _forget():
    library_of.cache_clear()
    whole.cache_clear()


@contextmanager
def instead_of(name: str, text: str) -> Iterator[None]:
    """In this context, the emulator builds kernels with `text` instead of the project's header `name`."""
    plain = build
    with tempfile.TemporaryDirectory(prefix="opfacade-header-") as folder:
        path = Path(folder) / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        _forget()
        try:
            with patch(f"{__name__}.build", lambda spec, **more: plain(spec, (Path(folder),), **more)):
                yield
        finally:
            _forget()


def edited(name: str, *edits: tuple[str, str]):
    """As instead_of, with edits of the project's header; each old text must occur exactly once."""
    text = (ROOT / name).read_text()
    for right, wrong in edits:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    return instead_of(name, text)


@contextmanager
def trapping_unaligned() -> Iterator[None]:
    """Kernels built in this context end the process with a signal at an access whose address is misaligned for its type."""
    _forget()
    try:
        with patch.object(builds, "FLAGS", (*builds.FLAGS, "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")):
            yield
    finally:
        _forget()


@contextmanager
def watching() -> Iterator[None]:
    """A launch of a kernel built in this context fails if threads race for shared memory (order.h)."""
    _forget()
    try:
        with patch.object(builds, "OPTIMISED", (*builds.OPTIMISED, *builds.WATCHED)), patch.dict(os.environ, SIMT_ORDER="1"):
            yield
    finally:
        _forget()


def launcher(spec, descriptor, sku, allow_build, workspace, scalars):
    """A replacement for backends.cuda.support.launcher that runs in the emulator."""
    module = tvm_ffi.load_module(str(library_of(spec)))

    def launch(args, scratch):
        held: list[object] = []
        tensors = [cuda_view(getattr(args, name), held) for name in operands_of(descriptor)]
        module.run(*tensors, *([cuda_view(scratch, held)] if workspace else []), *scalars)

    return launch


def last_first(monkeypatch):
    """From now on, the last clusters, CTAs and warps run first, each as far as possible while the others wait."""
    monkeypatch.setenv("SIMT_BACKWARDS", "1")


@dataclass(frozen=True)
class EmulatedSubject(Subject):
    """A plan of the CUDA backend that runs in the emulator."""

    arch: str = "sm_90a"
    device_like: Target | None = None  # a device whose sizes differ from those of its architecture

    @property
    def _target(self) -> Target:
        return self.device_like or Target.parse(self.arch)

    def run(self, args, workspace=None) -> None:
        plan = self.plan
        if workspace is None:
            workspace = torch.randint(0, 256, (plan.workspace_size,), dtype=torch.uint8)
        held, support.launcher = support.launcher, launcher
        try:
            launch = plan._candidate.launcher(plan.descriptor, plan.target, plan.sku, True)
        finally:
            support.launcher = held
        launch(args, workspace)


def subject(descriptor, **more) -> EmulatedSubject:
    return EmulatedSubject(descriptor, "cuda", "cpu", **more)
