"""Operators on the names, calls and indices of C++."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.mutation.operators.fault import Change
from tests.mutation.operators.lexer import KEYWORDS, Tokens

OTHERS = {
    "min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf", "__any_sync": "__all_sync", "__all_sync": "__any_sync",
    "floor_div": "ceil_div", "ceil_div": "floor_div", "floorf": "ceilf", "ceilf": "floorf", "cluster_sync": "__syncthreads",
    "__shfl_down_sync": "__shfl_up_sync", "__shfl_up_sync": "__shfl_down_sync", "atomicMax": "atomicMin", "log2f": "logf",
    "add_rounded": "sub_rounded", "sub_rounded": "add_rounded", "logf": "log2f", "exp2f": "expf", "expf": "exp2f",
}  # fmt: skip
NEAR = 60  # number of tokens on either side in which another variable is searched
_WORDS = "int bool float double char void long short unsigned signed int32_t int64_t uint32_t uint64_t uint8_t int8_t"
TYPES = frozenset(_WORDS.split())


def changes(tokens: Tokens, at: int) -> Iterator[Change]:
    token = tokens[at]
    if token.words in OTHERS and token.kind == "name":
        yield Change("other function", token.start, token.end, OTHERS[token.words])
    if token.words == "(" and at in tokens.partner and at and _is_called(tokens, at - 1):
        yield from _call(tokens, at)
        yield from _other_function(tokens, at)
    if token.words == "[" and at in tokens.partner and tokens.partner[at] > at + 1 and at and tokens[at - 1].kind != "sign":
        yield from _index(tokens, at)
    if _is_variable(tokens, at):
        yield from _variable(tokens, at)


def near(text: str, start: int, end: int) -> Iterator[Change]:
    """Off by one."""
    words = text[start:end]
    for sign in "+-":
        if not words.isdigit():
            yield Change("off by one", start, end, f"({words} {sign} 1)")


def _is_called(tokens: Tokens, at: int) -> bool:
    return (tokens[at].kind == "name" and tokens[at].words not in KEYWORDS) or (
        tokens[at].words == ">" and at in tokens.partner
    )


def arguments(tokens: Tokens, at: int) -> list[tuple[int, int]]:
    """First token and one past the last of each argument between the bracket at `at` and its partner."""
    found, first, place, stop = [], at + 1, at + 1, tokens.partner[at]
    while place < stop:
        if tokens[place].words == ",":
            found.append((first, place))
            first = place + 1
        place = tokens.partner[place] + 1 if tokens.partner.get(place, place) > place else place + 1
    return [(a, b) for a, b in (*found, (first, stop)) if b > a]


def _declares(tokens: Tokens, first: int, last: int) -> bool:
    """Whether an argument is a parameter: a type and a name."""
    pairs = zip(tokens[first:last], tokens[first + 1 : last], strict=False)
    return tokens[first].words in (*TYPES, "const", "typename") or any(a.kind == b.kind == "name" for a, b in pairs)


def _call(tokens: Tokens, at: int) -> Iterator[Change]:
    spans = arguments(tokens, at)
    if not spans or _declares(tokens, *spans[0]):
        return
    places = [(tokens[first].start, tokens[last - 1].end) for first, last in spans]
    text = tokens.text
    for (a, b), (c, d) in pairwise(places):
        yield Change("swapped arguments", a, d, f"{text[c:d]}, {text[a:b]}")
    for index, (start, end) in enumerate(places):
        if index + 1 < len(places):
            yield Change("dropped argument", start, places[index + 1][0], "")
        elif index:
            yield Change("dropped argument", places[index - 1][1], end, "")
        for new in ("0", "true", "false"):
            yield Change("other value", start, end, new)
        if text[start:end] in ("0", "1"):
            continue
        yield from near(text, start, end)
        yield Change("lost call", _begin(tokens, at), tokens[tokens.partner[at]].end, f"({text[start:end]})")


def _other_function(tokens: Tokens, at: int) -> Iterator[Change]:
    """The nearest other called function."""
    name = tokens[at - 1]
    for place in sorted(range(max(at - NEAR, 1), min(at + NEAR, len(tokens))), key=lambda place: abs(place - at)):
        other = tokens[place - 1]
        called = (
            tokens[place].words == "(" and other.kind == "name" and other.words not in KEYWORDS and other.words not in TYPES
        )
        if name.kind == "name" and called and other.words != name.words:
            yield Change("other function", name.start, name.end, other.words)
            return


def _begin(tokens: Tokens, at: int) -> int:
    """Index of the first token of the called name."""
    place = at - 1
    if tokens[place].words == ">" and place in tokens.partner:
        place = tokens.partner[place] - 1
    while place >= 2 and tokens[place - 1].words in ("::", ".", "->") and tokens[place - 2].kind == "name":
        place -= 2
    return tokens[place].start


def _index(tokens: Tokens, at: int) -> Iterator[Change]:
    start, end = tokens[at].end, tokens[tokens.partner[at]].start
    yield from near(tokens.text, start, end)
    yield Change("first for any", start, end, "0")


def _is_variable(tokens: Tokens, at: int) -> bool:
    token, after = tokens[at], tokens[at + 1].words if at + 1 < len(tokens) else ""
    if (
        token.kind != "name"
        or token.words in KEYWORDS
        or token.words in TYPES
        or (after in ("(", "::", "<") and at + 1 in tokens.partner)
    ):
        return False
    before = tokens[at - 1] if at else None
    if after == "::" or (
        before is not None and ((before.kind == "name" and before.words != "return") or before.words in (">", "&", "*"))
    ):
        return after != "::" and before is not None and before.words in ("&", "*", ">") and tokens.is_spaced(at - 1)
    return not token.words.endswith("_t") and not (token.words[0].isupper() and len(token.words) > 1)


def _variable(tokens: Tokens, at: int) -> Iterator[Change]:
    """Another nearby name of the same kind: a member for a member, a constant for a constant, a variable for a variable."""
    own = _kind(tokens, at)
    behind = (i for i in range(at - 1, max(at - NEAR, 0), -1))
    ahead = (i for i in range(at + 1, min(at + NEAR, len(tokens) - 1)))
    for places in (behind, ahead):
        for place in places:
            other = tokens[place].words
            if other != tokens[at].words and _is_variable(tokens, place) and _kind(tokens, place) == own:
                yield Change("other name", tokens[at].start, tokens[at].end, other)
                break


def _kind(tokens: Tokens, at: int) -> str:
    words = tokens[at].words
    if at and tokens[at - 1].words in (".", "->"):
        return "member"
    return "constant" if len(words) > 1 and words[0] == "k" and words[1].isupper() else "variable"
