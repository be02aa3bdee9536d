"""Finds where the operands of a C++ operator begin and end, by precedence."""

from __future__ import annotations

from tests.mutation.operators.lexer import KEYWORDS, Tokens

LEVELS = ("* / %", "+ -", "<< >>", "< <= > >=", "== !=", "&", "^", "|", "&& and", "|| or")
PRECEDENCE = {sign: level for level, signs in enumerate(LEVELS) for sign in signs.split()}
TERNARY = len(LEVELS)
_ENDS = {";", ",", "?", ":", "=", "+=", "-=", "*=", "/=", "|=", "&=", "^=", "%=", "<<=", ">>="}
_BODIES = {"{", "}", "{%", "{%-", "%}", "-%}"}


def is_binary(tokens: Tokens, at: int) -> bool:
    """Whether an operator has two operands; formatters put spaces around it then."""
    before = tokens[at - 1] if at else None
    if tokens[at].words not in PRECEDENCE or before is None or at in tokens.partner or not tokens.is_spaced(at):
        return False
    ends = before.kind in ("number", "text") or before.words in (")", "]", ">", "}}")
    return ends or (before.kind == "name" and before.words not in KEYWORDS)


def left(tokens: Tokens, at: int, level: int) -> int:
    """The first token of the operand before `at`; operators with a precedence below `level` end it."""
    first = at
    while first > 0 and not _is_end(tokens, first - 1, level) and not _opens(tokens, first - 1):
        first = tokens.partner[first - 1] if _closes(tokens, first - 1) else first - 1
    return first


def right(tokens: Tokens, at: int, level: int) -> int:
    """One past the last token of the operand after `at`."""
    last = at + 1
    while last < len(tokens) and not _is_end(tokens, last, level) and not _closes(tokens, last):
        last = tokens.partner[last] + 1 if _opens(tokens, last) else last + 1
    return last


def _opens(tokens: Tokens, at: int) -> bool:
    return tokens.partner.get(at, at) > at


def _closes(tokens: Tokens, at: int) -> bool:
    return tokens.partner.get(at, at) < at


def _is_end(tokens: Tokens, at: int, level: int) -> bool:
    token = tokens[at]
    if token.kind == "text":
        return False
    if token.words in _BODIES:
        touches = at > 0 and tokens[at - 1].end == token.start and tokens[at - 1].kind == "name"
        return token.words != "}" and not touches
    if token.words in _ENDS or (token.kind == "name" and token.words in KEYWORDS):
        return True
    return is_binary(tokens, at) and PRECEDENCE[token.words] > level
