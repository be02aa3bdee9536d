"""Differences between two SKU ids, in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def same_kernel(one: str, other: str) -> bool:
    """The same op on the same backend and architecture, with the same element types."""
    a, b = one.split("/"), other.split("/")
    return a[:4] == b[:4] and a[5] == b[5]


def nearest(sku: str, others: Iterable[str]) -> str | None:
    """The id of the same kernel with the smallest text difference; None if no other id is of that kernel."""
    return next(iter(difflib.get_close_matches(sku, [o for o in others if same_kernel(sku, o)], 1, 0)), None)


def kernel(sku: str) -> str:
    """The op, architecture, backend and implementation of a SKU id."""
    _, op, backend, arch, impl, *_ = sku.split("/")
    return f"{op} on {arch}, {backend}/{impl}"


_NAMES = ("category", "op", "backend", "arch", "impl", "dtypes", "layout", "spec", "guarantee")


def differences(one: str, other: str) -> list[str]:
    """Differences between two SKU ids, in words such as `spec split: off -> auto`."""
    found = []
    for name, a, b in zip(_NAMES, one.split("/"), other.split("/"), strict=True):
        if "=" not in a + b:
            found += [f"{name}: {a} -> {b}"] if a != b else []
            continue
        old, new = (dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair) for text in (a, b))
        for fact in sorted(old.keys() | new.keys()):
            if old.get(fact) != new.get(fact):
                found.append(f"{name} {fact}: {old.get(fact, 'absent')} -> {new.get(fact, 'absent')}")
    return found
