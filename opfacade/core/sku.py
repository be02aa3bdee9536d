"""KernelSku: the identity of one compiled specialisation, including its PrecisionGuarantee."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from opfacade.core.guarantee import PrecisionGuarantee, Word, _sorted_unique
from opfacade.core.model import Model, Version

_PARTS = 9  # of a SKU id
_PROMISE, _OLDER_PROMISE = "g2.", "g."  # prefix of the guarantee's digest: version of the id format
OLDER_FORM = "a SKU id of an older form, which no kernel has now"


def _no_literal(value: bool | int | str) -> bool | int | str:
    """Checks a spec value: a string such as "true" would print like a bool."""
    if value in ("true", "false") and isinstance(value, str):
        raise ValueError("a text value in spec must not look like a bool")
    return value


SpecValue = Annotated[bool | int | Word, AfterValidator(_no_literal)]


class KernelSku(Model):
    """Identity of one compiled specialisation: other compile-time facts or another guarantee give another id.

    It contains no batch size, number of rows, tensor or address. But sizes and bounds select a split, which `spec` names, so
    descriptors that differ only in sizes may have different SKUs. `spec` holds the compile-time
    facts as sorted (name, value) pairs; `dtypes` the element types by operand; `revision` counts the changes to an
    implementation that changed output bits. The binary of an id may change without changing bits (edited sources, another
    compiler): a manifest holds digests of sources and compilers for each id.
    """

    __slots__ = ("_text",)
    _text: ClassVar[str]

    schema_version: Version = 1
    category: Word
    op: Word
    backend: Word
    arch: Word
    impl: Word
    revision: Annotated[int, Field(ge=1)]
    dtypes: Annotated[tuple[tuple[Word, Word], ...], AfterValidator(_sorted_unique)]
    layout: Word
    spec: Annotated[tuple[tuple[Word, SpecValue], ...], AfterValidator(_sorted_unique)] = ()
    precision_guarantee: PrecisionGuarantee

    @property
    def id(self) -> str:
        """Canonical text: a stable key for telemetry, tuning and pins.

        Equal ids mean the same facts and the same guarantee; only the list of evidence and the wording of conditions may
        differ.
        """
        try:
            return self._text
        except AttributeError:  # not computed yet: slots are not fields, and copies do not have them
            object.__setattr__(self, "_text", self._made())
            return self._text

    def _made(self) -> str:
        return "/".join(
            (
                self.category,
                self.op,
                self.backend,
                self.arch,
                f"{self.impl}@{self.revision}",
                _pairs(self.dtypes) or "-",
                self.layout,
                _pairs(self.spec) or "-",
                f"{_PROMISE}{_digest(self.precision_guarantee)[:16]}",
            )
        )

    def __str__(self) -> str:
        return self.id


@lru_cache(maxsize=4096)
def _digest(guarantee: PrecisionGuarantee) -> str:
    return hashlib.sha256(guarantee.promised().encode()).hexdigest()


def _pairs(pairs: tuple[tuple[str, bool | int | str], ...]) -> str:
    return ",".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in pairs)


def is_sku_id(text: str) -> bool:
    """Whether a text has the form of a SKU id: nine parts, the fifth of which is a revision."""
    return _has_form(text, _PROMISE)


def is_older_sku_id(text: str) -> bool:
    """Whether a text is a SKU id of the first format, whose guarantee also named the base of lse. No kernel has such an id
    now."""
    return _has_form(text, _OLDER_PROMISE)


def _has_form(text: str, promise: str) -> bool:
    parts = text.split("/")
    return len(parts) == _PARTS and all(parts) and "@" in parts[4] and parts[-1].startswith(promise)
