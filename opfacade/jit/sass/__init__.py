"""Checks of a built kernel: spills, local memory, serialised wgmma, and registers reused too early.

The first three make a kernel slow: they are recorded (`findings`), and a device source may accept them by name in a line such
as `// allows: spills`. The last is wrong code (see hazards.py) and is always an error.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opfacade.base.installation import install_cuda
from opfacade.errors import CompileError
from opfacade.jit.findings import NAMES, SassFinding
from opfacade.jit.sass import hazards as sass
from opfacade.jit.sass import words as sass_words
from opfacade.jit.toolchain import Toolchain, find_disassembler

_ALLOWS = re.compile(r"^[ \t]*// allows: ([a-z, -]+?)[ \t]*$", re.MULTILINE)
_KERNEL = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$.]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SERIALIZED = re.compile(r"\((C75\d\d)\) (.*?)(?: in (?:the )?function '?([\w$.]+)'?.*)?$")


def judge(kernel: str, device_source: str, log: str, cubin: Path, tools: Toolchain) -> tuple[str, list[SassFinding]]:
    """The result of the check, "clean", "no wgmma" or "no disassembler", and the findings.

    Raises CompileError (OPF-J034) for wrong code, and OPF-J033 for an unknown name after `// allows:`.
    """
    findings, judged = list(ptxas_findings(log)), "no wgmma"
    built = cubin.read_bytes()
    # A kernel for other GPUs may include a wgmma header for its other contents.
    if "wgmma" in device_source and not sass_words.is_for_other_gpus(built):
        judged = "clean"
    if judged == "clean" and is_doubtful(built):
        text = disassembly(cubin, tools)
        judged = "clean" if text else "no disassembler"
        findings += [SassFinding("local-memory", name, "LDL or STL in its SASS") for name in sass.local_accesses(text)]
        _refuse_hazards(kernel, sass.lint(text))
    allowed = allowances(device_source)
    return judged, [replace(finding, accepted=finding.name in allowed) for finding in findings]


def allowances(device_source: str) -> frozenset[str]:
    """Findings that a source accepts. Spills use the stack, so `spills` implies `local-memory`."""
    named = {name.strip() for line in _ALLOWS.findall(device_source) for name in line.split(",")}
    unknown = sorted(named - set(NAMES))
    if unknown:
        raise CompileError(f"`// allows:` expected {', '.join(NAMES)}, got {unknown[0]!r}. [OPF-J033]", code="OPF-J033")
    return frozenset(named | ({"local-memory"} if "spills" in named else set()))


def ptxas_findings(log: str) -> Iterator[SassFinding]:
    """Findings of `ptxas -v`: spills, stack frames and serialised wgmma."""
    kernel = "?"
    for line in log.splitlines():
        if named := _KERNEL.search(line):
            kernel = named[1]
        if numbers := _STACK.search(line):
            stack, stores, loads = map(int, numbers.groups())
            if stores or loads:
                yield SassFinding("spills", kernel, f"spills registers: {stores} bytes of stores, {loads} bytes of loads")
            elif stack:
                yield SassFinding("local-memory", kernel, f"uses a stack frame of {stack} bytes")
        if serialized := _SERIALIZED.search(line):
            yield SassFinding("wgmma-serialization", serialized[3] or kernel, f"{serialized[1]}: {serialized[2]}")


def is_doubtful(cubin: bytes) -> bool:
    """Whether a disassembler is needed: the code may be wrong, or the decoder does not know all of it."""
    try:
        return bool(sass.lint(sass_words.listing(cubin)))
    except sass_words.UnknownCodeError:
        return True


def disassembly(cubin: Path, tools: Toolchain) -> str:
    """The SASS of a cubin; empty without a disassembler."""
    program = find_disassembler(tools)
    if program is None:
        return ""
    option = "-c" if program.name == "nvdisasm" else "-sass"
    try:
        done = subprocess.run([program, option, cubin], capture_output=True, text=True, timeout=300, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{program} cannot disassemble {cubin}: {error}. [OPF-J034]", code="OPF-J034") from error
    return done.stdout


def _refuse_hazards(kernel: str, hazards: tuple[sass.Hazard, ...]) -> None:
    if hazards:
        rest = "".join(f"\n  {hazard}" for hazard in hazards[1:20])
        hint = f"The assembler made wrong code of this source: use a newer ptxas ({install_cuda()})."
        raise CompileError(f"{kernel}: kernel {hazards[0]}. {hint} [OPF-J034]{rest}", code="OPF-J034", hint=hint)
