"""Decodes the facts that the SASS check needs directly from a cubin's instruction words, because a disassembler takes 0.6 s to
start.

It supports only sm_90 and the opcodes in opcodes.py; all other code needs a disassembler. The output is a listing like a
disassembler's: branches, wgmma and waits, and a placeholder `RESULT` for any other instruction that may write a register that
some wgmma reads. So a kernel that passes is correct; a kernel that fails must be checked with a disassembler.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from opfacade.jit.sass import opcodes
from opfacade.jit.sass.opcodes import UnknownCodeError

__all__ = ["UnknownCodeError", "functions", "is_for_other_gpus", "listing"]

_ELF, _ABI, _SM = b"\x7fELF\x02\x01\x01", 8, 90
_FLAGS = 48  # offset of the architecture in a header
_RELA = 4
_SECTION = struct.Struct("<IIQQQQIIQQ")


def listing(cubin: bytes) -> str:
    """The part of a disassembly that the check needs. Raises UnknownCodeError if a disassembler is needed."""
    return "\n".join(line for name, words in functions(cubin).items() for line in [f".text.{name}:", *_lines(words)])


def functions(cubin: bytes) -> dict[str, list[int]]:
    """The instructions of each section of code, 128 bits each."""
    try:
        return {name: _words(code) for name, code in _code(cubin)}
    except (struct.error, LookupError, ValueError) as error:
        raise UnknownCodeError(f"not a cubin in the known format: {error}") from error


def is_for_other_gpus(cubin: bytes) -> bool:
    """Whether a cubin in the known format is for an architecture other than sm_90, so that it has no wgmma."""
    whole = len(cubin) >= _FLAGS + 4 and cubin.startswith(_ELF) and cubin[8] == _ABI
    return whole and _architecture(cubin) != _SM


def _architecture(cubin: bytes) -> int:
    (flags,) = struct.unpack_from("<I", cubin, _FLAGS)
    return int(flags) >> 8 & 0xFF


def _words(code: bytes) -> list[int]:
    return [low | high << 64 for low, high in struct.iter_unpack("<QQ", code)]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    data: bytes


def _code(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    if not cubin.startswith(_ELF) or cubin[8] != _ABI or _architecture(cubin) != _SM:
        raise UnknownCodeError("not a cubin for sm_90")
    for section in _sections(cubin):
        if section.type == _RELA and section.name.startswith(".rela.text.") and section.data:
            raise UnknownCodeError(f"{section.name}: code with unresolved addresses")
        if section.name.startswith(".text."):
            yield section.name.removeprefix(".text."), section.data


def _sections(cubin: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [_SECTION.unpack_from(cubin, start + at * _SECTION.size) for at in range(count)]
    text = cubin[headers[names][4] :]
    for name, kind, _, _, offset, size, *_ in headers:
        yield _Section(text[name : text.index(b"\0", name)].decode(), kind, cubin[offset : offset + size])


def _lines(words: list[int]) -> Iterator[str]:
    for known in {word & 0xFFF for word in words}:
        opcodes.opcode(known)
    read = {register for word in words for register in opcodes.late_sources(word)}
    if not read:
        return  # no wgmma reads registers, so no register can be overwritten too early
    targets = {opcodes.target(at, word) for at, word in enumerate(words)}
    for at, word in enumerate(words):
        if at in targets:
            yield f".L_{at:x}:"
        if opcodes.opcode(word) in opcodes.FLOW or not read.isdisjoint(opcodes.written(word)):
            yield f"/*{at * opcodes.INSTRUCTION_BYTES:04x}*/ {instruction(at, word)} ;"


def instruction(at: int, word: int) -> str:
    """The text of the `at`th instruction of a function for the check."""
    code = opcodes.opcode(word)
    if code in opcodes.PRODUCTS:
        text = _mma(word)
    elif code == opcodes.WARPGROUP:
        text = f"WARPGROUP.DEPBAR.LE gsb0, 0x{word >> 72 & 0xFF:x}" if word >> 80 & 1 else "WARPGROUP.ARRIVE"
    elif code in opcodes.FLOW:
        text = opcodes.NAMES[code] + _operands(at, word)
    else:
        text = f"RESULT.{opcodes.width(word) * 32} R{opcodes.destination(word)}" if opcodes.written(word) else "OTHER"
    return f"@P0 {text}" if opcodes.is_guarded(word) else text


def _mma(word: int) -> str:
    late, result = opcodes.late_sources(word), f"R{opcodes.destination(word)}"
    a = f"R{late[0]}" if late else "gdesc[UR0]"
    commits = "" if word >> 84 & 7 else ", gsb0"
    return f"HGMMA.64x{opcodes.columns(word)}x16.F32 {result}, {a}, {result}{commits}"


def _operands(at: int, word: int) -> str:
    code, place = word & 0x1FF, opcodes.target(at, word)
    if code in (opcodes.BSYNC, opcodes.BSSY):
        first = f" B{word >> 16 & 0xF}"
    else:
        first = " UP0" if code == opcodes.BRA and opcodes.is_conditional(word) else ""
    return first if place is None else f"{first}{',' if first else ''} `(.L_{place:x})"
