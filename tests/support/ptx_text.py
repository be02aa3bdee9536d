"""The instructions that a header of kernels/ptx makes, with the names of their operands in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FUNCTION = re.compile(r"__forceinline__ [^;{}()]*?(\w+)(?:<\w+>)?\((?:[^{};]*)\) \{")
_TEXT = re.compile(r'"((?:\\.|[^"\\])*)"')
_OPERAND = re.compile(r'"([=+]?\w)"\(')


class Statement(NamedTuple):
    """An asm statement. constraints: of its operands in turn; kept: no pass of a compiler moves, merges or drops it."""

    function: str
    instructions: tuple[str, ...]
    constraints: str
    kept: bool


def statements(header: str) -> list[Statement]:
    """The asm statements of a header without macros, in their order."""
    text = re.sub(r"//[^\n]*", "", (ROOT / header).read_text())
    found = []
    for function in _FUNCTION.finditer(text):
        body = text[function.end() - 1 : _closed(text, function.end() - 1)]
        for start in re.finditer(r"\basm( volatile)?\(", body):
            words = body[start.end() : _closed(body, start.end() - 1) - 1]
            found.append(_statement(function[1], words, bool(start[1])))
    return found


def _closed(text: str, at: int) -> int:
    """Past the bracket that closes the one at this place. Text of PTX has pairs of them."""
    deep = 0
    for end in range(at, len(text)):
        deep += (text[end] in "({[") - (text[end] in ")}]")
        if deep == 0:
            return end + 1
    raise ValueError("expected a bracket that closes")


def _statement(function: str, words: str, volatile: bool) -> Statement:
    parts = re.match(r'\s*((?:"(?:\\.|[^"\\])*"\s*)+)(.*)', words, re.DOTALL)
    assert parts is not None
    made = "".join(_TEXT.findall(parts[1])).replace("\\n", " ").replace("\\t", " ")
    operands, constraints = [], []
    for operand in _OPERAND.finditer(parts[2]):
        operands.append(" ".join(parts[2][operand.end() : _closed(parts[2], operand.end() - 1) - 1].split()))
        constraints.append(operand[1])
    made = re.sub(r"%(\d+)", lambda number: operands[int(number[1])], made).replace("%%", "%")
    unused = [i for i in range(len(operands)) if not re.search(rf"%{i}\b", parts[1])]
    assert not unused or not made, (function, unused)
    inside = made.strip().removeprefix("{ ").removesuffix("}") if made.startswith("{ ") else made
    instructions = tuple(" ".join(one.split()) for one in inside.split(";") if one.strip())
    return Statement(function, instructions, " ".join(constraints), volatile and parts[2].rstrip().endswith('"memory"'))
