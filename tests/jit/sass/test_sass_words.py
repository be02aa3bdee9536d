"""The instruction words of a cubin are decoded as by a disassembler, and an unknown word is reported as unknown."""

import struct

import pytest

from opfacade import jit
from opfacade.jit import toolchain
from opfacade.jit.sass import hazards as sass
from opfacade.jit.sass import opcodes as sass_opcodes
from opfacade.jit.sass import words as sass_words
from opfacade.jit.sass.words import UnknownCodeError
from tests.jit.sass.test_inspect import wgmma
from tests.jit.sass_text import assert_read_alike

# The words are from ptxas 13.5: `HGMMA.64x64x16.F32.BF16 R88, R4, gdesc[UR16].tnspB, R88, gsb0` and so on.
RS = 0x000FE6000800185840E0001004587DF0
SS = 0x000FE2000800185800E00000145879F0
# `QGMMA.64x64x32.F32.E4M3.E4M3 R88, R4, gdesc[UR16], R88, gsb0`, and with A in memory.
RS_FP8 = 0x000FE2000800085800E0001004587DF3
SS_FP8 = 0x000FE2000800085801E00000145879F3
LDSM_R4 = 0x000E2200000042000000000010_04783B  # `LDSM.16.MT88.4 R4, [R16]`
HMMA_R4 = 0x002FE2000004180C0000002410_04723C  # `HMMA.16816.F32.BF16 R4, R16, R36, R12`
WAIT0, WAIT1 = 0x000FE4000001000000008000000079C5, 0x000FC4000001010000008000000079C5
MOV_R5, MOV_R8 = 0x000FE400078E00090000000000057224, 0x000FE400078E00090000000000087224  # `IMAD.MOV.U32 R5, RZ, RZ, R9`
WIDE_R6 = 0x000FE400078E02090000000802067225
EXIT = 0x000FEA0003800000000000000000794D
STL = 0x0001E20000100800000000090100_7387
# The words of `IGMMA.64x32x32.S8.S8 R24, gdesc[UR4], R24` and of the widths 8, 24, 64, 128 and 256.
IGMMA = {8: 0x0, 24: 0xC0, 32: 0x120, 64: 0x1E0, 128: 0x360, 256: 0x660}


@pytest.mark.parametrize("columns", IGMMA)
def test_an_integer_product_writes_a_register_per_two_columns(columns):
    word = 0x000FE60008041018 << 64 | IGMMA[columns] << 48 | 0x41879F1
    assert sass_opcodes.NAMES[sass_opcodes.opcode(word)] == "IGMMA"
    assert sass_opcodes.columns(word) == columns
    assert len(sass_opcodes.written(word)) == columns // 2
    assert not sass_opcodes.late_sources(word)


def test_a_rounded_float_is_one_written_register():
    word = 0x00000006002C7307  # `FRND R44, R6`
    assert sass_opcodes.NAMES[sass_opcodes.opcode(word)] == "FRND"
    assert set(sass_opcodes.written(word)) == {44}


@pytest.mark.parametrize(("word", "name"), [(0x3B5, "UTMASTG"), (0x9B7, "UTMACMDFLUSH")])
def test_stores_by_tma_write_no_register(word, name):
    assert sass_opcodes.NAMES[sass_opcodes.opcode(word)] == name
    assert not sass_opcodes.written(word)


def branch(at, to, guard=7):
    offset = (to - at - 1) * 4  # in 32-bit words
    return 0x000FEA0003800000 << 64 | (offset >> 8 & (1 << 48) - 1) << 34 | (offset & 0xFF) << 16 | guard << 12 | 0x947


def bssy(at, to):
    return 0x000FE20003800000 << 64 | (to - at - 1) * 16 << 32 | 0x7945


BSYNC, BRA_SOME = 0x000FEA00038000000000000000007941, 0x0000_0000_0800_0000 << 64


def packed(*words):
    return b"".join(struct.pack("<QQ", word & (1 << 64) - 1, word >> 64) for word in words)


def cubin(*words, name="k", flags=0x6005A04, relocated=b""):
    """An ELF file with one code section, with the fields that the check reads."""
    code = packed(*words)
    names = f"\0.names\0.text.{name}\0.rela.text.{name}\0".encode()
    parts = [(0, 0, b""), (1, 3, names), (8, 1, code), (names.index(b".rela"), 4, relocated)]
    header = struct.pack(
        "<7sxB7xHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 8, 2, 190, 1, 0, 0, 64, flags, 64, 0, 0, 64, len(parts), 1
    )
    table, data, start = b"", b"", 64 + 64 * len(parts)
    for at, kind, content in parts:
        table += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, start + len(data), len(content), 0, 0, 1, 0)
        data += content
    return header + table + data


def broken(*words):
    return [(hazard.address // 16, hazard.register) for hazard in sass.lint(sass_words.listing(cubin(*words)))]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((RS, MOV_R5, WAIT0, EXIT), [(1, 5)]),
        ((RS, WAIT0, MOV_R5, EXIT), []),
        ((RS_FP8, MOV_R5, WAIT0, EXIT), [(1, 5)]),
        ((RS_FP8, WAIT0, MOV_R5, EXIT), []),
        ((SS_FP8, MOV_R5, EXIT), []),
        ((RS_FP8, LDSM_R4, EXIT), [(1, 4), (1, 5), (1, 6), (1, 7)]),
        ((RS, HMMA_R4, EXIT), [(1, 4), (1, 5), (1, 6), (1, 7)]),
        ((RS, MOV_R8, WAIT0, EXIT), []),
        ((RS, WIDE_R6, EXIT), [(1, 6), (1, 7)]),
        ((SS, MOV_R5, EXIT), []),
        ((RS, WAIT1, MOV_R5, EXIT), [(2, 5)]),
        ((RS, SS, WAIT1, MOV_R5, EXIT), []),
        ((MOV_R5, RS, branch(2, 0, guard=0), EXIT), [(0, 5)]),
        ((RS, branch(1, 3), MOV_R5, WAIT0, EXIT), []),
        ((RS, branch(1, 3) | BRA_SOME, MOV_R5, WAIT0, EXIT), [(2, 5)]),
        ((RS, bssy(1, 4), BSYNC, EXIT, MOV_R5, EXIT), [(4, 5)]),
    ],
)
def test_an_overwritten_operand_is_found_in_the_words(words, wanted):
    assert broken(*words) == wanted


@pytest.mark.parametrize(
    "odd",
    [
        cubin(STL, EXIT),
        cubin(0x1F7, EXIT),
        cubin(RS ^ 0x200, EXIT),
        cubin(RS, branch(1, 3) ^ 1 << 16, EXIT),
        cubin(EXIT, flags=0x6006404),
        cubin(EXIT, relocated=bytes(24)),
        cubin(EXIT)[:-3],
        b"\x7fELF",
        b"",
    ],
    ids=["local memory", "an opcode", "a form", "half an instruction", "arch", "relocation", "end", "head", "nothing"],
)
def test_an_unknown_word_raises_unknown_code_error(odd):
    with pytest.raises(UnknownCodeError):
        sass_words.listing(odd)


@pytest.mark.parametrize(
    ("built", "other"), [(cubin(EXIT, flags=0x6005004), True), (cubin(EXIT), False), (b"\x7fELF", False), (b"", False)]
)
def test_a_cubin_for_other_gpus_has_no_wgmma(built, other):
    assert sass_words.is_for_other_gpus(built) is other


@pytest.mark.parametrize(("steps", "name"), [(4, "wgmma"), (1000, "wgmma")])
def test_the_disassembler_agrees_with_the_decoded_words(root, cache_dir, steps, name):
    tools = toolchain.find(cache_dir / "v1/toolchain.json")
    if toolchain.find_disassembler(tools) is None:
        pytest.skip("no disassembler")
    built = jit.build(wgmma(steps=steps)).parent / "kernel.cubin"
    assert_read_alike(built, tools)
    assert list(sass_words.functions(built.read_bytes())) == [name]


def test_an_overwritten_operand_in_a_built_kernel_is_found(root, cache_dir):
    """The test changes the instruction after a product so that it writes the last register that the product reads."""
    built = (jit.build(wgmma(steps=1000)).parent / "kernel.cubin").read_bytes()
    (words,) = sass_words.functions(built).values()
    product = next(at for at, word in enumerate(words) if sass_opcodes.late_sources(word))
    operand = sass_opcodes.late_sources(words[product])[3]
    place = built.index(packed(*words)) + 16 * (product + 1)
    spoilt = built[:place] + packed(MOV_R5 & ~(0xFF << 16) | operand << 16) + built[place + 16 :]
    assert sass.lint(sass_words.listing(built)) == ()
    first = sass.lint(sass_words.listing(spoilt))[0]
    assert (first.address, first.register, first.reader) == (16 * (product + 1), operand, 16 * product)
