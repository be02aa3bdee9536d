"""The form of a change: its removed and added tokens. Changes with the same form at the same position are of the same kind."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""[A-Za-z_]\w*|(?:0[xX][\da-fA-F.]+(?:p-?\d+)?|\d[\d.]*(?:[eE][-+]?\d+)?)\w*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[<>=!+\-*/%&|^:]+|\S"""
)
_COMMENT = re.compile(r"(?:(?<=\s)|^)(?:#|//)[^\n]*", re.MULTILINE)
_CONSTANTS = {"True", "False", "true", "false", "None", "0", "1", "", '""', "''", "[ ]", "{ }", "0.0", "-1", "- 1"}
_COMPARISONS = {"<", "<=", ">", ">=", "==", "!=", "in", "is", "not in", "is not"}
_LEFT_OUT = {"(", ")", "pass"}
ALWAYS = ({"or", "True"}, {"and", "False"}, {"&&", "false"}, {"||", "true"}, {"if", "False", "else"}, {"if", "True", "else"})
SHARE = 0.5  # minimum common fraction of the characters of two changes that remove whole expressions


@dataclass(frozen=True)
class Form:
    """The position of a change, its kind, and the removed and added tokens."""

    kind: str
    start: int
    end: int
    gone: tuple[str, ...]
    come: tuple[str, ...]

    def is_one_with(self, other: Form) -> bool:
        """Whether both are the same change."""
        return (self.start, self.end, self.come) == (other.start, other.end, other.come)

    def is_like(self, other: Form) -> bool:
        """Whether both change the same tokens in the same way; for whole expressions, most of the same tokens."""
        if self.kind != other.kind or self.kind in ("rewritten", "added"):
            return False
        common = min(self.end, other.end) - max(self.start, other.start)
        if self.kind in ("removed", "fixed") and self.gone and other.gone:
            return common >= SHARE * (max(self.end, other.end) - min(self.start, other.start))
        return common >= 0


def form(text: str, start: int, end: int, new: str) -> Form:
    """The form of a change that puts `new` in the place of text[start:end]."""
    # Tokens are read from the previous line on: a removal is moved left past equal tokens, perhaps to that line.
    first, last = text.rfind("\n", 0, max(text.rfind("\n", 0, start), 0)) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    bare = _COMMENT.sub(lambda m: " " * len(m[0]), text[first:last])
    before = [(m[0], first + m.start(), first + m.end()) for m in _TOKEN.finditer(bare) if m[0] not in _LEFT_OUT]
    words = [word for word, _, _ in before]
    changed = _COMMENT.sub("", text[first:start] + new + text[end:last])
    after = [word for word in _TOKEN.findall(changed) if word not in _LEFT_OUT]
    head = _common(words, after)
    tail = _common(words[head:][::-1], after[head:][::-1])
    gone, come = tuple(words[head : len(words) - tail]), tuple(after[head : len(after) - tail])
    while gone and not come and head and words[head - 1] == gone[-1]:  # moves a removal left past equal tokens
        head, tail = head - 1, tail + 1
        gone = tuple(words[head : len(words) - tail])
    where = before[head : len(words) - tail]
    place = (where[0][1], where[-1][2]) if where else (before[head][1] if head < len(before) else end,) * 2
    return Form(_kind(gone, come), *place, gone, come)


def _common(one: list[str], two: list[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _kind(gone: tuple[str, ...], come: tuple[str, ...]) -> str:
    for kind, holds in _KINDS:
        if holds(gone, come):
            return kind
    return "rewritten"


def _within(some: tuple[str, ...], all_of_them: tuple[str, ...]) -> bool:
    """Whether all of some words occur, in order."""
    rest = iter(all_of_them)
    return all(word in rest for word in some)


def _added(gone: tuple[str, ...], come: tuple[str, ...]) -> set[str]:
    return set(Counter(come) - Counter(gone)) if _within(gone, come) else set()


def _is_name(words: tuple[str, ...]) -> bool:
    return bool(words) and all(re.fullmatch(r"[A-Za-z_]\w*|\.|->|::", word) for word in words)


def _one(words: tuple[str, ...], pattern: str) -> bool:
    return len(words) == 1 and re.match(pattern, words[0]) is not None


_KINDS = (
    ("comparison", lambda a, b: {" ".join(a), " ".join(b)} <= _COMPARISONS),
    ("removed", lambda a, b: not b or _within(b, a)),
    ("number", lambda a, b: _one(a, r"\d") and _one(b, r"\d")),
    ("fixed", lambda a, b: (" ".join(b) in _CONSTANTS and bool(a)) or _added(a, b) in ALWAYS),
    ("off by one", lambda a, b: _added(a, b) in ({"+", "1"}, {"-", "1"})),
    ("inverted", lambda a, b: _added(a, b) in ({"not"}, {"!"}, {"~"})),
    ("text", lambda a, b: _one(a, "[\"']") and _one(b, "[\"']")),
    ("sign", lambda a, b: _one(a, r"\W|and$|or$") and _one(b, r"\W|and$|or$")),
    ("name", lambda a, b: _is_name(a) and _is_name(b)),
    ("exchanged", lambda a, b: Counter(a) == Counter(b)),
    ("added", lambda a, b: _within(a, b)),
)
