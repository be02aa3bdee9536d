"""Instruction words of sm_90: known opcodes, and the registers that an instruction writes or reads late, and its branch
targets."""

from __future__ import annotations

INSTRUCTION_BYTES = 16
_ALWAYS = 7  # bits of a predicate
_PLAIN_BRANCH = 0xE0  # bits of a branch between its target and its scheduling information
_NO_REGISTER = 255
_A_REGISTERS = 4


class UnknownCodeError(Exception):
    """A cubin contains an instruction or a form that this module does not know."""


def _table(text: str) -> dict[int, str]:
    """The low nine bits of a word -> the name; the next three bits are the kind of the sources."""
    return {int(code, 16): name for code, _, name in (entry.partition(":") for entry in text.split())}


_ONE = _table(
    "002:MOV 003:P2R 006:VOTE 007:SEL 008:FSEL 009:FMNMX 00f:VIMNMX3 010:IADD3 011:LEA 012:LOP3 013:IABS 016:PRMT "
    "019:SHF 020:FMUL 021:FADD 023:FFMA 024:IMAD 027:IMAD.HI 030:HADD2 032:HMUL2 035:HFMA2 036:VIADD 03e:F2FP 045:I2FP "
    "046:VIADDMNMX 048:VIMNMX 100:FLO 101:BREV 105:F2I 106:I2F 107:FRND 108:MUFU 109:POPC 119:S2R 189:SHFL"
)
_FOUR = _table("03b:LDSM 03c:HMMA")
_TWO = _table("005:CS2R 025:IMAD.WIDE 111:F2I 112:I2F")
_SIZED = _table("180:LD 181:LDG 182:LDC 184:LDS")
# Local memory is missing on purpose: kernels that use it need a disassembler.
_NONE = _table(
    "004:R2P 044:STSM 102:FCHK 00b:FSETP 00c:ISETP 01c:PLOP3 02d:PREEXIT 02e:ACQBULK 02f:ELECT 118:NOP 11a:DEPBAR "
    "11b:ENDCOLLECTIVE 11d:BAR 142:BREAK 146:YIELD 186:STG 188:STS 18f:CCTL 192:MEMBAR 1a7:SYNCS 1ae:LDGSTS 1af:LDGDEPBAR "
    "1b0:ARRIVES 1b2:SYNCS 1b4:UTMALDG 1b5:UTMASTG 1b7:UTMACMDFLUSH 1b9:UTMACCTL 1c6:FENCE 1c8:USETMAXREG "
    # Instructions that write uniform registers.
    "082:UMOV 086:VOTEU 087:USEL 08c:UISETP 090:UIADD3 091:ULEA 092:ULOP3 097:UIADD3 099:USHF 09c:UPLOP3 0a4:UIMAD 0a5:UIMAD "
    "0b9:ULDC 0bd:UFLO 0be:UBREV 0ca:R2UR 1c3:S2UR 1c4:REDUX"
)
_BRANCHES = _table("144:CALL.REL 147:BRA 148:WARPSYNC")
_OTHER_FLOW = _table("141:BSYNC 145:BSSY 14d:EXIT 150:RET 1c5:WARPGROUP 1f0:HGMMA 1f1:IGMMA 1f3:QGMMA")
FLOW = {**_BRANCHES, **_OTHER_FLOW}
NAMES = {**_ONE, **_TWO, **_FOUR, **_SIZED, **_NONE, **FLOW}
BRA, BSYNC, BSSY, WARPGROUP = 0x147, 0x141, 0x145, 0x1C5
_IGMMA = 0x1F1
PRODUCTS = {0x1F0, _IGMMA, 0x1F3}  # the kinds of wgmma

_WARPSYNC_ALL = 0x948
_A_IN_MEMORY, _A_IN_REGISTERS = 4, 6  # the kind of a wgmma's sources


def opcode(word: int) -> int:
    found = word & 0x1FF
    if found not in NAMES:
        raise UnknownCodeError(f"opcode 0x{word & 0xFFF:03x}")
    return found


def destination(word: int) -> int:
    return word >> 16 & 0xFF


def width(word: int) -> int:
    """The maximum number of registers that an instruction writes, starting with its destination."""
    code = opcode(word)
    if code in _SIZED:
        return {5: 2, 6: 4}.get(word >> 73 & 7, 1)
    if code in PRODUCTS:
        return columns(word) // 2
    return 1 if code in _ONE else 2 if code in _TWO else 4 if code in _FOUR else 0


def written(word: int) -> range:
    first = destination(word)
    return range(0) if first == _NO_REGISTER else range(first, first + width(word))


def columns(word: int) -> int:
    """The N of a wgmma. For integers, N from 32 on is a multiple of 16, and one step of the encoding counts three."""
    place = word >> 53 & 0x3F
    if word & 0x1FF != _IGMMA:
        return 8 * (place + 1)
    return 8 * (place // 3 + 1) if place <= 9 else 16 * (place // 3 - 1)


def late_sources(word: int) -> range:
    """The registers that a wgmma reads asynchronously, after it was issued."""
    if word & 0x1FF not in PRODUCTS or word >> 9 & 7 == _A_IN_MEMORY:
        return range(0)
    if word >> 9 & 7 != _A_IN_REGISTERS:
        raise UnknownCodeError(f"opcode 0x{word & 0xFFF:03x}")
    return range(word >> 24 & 0xFF, (word >> 24 & 0xFF) + _A_REGISTERS)


def is_guarded(word: int) -> bool:
    return word >> 12 & 0xF != _ALWAYS


def is_conditional(word: int) -> bool:
    """True if only some threads may take a branch, apart from its guard."""
    return word >> 82 & 0x7FFFFF != _PLAIN_BRANCH


def target(at: int, word: int) -> int | None:
    """The index of the instruction that the `at`th one names: its branch target, or the point where threads reconverge."""
    code = word & 0x1FF
    if code == BSSY:
        offset = _signed(word >> 32, 32)
    elif code in _BRANCHES and word & 0xFFF != _WARPSYNC_ALL:
        offset = _signed((word >> 34 & (1 << 48) - 1) << 8 | word >> 16 & 0xFF, 56) * 4
    else:
        return None
    if offset % INSTRUCTION_BYTES:
        raise UnknownCodeError("a branch into the middle of an instruction")
    return at + 1 + offset // INSTRUCTION_BYTES


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value
