"""The error of a failed build names the problem whose program did not compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.errors import CompileError, OpfacadeError

_HINT = (
    'This is a mistake of opfacade: please report the descriptor and the log. Until then Preference(backend="reference") '
    "computes it."
)


@contextmanager
def of_problem(descriptor: Descriptor[Any]) -> Iterator[None]:
    """Adds the op to errors of layers that do not know the op, and names the problem whose code a compiler refuses.

    The compiler's messages refer to generated files, which users have not seen. The messages stay in the log and in `log_tail`.
    """
    try:
        yield
    except OpfacadeError as error:
        if isinstance(error, CompileError) and error.refused_code:
            raise _named(descriptor, error) from None
        error.op = error.op or descriptor.op
        raise


def _named(descriptor: Descriptor[Any], error: CompileError) -> CompileError:
    """The same failure, described by the problem instead of by its code."""
    found = CompileError(
        f"{descriptor.op}.compile: the program of {type(descriptor).__name__} {descriptor.digest()[:12]} expected a compiler "
        f"that takes its device code, got status {error.returncode}. {_HINT}\n  descriptor: {descriptor.canonical_json()}\n"
        f"  log: {error.log_path} [OPF-J035]",
        code="OPF-J035",
        op=descriptor.op,
        hint=_HINT,
    )
    for name in ("argv", "returncode", "log_path", "log_tail", "key"):
        setattr(found, name, getattr(error, name))
    return found
