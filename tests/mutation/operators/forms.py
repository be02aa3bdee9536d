"""Another form of an instruction: its rounding, its treatment of NaN, or the visibility of its effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.mutation.operators.fault import Change

FORMS = (
    ("rounding", re.compile(r"(?<=[._])rn(?=[._(\W]|$)"), "rz"),
    ("rounding", re.compile(r"(?<=[._])rn(?=[._(\W]|$)"), "ru"),
    ("rounding", re.compile(r"(?<=[._])rd(?=[._(\W]|$)"), "rn"),
    ("rounding", re.compile(r"(?<=[._])ru(?=[._(\W]|$)"), "rn"),
    ("rounding", re.compile(r"(?<=[._])rz(?=[._(\W]|$)"), "rn"),
    ("rounding", re.compile(r"(?<=\.)ftz\."), ""),
    ("rounding", re.compile(r"(?<=\.)satfinite\."), ""),
    ("NaN form", re.compile(r"(?<=\.)NaN\."), ""),
    ("order of memory", re.compile(r"(?<=[._])(?:acquire|release|acq_rel)(?=[._(\W]|$)"), "relaxed"),
    ("scope of memory", re.compile(r"(?<=[._])(?:gpu|cluster|sys)(?=[._(\W]|$)"), "cta"),
)


def changes(words: str, start: int) -> Iterator[Change]:
    for operator, form, new in FORMS:
        for found in form.finditer(words):
            yield Change(operator, start + found.start(), start + found.end(), new)
