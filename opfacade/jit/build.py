"""One build: ninja runs nvcc and g++ in parallel in a private directory, then links the cubin into the binding. A library
without device code needs only g++.

The key covers all inputs of a build: the rendered sources and the headers are copied to the staging directory and compiled by
relative path, without the user's environment variables.
"""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.base.installation import install_cuda
from opfacade.errors import CompileError, ToolchainError
from opfacade.jit import fault_points as faults
from opfacade.jit import findings, options, runner
from opfacade.jit.codegen import DEVICE_HEADER, Sources
from opfacade.jit.findings import SassFinding
from opfacade.jit.runner import LOG, BuildStep
from opfacade.jit.spec import JitSpec
from opfacade.jit.toolchain import Toolchain, tvm_ffi_paths

NVCC_FLAGS = ("-cubin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "-Xptxas", "-v")
# nvcc includes cuda_runtime.h before every source; defining its include guard makes it empty.
LEAN_FLAGS = ("-D__CUDA_RUNTIME_H__", "-include", DEVICE_HEADER)
CXX11_ABI = "1"  # explicit, because g++'s default depends on the distribution
# -Og: a binding is a few comparisons and one launch; -O1 takes twice as long to compile them.
CXX_FLAGS = ("-c", "-Og", "-std=c++17", "-fPIC", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={CXX11_ABI}")
LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now")
OUTPUT = "kernel.so"
CUBIN = "kernel.cubin"

_EMBED = """\
.section .rodata
.balign 64
.globl opfacade_cubin
.hidden opfacade_cubin
opfacade_cubin:
.incbin "kernel.cubin"
.byte 0
.section .note.GNU-stack,"",%progbits
"""
_KEPT = {OUTPUT, LOG, "build.ninja", "kernel.cubin"}
_TAIL_LINES = 40
_REMOVAL_SECONDS = 0.3
_ELF_SHARED = (b"\x7fELF", 3)
_FAILED = re.compile(r"^FAILED: (?:\[code=(\d+)\] )?(\S+)", re.MULTILINE)
_ERROR_LINE = re.compile(r"^.*(?:\berror\b|\bfatal\b|undefined reference).*$", re.MULTILINE | re.IGNORECASE)
# Compiler messages for errors in generated code. Errors of the machine (headers, memory, versions) have other messages.
_REFUSED_CODE = re.compile(
    r"^(?:(?:src/|\w+\.c[uc]\b)\S*(?:\(\d+\)|:\d+:\d+): error|ptxas (?:\S+, line \d+; )?(?:error|fatal +: (?:Unresolved|Ptx)))",
    re.MULTILINE,
)
_NEEDS_PTXAS = re.compile(r"^// requires: ptxas >= (\d+)\.(\d+)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '[^']+'")
_USED = re.compile(r"Used (\d+) registers")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_into(staging: Path, spec: JitSpec, sources: Sources, toolchain: Toolchain, key: str) -> dict[str, Any]:
    """Build `spec` in the empty directory `staging`; it then holds kernel.so, build.log and the sources.

    Returns the facts to record about the build. Raises CompileError (with log and command), CompileTimeout or ToolchainError.
    """
    from opfacade.jit import sass as inspect  # not needed for a lookup, and its import takes as long as a lookup

    refuse_old_ptxas(sources, toolchain)
    write_sources(staging, spec, sources)
    faults.at("sources.written")
    steps = plan_steps(spec, toolchain, sources.lean)
    returncode = runner.run(staging, steps)
    log = (staging / LOG).read_text(errors="replace")
    if env.jit_verbose():
        print(log, flush=True)
    if returncode != 0 or not (staging / OUTPUT).exists():
        _refuse_disturbed(staging, steps, log)
    if returncode != 0:
        raise _compile_error(spec, staging, steps, returncode, log, key)
    _require_library(staging / OUTPUT, log)
    # A debug build keeps every variable in memory, so its spills are meaningless.
    judged = spec.has_device_code and not env.jit_debug()
    sass, found = "debug" if spec.has_device_code else "no device code", list[SassFinding]()
    if judged:
        sass, found = inspect.judge(spec.name, sources.device_text, log, staging / CUBIN, toolchain)
    _drop_intermediates(staging, spec)
    faults.at("compiled")
    commands = [list(step.argv) for step in steps]
    return {"resources": resources(log), "sass": sass, "findings": findings.record(found), "commands": commands}


def plan_steps(spec: JitSpec, toolchain: Toolchain, lean: bool) -> tuple[BuildStep, ...]:
    """The commands of a build, with paths relative to its directory. lean: see kernels/common/device.cuh."""
    includes, library = tvm_ffi_paths()
    binding, cxx = f"{spec.name}.cc", str(toolchain.cxx)
    system = [token for path in (*includes, toolchain.cuda_include) for token in ("-isystem", str(path))]
    # Checks in tvm-ffi's headers print __FILE__, but their installation path must not change the binary.
    mapped = [f"-ffile-prefix-map={path}=tvm_ffi" for path in includes]
    own = () if spec.has_device_code else spec.flags
    host = (cxx, *CXX_FLAGS, *own, *options.host(), *mapped, "-I", "src", *system, "-o", "binding.o", binding)
    compiled, linked = BuildStep("binding.o", (binding,), host), (cxx, *LINK_FLAGS, "-o", OUTPUT, "binding.o")
    if not spec.has_device_code:
        return (compiled, BuildStep(OUTPUT, ("binding.o",), (*linked, str(library), "-ldl")))
    embedded = BuildStep(OUTPUT, ("binding.o", CUBIN, "embed.s"), (*linked, "embed.s", str(library), "-ldl"))
    return (_device_step(spec, toolchain, lean), compiled, embedded)


def _device_step(spec: JitSpec, toolchain: Toolchain, lean: bool) -> BuildStep:
    nvcc = [str(toolchain.nvcc), *NVCC_FLAGS, *options.device(), f"-arch={spec.arch}", *spec.flags]
    nvcc += ["-ccbin", str(toolchain.cxx), "-I", "src", *(LEAN_FLAGS if lean else ())]
    nvcc += ["-isystem", str(toolchain.cuda_include), "-o", CUBIN, f"{spec.name}.cu"]
    return BuildStep(CUBIN, (f"{spec.name}.cu",), tuple(nvcc))


def resources(log: str) -> dict[str, dict[str, int]]:
    """Resources of each kernel as reported by ptxas: registers, stack and spilled bytes, by symbol."""
    found: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            current = found.setdefault(entry[1], {})
        if spill := _SPILL.search(line):
            current |= {"stack": int(spill[1]), "spill_stores": int(spill[2]), "spill_loads": int(spill[3])}
        if used := _USED.search(line):
            current["registers"] = int(used[1])
    return found


def _refuse_disturbed(staging: Path, steps: tuple[BuildStep, ...], log: str) -> None:
    """Raises FileNotFoundError if a failure is due to files that disappeared because another process clears the cache."""
    made = {step.output for step in steps}
    written = sorted({name for step in steps for name in step.inputs} - made)
    if any(name in log and not (staging / name).exists() for name in made):
        time.sleep(_REMOVAL_SECONDS)  # removal by another process deletes more files; a command that wrote no file does not
    if not all((staging / name).exists() for name in written):
        raise FileNotFoundError(errno.ENOENT, "files of a build were removed while it was running", str(staging))


def _require_library(path: Path, log: str) -> None:
    """Checks the output file: a compiler may report success although it wrote no file or an invalid one."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        head = b""
    if (head[:4], int.from_bytes(head[16:18], "little")) != _ELF_SHARED:
        error = CompileError(f"the compilers reported success, but {path} is not a shared library. [OPF-J032]")
        error.log_path, error.log_tail = str(path.parent / LOG), _tail(log)
        raise error


def refuse_old_ptxas(sources: Sources, toolchain: Toolchain) -> None:
    """Checks lines such as `// requires: ptxas >= 13.3` in a device source that older versions miscompile."""
    for needed in _NEEDS_PTXAS.finditer(sources.device_text):
        least, got = (int(needed[1]), int(needed[2])), toolchain.ptxas_release
        if got < least:
            raise ToolchainError(
                f"expected ptxas {least[0]}.{least[1]} or later, but {toolchain.home} has {got[0]}.{got[1]}, which miscompiles "
                f"this kernel. Install a newer one: {install_cuda()} [OPF-J013]"
            )


def write_sources(staging: Path, spec: JitSpec, sources: Sources) -> None:
    if spec.has_device_code:
        (staging / f"{spec.name}.cu").write_text(sources.device)
        (staging / "embed.s").write_text(_EMBED)
    (staging / f"{spec.name}.cc").write_text(sources.binding)
    for path, data in sources.headers:
        place = staging / "src" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def _compile_error(
    spec: JitSpec, staging: Path, steps: tuple[BuildStep, ...], returncode: int, log: str, key: str
) -> CompileError:
    failed = _FAILED.search(log)
    step = next((step for step in steps if failed and step.output == failed[2]), None)
    after = log[failed.end() :] if failed else log
    # The command line itself is logged first and may contain the word.
    output = after.split("\n", 2)[-1] if failed else after
    first = _ERROR_LINE.search(output)
    line = first[0].strip() if first else (output.strip().splitlines() or ["no output"])[0]
    command = shlex.join(step.argv) if step else "ninja"
    error = CompileError(
        f"{spec.name}: {line}\n  command: {command}\n  directory: {staging}\n  log: {staging / LOG} [OPF-J030]"
    )
    error.argv = step.argv if step else ()
    error.returncode = int(failed[1]) if failed and failed[1] else returncode
    error.log_path, error.key = str(staging / LOG), key
    error.log_tail = _tail(log)
    error.refused_code = _REFUSED_CODE.search(output) is not None
    return error


def _tail(log: str) -> str:
    return "\n".join(log.splitlines()[-_TAIL_LINES:])


def _drop_intermediates(staging: Path, spec: JitSpec) -> None:
    for path in staging.iterdir():
        if path.name not in _KEPT | {f"{spec.name}.cu", f"{spec.name}.cc"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
