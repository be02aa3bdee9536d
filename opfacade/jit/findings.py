"""Slow code in a built kernel: spilled registers, local memory, serialised wgmma.

The results of such a kernel are correct, so it runs, and its cache entry records the findings for telemetry, `explain` and
`doctor`. With OPFACADE_JIT_STRICT=1, as in our tests, findings that a source does not accept by name are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opfacade import env
from opfacade.errors import CompileError
from opfacade.jit.cache.store import read_meta
from opfacade.jit.runner import LOG

NAMES = ("spills", "local-memory", "wgmma-serialization")


@dataclass(frozen=True, slots=True)
class SassFinding:
    """A finding: its name, the kernel's symbol, the details, and whether the source accepts it (`// allows: spills`)."""

    name: str
    kernel: str
    text: str
    accepted: bool = False

    def __str__(self) -> str:
        return f"{self.kernel}: {self.text}"


def record(findings: Iterable[SassFinding]) -> list[dict[str, Any]]:
    """The findings in the form of an entry's meta.json."""
    return [asdict(finding) for finding in findings]


def recorded(meta: Mapping[str, Any]) -> tuple[SassFinding, ...]:
    """The findings of a meta.json; invalid items are skipped, because the file's content is not trusted."""
    listed = meta.get("findings")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return tuple(SassFinding(**_texts(row), accepted=row.get("accepted") is True) for row in rows if row.get("name") in NAMES)


def of_library(library: Path) -> tuple[SassFinding, ...]:
    """The findings of a published library; none if its record cannot be read, for example because it was removed."""
    try:
        return recorded(read_meta(library.parent))
    except (OSError, ValueError, AttributeError):
        return ()


def require_fast(name: str, library: Path) -> None:
    """Raises CompileError (OPF-J033) in strict mode if a published library has slow code that its source does not accept."""
    refused = [finding for finding in of_library(library) if not finding.accepted] if env.jit_strict() else []
    if not refused:
        return
    hint = (
        f"Mend the kernel, accept it with the line `// allows: {refused[0].name}` in its source, or unset OPFACADE_JIT_STRICT."
    )
    more = "".join(f"\n  {finding}" for finding in refused[1:])
    error = CompileError(f"{name}: kernel {refused[0]}. {hint} [OPF-J033]{more}", code="OPF-J033", hint=hint)
    error.key, error.log_path = library.parent.name, str(library.parent / LOG)
    raise error


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {field: str(row.get(field, "")) for field in ("name", "kernel", "text")}
