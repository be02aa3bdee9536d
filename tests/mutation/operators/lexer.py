"""Tokens of C++, CUDA and their templates, with the positions of their brackets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/|\{\#.*?\#\}|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)
    |(?P<text>R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<jinja>\{%-?|-?%\}|\{\{|\}\})
    |(?P<number>(?:0[xX][\da-fA-F']+|\d[\d']*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)[a-zA-Z]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign><<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||::|[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
OPENERS, CLOSERS = {"(": ")", "[": "]", "{": "}", "{%": "%}", "{%-": "%}", "{{": "}}"}, (")", "]", "}", "%}", "-%}", "}}")
KEYWORDS = frozenset(
    [
        "return",
        "if",
        "else",
        "for",
        "while",
        "do",
        "switch",
        "case",
        "default",
        "break",
        "continue",
        "const",
        "constexpr",
        "static",
        "auto",
        "using",
        "template",
        "typename",
        "class",
        "struct",
        "namespace",
        "inline",
        "sizeof",
        "new",
        "delete",
        "operator",
        "public",
        "private",
        "typedef",
        "enum",
        "volatile",
        "extern",
        "this",
        "asm",
    ]
)


@dataclass(frozen=True)
class Token:
    kind: str
    words: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.words)


class Tokens(list):
    """The tokens of a text. partner: index of the matching bracket; angles are brackets if they touch a name."""

    def __init__(self, text: str):
        self.text = text
        found = _TOKEN.finditer(text)
        super().__init__(Token(str(m.lastgroup), m[0], m.start()) for m in found if m.lastgroup != "skip")

    def is_spaced(self, at: int) -> bool:
        """Whether there is a space before a token and after it."""
        token = self[at]
        return self.text[token.start - 1].isspace() and self.text[token.end : token.end + 1].isspace()

    @cached_property
    def partner(self) -> dict[int, int]:
        found: dict[int, int] = {}
        stack: list[int] = []
        for at, token in enumerate(self):
            if (token.words in OPENERS and token.kind != "text") or self._opens_angle(at):
                stack.append(at)
            elif (token.kind != "text" and token.words in CLOSERS) or self._closes_angle(at, stack):
                while stack and self[stack[-1]].words == "<" and token.words != ">":
                    stack.pop()
                if stack:
                    opener = stack.pop()
                    found[opener], found[at] = at, opener
        return found

    def _opens_angle(self, at: int) -> bool:
        token = self[at]
        touches = at and self[at - 1].kind == "name" and self[at - 1].end == token.start
        return token.words == "<" and (bool(touches) or (bool(at) and self[at - 1].words == "template"))

    def _closes_angle(self, at: int, stack: list[int]) -> bool:
        return self[at].words == ">" and bool(stack) and self[stack[-1]].words == "<" and not self.is_spaced(at)
