"""Creates faults in a file of C++, CUDA or a template, from its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.operators import cxx_names, cxx_statements, forms
from tests.mutation.operators.fault import Change
from tests.mutation.operators.lexer import Token, Tokens
from tests.mutation.operators.operands import PRECEDENCE, TERNARY, is_binary, left, right

FLIPPED = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",), "!=": ("==",), "&&": ("||",),
    "||": ("&&",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("/",), "<<": (">>",), ">>": ("<<",), "&": ("|",),
    "|": ("&",), "^": ("|",), "and": ("or",), "or": ("and",),
}  # fmt: skip
ASSIGNED = {"+=": ("=", "-="), "-=": ("=", "+="), "*=": ("=", "/="), "|=": ("=", "&="), "&=": ("=", "|="), "/=": ("=", "*=")}
TURNED = {"++": "--", "--": "++", "true": "false", "false": "true", "break": "continue", "continue": "break", "not": ""}
COMPARISONS = ("<", "<=", ">", ">=")
LOGICAL = ("&&", "||", "and", "or")


def changes(text: str) -> Iterator[Change]:
    tokens = Tokens(text)
    for at, token in enumerate(tokens):
        yield from _token(tokens, at, token)
        if is_binary(tokens, at):
            yield from _binary(tokens, at)
        if token.words == "?" and token.kind == "sign":
            yield from _choice(tokens, at)
        yield from cxx_statements.changes(tokens, at)
        yield from cxx_names.changes(tokens, at)


def _token(tokens: Tokens, at: int, token: Token) -> Iterator[Change]:
    if token.kind == "text":
        yield from forms.changes(token.words, token.start)
        return
    if token.kind == "number":
        yield from _number(token)
    if token.kind == "name":
        yield from forms.changes(token.words, token.start)
    if token.words in TURNED:
        yield Change("wrong constant", token.start, token.end, TURNED[token.words])
    for new in ASSIGNED.get(token.words, ()):
        yield Change("overwritten" if new == "=" else "arithmetic", token.start, token.end, new)
    is_unary = token.words in ("!", "-", "~") and not is_binary(tokens, at) and token.kind == "sign"
    if is_unary and at + 1 < len(tokens) and tokens[at + 1].start == token.end:
        yield Change("lost sign", token.start, token.end, "")


def _number(token: Token) -> Iterator[Change]:
    words = token.words.replace("'", "")
    if words.isdigit():
        value = int(words)
        for new in dict.fromkeys((value + 1, value - 1, 0)):
            yield Change("wrong constant", token.start, token.end, str(new) if new >= 0 else "(-1)")
    elif words[-1] in "uUlL" and words.rstrip("uUlL").isdigit():
        digits = words.rstrip("uUlL")
        yield Change("wrong constant", token.start, token.end, f"{int(digits) + 1}{words[len(digits) :]}")
    elif words.startswith(("0x", "0X")) and "p" not in words:
        yield Change("wrong constant", token.start, token.end, f"({words} >> 1)")
    elif "x" in words and "p" in words:
        yield Change("wrong constant", token.start, token.end, words.replace("p", "p1" if "p-" not in words else "p+"))
    elif re.fullmatch(r"[\d.]+(?:e-?\d+)?f?", words):
        yield Change("wrong constant", token.start, token.end, f"{2 * float(words.rstrip('f'))!r}{'f' * words.endswith('f')}")


def _binary(tokens: Tokens, at: int) -> Iterator[Change]:
    token, text = tokens[at], tokens.text
    level = PRECEDENCE[token.words]
    first, last = left(tokens, at, level), right(tokens, at, level - 1)
    if first >= at or last <= at + 1:
        return
    start, end, behind = tokens[first].start, tokens[last - 1].end, tokens[at + 1].start
    for new in FLIPPED[token.words]:
        yield Change("comparison" if token.words in COMPARISONS else "other operator", token.start, token.end, new)
    yield Change("dropped term", tokens[at - 1].end, end, "")
    yield Change("dropped term", start, behind, "")
    one, two = text[start : tokens[at - 1].end], text[behind:end]
    if token.words in ("-", "/", "%", "<<", ">>"):
        yield Change("swapped operands", start, end, f"{two} {token.words} {one}")
    if token.words not in LOGICAL:
        for begin, stop in ((start, tokens[at - 1].end), (behind, end)):
            yield from cxx_names.near(text, begin, stop)
            yield Change("other value", begin, stop, "0")
    if token.words in LOGICAL:
        for begin, stop in ((start, tokens[at - 1].end), (behind, end)):
            yield from cxx_statements.conditions(text, begin, stop)


def _choice(tokens: Tokens, at: int) -> Iterator[Change]:
    """Replaces `condition ? one : two` by one, or by two."""
    first, middle = left(tokens, at, TERNARY), _colon(tokens, at)
    if middle is None or first >= at:
        return
    last = right(tokens, middle, TERNARY)
    while last < len(tokens) and tokens[last].words == "?":
        last = right(tokens, _colon(tokens, last) or last, TERNARY)
    start, end = tokens[first].start, tokens[last - 1].end
    yield Change("lost else", start, end, tokens.text[tokens[at + 1].start : tokens[middle - 1].end])
    yield Change("dropped branch", start, end, tokens.text[tokens[middle + 1].start : end])
    yield from cxx_statements.conditions(tokens.text, start, tokens[at - 1].end)


def _colon(tokens: Tokens, at: int) -> int | None:
    deep, place = 0, at + 1
    while place < len(tokens) and tokens[place].words not in (";", "}", "%}"):
        words = tokens[place].words
        if words == ":" and deep == 0:
            return place if place > at + 1 else None
        deep += (words == "?") - (words == ":")
        place = tokens.partner[place] + 1 if tokens.partner.get(place, place) > place else place + 1
    return None
