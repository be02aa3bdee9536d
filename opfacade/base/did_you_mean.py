"""Suggests the name that was probably meant, for hints in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# Names of element types and rotations in torch and other libraries.
_VALUES = {
    "bfloat16": "bf16", "float16": "f16", "half": "f16", "fp16": "f16", "float32": "f32", "float": "f32", "fp32": "f32",
    "float8_e4m3fn": "f8_e4m3", "fp8": "f8_e4m3", "fp8_e4m3": "f8_e4m3", "float8_e5m2": "f8_e5m2", "fp8_e5m2": "f8_e5m2",
    "per_tensor": "tensor", "per_token": "token", "per_row": "token", "group": "block", "blockwise": "block",
    "per_block": "block", "mxfp8": "mx32", "int8": "i8",
    "neox": "half", "gpt_neox": "half", "rotate_half": "half", "gptj": "interleaved", "gpt_j": "interleaved",
}  # fmt: skip


def nearest(word: str, known: Iterable[str], elsewhere: Mapping[str, str] = _VALUES) -> str | None:
    """The name in `known` that `word` probably means; None if none is similar.

    elsewhere: names in other libraries, in the form of `core.elsewhere`. Several names are joined by "and"; "" means that the
    similar name has another meaning.
    """
    names, plain = list(known), word.removeprefix("torch.").strip()
    other = elsewhere.get(plain.lower())
    if other == "":
        return None
    for one in (other or "").split("|"):
        if one and all(name in names for name in one.partition(" (")[0].split(" and ")):
            return one
    same = [name for name in names if name.lower() == plain.lower()]
    return next(iter(same or difflib.get_close_matches(plain, names, n=1, cutoff=0.6)), None)


def did_you_mean(word: str, known: Iterable[str], elsewhere: Mapping[str, str] = _VALUES) -> str:
    """A hint with the suggested name, or ""."""
    found = nearest(word, known, elsewhere)
    return "" if found is None else f"Did you mean {found}?"
