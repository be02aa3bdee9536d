"""Digests of the code and the compilers of a SKU's kernel, stored with the ids of a manifest and compared with the current
digests.

An id stands for a guarantee; another binary (edited sources with the same output bits, another compiler) may keep the same
guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from opfacade import jit
from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Model
from opfacade.core.target import Target
from opfacade.select.selection import Option
from opfacade.select.sku_differences import differences, nearest

Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class SkuBinary(Model):
    """Inputs of the compilation of one SKU's kernels, as digests.

    code: SHA-256 of its rendered sources and headers without comments, flags and architecture. compilers: SHA-256 of the
    content of the compilers; "" if there were none.
    """

    sku: str
    code: Digest
    compilers: Digest = ""


def binary_of(option: Option, descriptor: Descriptor[Any], target: Target) -> SkuBinary | None:
    """The digests of a chosen candidate; None if it compiles nothing."""
    assert option.sku is not None
    specs = option.candidate.jit_specs(descriptor, target)
    if not specs:
        return None
    return SkuBinary(sku=option.sku.id, code=jit.code_digest_of(specs), compilers=jit.compiler_digest_of(specs))


@dataclass(frozen=True, slots=True)
class Standing:
    """A selected SKU compared with a manifest.

    word: "same binary", "other binary" (the same guarantee), "binary not known", "other revision" or "not allowed". why: the
    differences in words.
    """

    sku: str
    word: str
    why: str = ""

    @property
    def allowed(self) -> bool:
        return self.word not in ("other revision", "not allowed")

    def __str__(self) -> str:
        return f"{self.word}: {self.sku}{f' ({self.why})' if self.why else ''}"


def standings(
    allowed: Iterable[str], known: Iterable[SkuBinary], chosen: Iterable[str], now: Iterable[SkuBinary]
) -> tuple[Standing, ...]:
    """Compares each chosen SKU with the ids and digests of a manifest. now: current digests of the chosen SKUs."""
    ids, before, after = frozenset(allowed), {b.sku: b for b in known}, {b.sku: b for b in now}
    revisions = {_unrevised(sku): sku for sku in sorted(ids)}
    return tuple(_standing(sku, ids, revisions, (before.get(sku), after.get(sku))) for sku in chosen)


Pair = tuple[SkuBinary | None, SkuBinary | None]


def _standing(sku: str, ids: frozenset[str], revisions: Mapping[str, str], pair: Pair) -> Standing:
    if sku in ids:
        return _same_promise(sku, pair)
    other = revisions.get(_unrevised(sku))
    if other:
        return Standing(sku, "other revision", f"the manifest has @{_revision(other)}")
    near = nearest(sku, sorted(ids))
    return Standing(sku, "not allowed", f"nearest in the manifest: {'; '.join(differences(near, sku))}" if near else "")


def _same_promise(sku: str, pair: Pair) -> Standing:
    before, after = pair
    if before is None or after is None:
        compiled = before is not None or after is not None
        return Standing(sku, "binary not known", "the manifest has no digests of it" if compiled else "nothing is compiled")
    found = differing(before, after)
    if found:
        return Standing(sku, "other binary", f"same promise, other {' and '.join(found)}")
    if not (before.compilers and after.compilers):
        return Standing(sku, "binary not known", "the same code; no compiler to compare")
    return Standing(sku, "same binary")


def differing(before: SkuBinary, after: SkuBinary) -> list[str]:
    """The names of the known digests that differ: "code", "compilers"."""
    names = [name for name in ("code", "compilers") if getattr(before, name) and getattr(after, name)]
    return [name for name in names if getattr(before, name) != getattr(after, name)]


def _unrevised(sku: str) -> str:
    parts = sku.split("/")
    return "/".join([*parts[:4], parts[4].partition("@")[0], *parts[5:]])


def _revision(sku: str) -> str:
    return sku.split("/")[4].partition("@")[2]
