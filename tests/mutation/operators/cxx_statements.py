"""Operators on statements of C++ and on blocks of templates."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutation.operators.fault import Change
from tests.mutation.operators.lexer import KEYWORDS, Tokens

_DO = {"asm", "break", "continue"}  # keywords that begin a statement with an effect
_BEFORE = (";", "{", "}", "else", "%}", "-%}")


def conditions(text: str, start: int, end: int) -> Iterator[Change]:
    for operator, new in (("always", "true"), ("never", "false"), ("inverted", f"!({text[start:end]})")):
        yield Change(operator, start, end, new)


def changes(tokens: Tokens, at: int) -> Iterator[Change]:
    words = tokens[at].words
    if words in ("if", "while") and tokens[at].kind == "name":
        yield from _test(tokens, at)
    if words == "if" and tokens[at - 1].words not in ("{%", "{%-"):
        yield from _choice_of_template(tokens, at)
    if words == "{{" and at in tokens.partner:
        yield Change("dropped term", tokens[at].start, tokens[tokens.partner[at]].end, "")
    if words == "else":
        yield from _lost_else(tokens, at)
    if words == "for":
        yield from _lost(tokens, at, statement_end(tokens, at))
    if words == "return":
        yield from _result(tokens, at)
    if at == 0 or tokens[at - 1].words in _BEFORE or _is_body(tokens, at):
        yield from _statement(tokens, at)
    if words in ("=", "+=", "-=", "*=", "|=", "&=") and not _is_in_template(tokens, at):
        yield from _assigned(tokens, at)


def _test(tokens: Tokens, at: int) -> Iterator[Change]:
    first = at + 2 if tokens[at + 1].words == "constexpr" else at + 1
    if tokens[first].words == "(" and first in tokens.partner:
        last = tokens.partner[first]
        yield from conditions(tokens.text, tokens[first].end, tokens[last].start)
        yield Change("removed guard", tokens[at].start, tokens[last].end, "")
        if tokens[at].words == "while" and tokens[at - 1].words != "}":
            yield Change("once", tokens[at].start, tokens[at].end, "if")
        if tokens[at].words == "if" and (at == 0 or tokens[at - 1].words != "else"):
            yield from _lost(tokens, at, statement_end(tokens, at))
    elif tokens[at - 1].words in ("{%", "{%-"):
        last = tokens.partner.get(at - 1, first)
        yield from conditions_of_template(tokens.text, tokens[first].start, tokens[last - 1].end)


def conditions_of_template(text: str, start: int, end: int) -> Iterator[Change]:
    for operator, new in (("always", "true"), ("never", "false"), ("inverted", f"not ({text[start:end]})")):
        yield Change(operator, start, end, new)


def _choice_of_template(tokens: Tokens, at: int) -> Iterator[Change]:
    """Replaces `one if condition else two` of a template by one, or by two."""
    outer = next((place for place in range(at, -1, -1) if tokens[place].words in ("{{", "{%", ";")), 0)
    stop = tokens.partner.get(outer, outer)
    other = next((place for place in range(at, stop) if tokens[place].words == "else"), stop)
    if stop > at and tokens[outer].words != ";":
        first = max(
            [outer, *(p for p in range(outer, at) if tokens[p].words in ("=", ",", "(") and tokens.partner.get(p, at) > at - 1)]
        )
        yield Change("lost else", tokens[at].start, tokens[stop - 1].end, "")
        if other < stop:
            yield Change("dropped branch", tokens[first + 1].start, tokens[other].end, "")


def _lost_else(tokens: Tokens, at: int) -> Iterator[Change]:
    if tokens[at - 1].words in ("{%", "{%-"):
        stop = next((i for i in range(at, len(tokens)) if tokens[i].words == "endif"), None)
        if stop is not None:
            yield Change("lost else", tokens[at - 1].start, tokens[stop - 1].start, "")
    else:
        yield Change("lost else", tokens[at].start, tokens[statement_end(tokens, at + 1) - 1].end, "")
        yield Change("dropped branch", tokens[at].start, tokens[at].end, "")
        first = next((p for p in range(at, -1, -1) if tokens[p].words == "if" and statement_end(tokens, p) > at), None)
        if first is not None:
            yield Change("dropped branch", tokens[first].start, tokens[at].end, "")


def statement_end(tokens: Tokens, at: int) -> int:
    """One past the last token of the statement that begins at a token."""
    place = at
    while place < len(tokens) and tokens[place].words not in (";", "}", "%}"):
        if (
            tokens[place].words == "{"
            and place in tokens.partner
            and (place == at or tokens[place - 1].words in (")", "else", "constexpr"))
        ):
            return _with_else(tokens, at, tokens.partner[place] + 1)
        place = tokens.partner[place] + 1 if tokens.partner.get(place, place) > place else place + 1
    return _with_else(tokens, at, min(place + 1, len(tokens)))


def _with_else(tokens: Tokens, at: int, end: int) -> int:
    if tokens[at].words == "if" and end < len(tokens) and tokens[end].words == "else":
        return statement_end(tokens, end + 1)
    return end


def _lost(tokens: Tokens, at: int, end: int) -> Iterator[Change]:
    yield Change("lost statement", tokens[at].start, tokens[end - 1].end, ";")


def _is_body(tokens: Tokens, at: int) -> bool:
    """Whether a token begins the body of an `if` or a loop."""
    if tokens[at - 1].words != ")" or at - 1 not in tokens.partner:
        return False
    before = tokens.partner[at - 1] - 1
    return before >= 0 and tokens[before].words in ("if", "for", "while", "constexpr")


def _declares(tokens: Tokens, at: int) -> bool:
    """Whether a statement begins with a type and a name."""
    second = at + 1
    if second < len(tokens) and tokens[second].words == "<" and second in tokens.partner:
        second = tokens.partner[second] + 1
    after = tokens[second] if second < len(tokens) else tokens[at]
    return after.kind == "name" or (after.words in ("&", "*") and not tokens.is_spaced(second))


def _statement(tokens: Tokens, at: int) -> Iterator[Change]:
    """Removes a statement that is not a declaration."""
    first = tokens[at]
    starts = first.words in ("++", "--", "*") or (first.kind == "name" and first.words not in KEYWORDS - _DO)
    end = statement_end(tokens, at)
    if starts and not _declares(tokens, at) and tokens[end - 1].words == ";":
        yield from _lost(tokens, at, end)
        commas = list(_commas(tokens, at, end))
        for comma, after in zip(commas, [*commas[1:], end - 1], strict=False):
            yield Change("lost statement", tokens[comma].start, tokens[after].start, "")
        for comma in commas[:1]:
            yield Change("lost statement", first.start, tokens[comma].end, "")


def _commas(tokens: Tokens, at: int, end: int) -> Iterator[int]:
    place = at
    while place < end:
        if tokens[place].words == ",":
            yield place
        place = tokens.partner[place] + 1 if tokens.partner.get(place, place) > place else place + 1


def _result(tokens: Tokens, at: int) -> Iterator[Change]:
    end = statement_end(tokens, at)
    if end - at > 2 and tokens[at + 1].words != "{":
        start, stop = tokens[at + 1].start, tokens[end - 2].end
        for operator, new in (
            ("other result", "0"),
            ("other result", "1"),
            ("other result", "true"),
            ("other result", "false"),
        ):
            yield Change(operator, start, stop, new)
        yield Change("inverted", start, stop, f"!({tokens.text[start:stop]})")


def _is_in_template(tokens: Tokens, at: int) -> bool:
    return tokens[at - 1].words == "operator" or tokens[min(at + 1, len(tokens) - 1)].words in ("{", "default", "delete")


def _assigned(tokens: Tokens, at: int) -> Iterator[Change]:
    place = at + 1
    while place < len(tokens) and tokens[place].words not in (";", ",", ")", "}", "%}", "]"):
        place = tokens.partner[place] + 1 if tokens.partner.get(place, place) > place else place + 1
    if place > at + 1 and place < len(tokens):
        for new in ("0", "false", "true"):
            yield Change("other value", tokens[at + 1].start, tokens[place - 1].end, new)
