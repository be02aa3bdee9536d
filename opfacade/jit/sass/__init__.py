"""Checks of a built kernel: spills, local memory, serialised wgmma, and registers reused too early.

The first three make a kernel slow without any message; a device source accepts one by name, in a line
such as `// allows: spills`. The last is wrong code (see sass.py) and cannot be accepted.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opfacade.base.installation import install_cuda
from opfacade.errors import CompileError
from opfacade.jit.sass import hazards as sass
from opfacade.jit.sass import words as sass_words
from opfacade.jit.toolchain import Toolchain, find_disassembler

NAMES = ("spills", "local-memory", "wgmma-serialization")
_ALLOWS = re.compile(r"^[ \t]*// allows: ([a-z, -]+?)[ \t]*$", re.MULTILINE)
_KERNEL = re.compile(r"(?:Compiling entry function|Function properties for) '?([\w$.]+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SERIALIZED = re.compile(r"\((C75\d\d)\) (.*?)(?: in (?:the )?function '?([\w$.]+)'?.*)?$")


@dataclass(frozen=True, slots=True)
class SassFinding:
    """A finding that a kernel's source may accept: its name, the kernel, and the details."""

    name: str
    kernel: str
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.text}"


def require_sound(kernel: str, device_source: str, log: str, cubin: Path, tools: Toolchain) -> str:
    """Raise CompileError for what `device_source` does not allow and for wrong code.

    Returns how the SASS was judged: "clean", "no wgmma", or "no disassembler".
    """
    findings, judged = list(ptxas_findings(log)), "no wgmma"
    if "wgmma" in device_source:
        judged = "clean"
    if judged == "clean" and is_doubtful(cubin.read_bytes()):
        text = disassembly(cubin, tools)
        judged = "clean" if text else "no disassembler"
        findings += [SassFinding("local-memory", name, "LDL or STL in its SASS") for name in sass.local_accesses(text)]
        _refuse_hazards(kernel, sass.lint(text))
    allowed = allowances(device_source)
    refused = [finding for finding in findings if finding.name not in allowed]
    if refused:
        more = "".join(f"\n  {finding}" for finding in refused[1:])
        hint = f"Mend the kernel, or accept it with the line `// allows: {refused[0].name}` in its source."
        raise CompileError(f"{kernel}: kernel {refused[0]}. {hint} [OPF-J033]{more}", code="OPF-J033", hint=hint)
    return judged


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
    """Whether a disassembler must be asked: something may be wrong with this code, or is not known without one."""
    try:
        return bool(sass.lint(sass_words.listing(cubin)))
    except sass_words.UnknownCodeError:
        return True


def disassembly(cubin: Path, tools: Toolchain) -> str:
    """The SASS of a cubin; empty where there is no disassembler."""
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
