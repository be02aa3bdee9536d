"""Reads the input of a command, a named file or standard input of bounded size, and the problems in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from opfacade.base import regular_files
from opfacade.errors import OpfacadeError

if TYPE_CHECKING:
    from pathlib import Path

    from opfacade.core.descriptor import Descriptor
    from opfacade.tools.workload import Work


def content(file: IO[bytes]) -> bytes:
    """The content of a file or a pipe, at most 64 MiB; OSError if it is larger."""
    return regular_files.read_bounded(file, path=name(file))  # type: ignore[arg-type]


def name(file: IO[bytes]) -> str:
    """The display name of a file; the name of standard input may be a number or empty."""
    found = getattr(file, "name", None)
    return found if isinstance(found, str) else "standard input"


@contextmanager
def of(origin: object) -> Iterator[None]:
    """Adds the file's name to errors of the library within the block."""
    try:
        yield
    except OpfacadeError as error:
        error.args = (f"{origin}: {error}",)
        raise


def one(file: IO[bytes]) -> Descriptor[Any]:
    """The one descriptor in a file; an error names the file."""
    from opfacade.select.registry import load_descriptor

    with of(name(file)):
        return load_descriptor(content(file))


def works(file: IO[bytes]) -> tuple[Work, ...]:
    """The problems in a file, as `works_in` reads them."""
    return works_in(content(file), name(file))


def models() -> tuple[str, ...]:
    """The names that `of_model` accepts."""
    from opfacade.models.facts import MODELS

    return tuple(MODELS)


def of_model(model: str | None) -> tuple[Work, ...]:
    """The problems of a named model. DescriptorError for an unknown name."""
    from opfacade.models import descriptors
    from opfacade.tools.workload import Work

    return tuple(map(Work, descriptors(model or "")))


def works_in(text: bytes, origin: str) -> tuple[Work, ...]:
    """The problems in the text of a file. If there are none, the command reports this and exits with status 1, so that a
    deployment step that did nothing does not look successful."""
    from opfacade.tools.workload import read

    with of(origin):
        found = read(text)
    if not found:
        raise click.ClickException(f"{origin} contains no problems; nothing was done.")
    return found


def counts(path: Path) -> tuple[dict[str, Any], int]:
    """The counters in a file of OPFACADE_TELEMETRY_FILE, and the number of damaged lines; UsageError if no line is valid."""
    from opfacade.telemetry.file import read

    found, broken = read(path)
    if broken and not any(found.values()):
        raise click.UsageError(f"{path}: expected lines written by OPFACADE_TELEMETRY_FILE, found none among {broken} lines.")
    return found, broken
