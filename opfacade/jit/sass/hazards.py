"""Finds registers in SASS that are overwritten while an asynchronous wgmma may still read them.

A wgmma with A in registers (`HGMMA ... R24, R4, gdesc[..]`) reads R4..R7 until a wait for its group. Old assemblers reused such
registers too early, which sometimes gives wrong numbers without an error. The check is a fixed point over the control flow,
including back edges of loops: a pure function of the text of nvdisasm, cuobjdump or words.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opfacade.jit.sass import flow as sass_flow
from opfacade.jit.sass.flow import Flow, Instruction

_FUNCTION = re.compile(r"^\s*(?:Function : |\.text\.)([\w$.]+?):?\s*$")
_LABEL = re.compile(r"^\s*(\.L_x_\w+|\.L_\w+):\s*$")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+([^;]*?)\s*;")
_MMA = re.compile(r"\b[A-Z]GMMA\.(\d+)x(\d+)x\d+(\.\S+)?\s+R(\d+),\s*(?:R(\d+)|\S+)")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
_A_REGISTERS = 4
_MAX_GROUPS = 8
# Opcodes that read their first operand, although it is a plain register.
_NO_RESULT = (
    "ST",
    "RED",
    "BAR",
    "BRX",
    "JMX",
    "CALL",
    "RET",
    "WARPSYNC",
    "NANOSLEEP",
    "R2UR",
    "SYNCS",
    "UTMA",
    "CCTL",
    "BRA",
    "FCHK",
)
_DOUBLE = re.compile(
    r"^(?:D(?:ADD|MUL|FMA|MNMX)|(?:I2F|F2F)\.F64|F2I\.\S*[SU]64|IMAD\.WIDE|CS2R(?!\.32)|HMMA\.\d+\.F16|.*\.64(?:\.|$))"
)
_QUAD = re.compile(r"^(?:(?:HMMA\.\d+\.F32|[IDQ]MMA)|.*\.128(?:\.|$))")
_MATRICES = re.compile(r"^LDSM\..*\.([24])$")
_RESULT = re.compile(r"^(?:!?U?PT?\d*,\s*)*R(\d+)\b(?!\])")

_Pending = tuple[frozenset[tuple[int, int]], ...]  # by age, the uncommitted group first: (register, wgmma address)


@dataclass(frozen=True, slots=True)
class Hazard:
    """An instruction that overwrites a register which the wgmma at `reader` may still be reading."""

    function: str
    address: int
    instruction: str
    register: int
    reader: int

    def __str__(self) -> str:
        where = f"{self.function} at 0x{self.address:04x}"
        return f"{where}: `{self.instruction}` overwrites R{self.register}, read by the wgmma at 0x{self.reader:04x}"


def lint(text: str) -> tuple[Hazard, ...]:
    """Every hazard in a disassembly, by function and address."""
    found = []
    for name, flow in functions(text).items():
        if any(_mma_sources(instruction) for instruction in flow.instructions):
            found += _hazards(name, flow)
    return tuple(found)


def functions(text: str) -> dict[str, Flow]:
    """The instructions and labels of every function of a disassembly."""
    found: dict[str, Flow] = {}
    flow = Flow()
    for line in text.splitlines():
        if name := _FUNCTION.match(line):
            flow = found.setdefault(name[1], Flow())
        elif label := _LABEL.match(line):
            flow.labels[label[1]] = len(flow.instructions)
        elif code := _INSTRUCTION.search(line):
            found.setdefault("", flow) if not found else None
            flow.instructions.append(Instruction.parse(int(code[1], 16), code[2]))
    return found


def uses_wgmma(text: str) -> bool:
    return _MMA.search(text) is not None


def local_accesses(text: str) -> tuple[str, ...]:
    """The functions that load from or store to local memory."""
    return tuple(name for name, flow in functions(text).items() if any(_LOCAL.search(i.text) for i in flow.instructions))


def _hazards(name: str, flow: Flow) -> list[Hazard]:
    """Fixed point: the reads that may be pending before an instruction are the union over all paths to it."""
    before: dict[int, _Pending] = {0: (frozenset(),)}
    todo = [0]
    successors = sass_flow.successors(flow)
    while todo:
        at = todo.pop()
        after = _after(flow.instructions[at], before[at])
        for following in successors[at]:
            joined = _join(before.get(following), after)
            if joined != before.get(following):
                before[following] = joined
                todo.append(following)
    return [hazard for at in sorted(before) for hazard in _broken(name, flow.instructions[at], before[at])]


def _after(instruction: Instruction, pending: _Pending) -> _Pending:
    if wait := _WAIT.search(instruction.text):
        # The current group is not committed, so no wait applies to it.
        return pending[: 1 + int(wait[1], 16)]
    if not _MMA.search(instruction.text):
        return pending
    mine = {(register, instruction.address) for register in _mma_sources(instruction)}
    current = pending[0] | mine
    if "gsb0" not in instruction.text:
        return (current, *pending[1:])
    oldest = frozenset[tuple[int, int]]().union(*pending[_MAX_GROUPS - 1 :])
    return (frozenset(), current, *pending[1 : _MAX_GROUPS - 1], *([oldest] if oldest else []))


def _join(a: _Pending | None, b: _Pending) -> _Pending:
    if a is None:
        return b
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return tuple(group | (shorter[age] if age < len(shorter) else frozenset()) for age, group in enumerate(longer))


def _broken(name: str, instruction: Instruction, pending: _Pending) -> list[Hazard]:
    written = results(instruction.text)
    clashes = sorted({pair for group in pending for pair in group if pair[0] in written})
    return [Hazard(name, instruction.address, instruction.text, register, reader) for register, reader in clashes]


def _mma_sources(instruction: Instruction) -> range:
    found = _MMA.search(instruction.text)
    first = int(found[5]) if found and found[5] else None
    return range(0) if first is None else range(first, first + _A_REGISTERS)


def results(text: str) -> range:
    """The registers that an instruction writes."""
    if mma := _MMA.search(text):
        # An accumulator has 64 x N elements in 128 threads: N / 2 registers for f32, half as many for f16.
        half = (mma[3] or "").startswith(".F16")
        return range(int(mma[4]), int(mma[4]) + int(mma[2]) // (4 if half else 2))
    opcode, _, operands = re.sub(r"^@!?U?P\w+\s+", "", text).partition(" ")
    found = None if opcode.startswith(_NO_RESULT) or "SETP" in opcode else _RESULT.match(operands.strip())
    if found is None:
        return range(0)
    return range(int(found[1]), int(found[1]) + _width(opcode))


def _width(opcode: str) -> int:
    if matrices := _MATRICES.match(opcode):
        return int(matrices[1])
    if _QUAD.match(opcode):
        return 4
    return 2 if _DOUBLE.match(opcode) else 1
