"""Every exception opfacade raises.

    OpfacadeError
    ├─ DescriptorError (ValueError)           a field of a descriptor, preference or target is wrong
    │  ├─ GuaranteeConflictError              fields contradict a requested guarantee
    │  └─ FrozenError (AttributeError)        a value that cannot change was set or deleted
    ├─ UnsupportedError (NotImplementedError) a valid problem that no candidate accepts
    │  ├─ UnsupportedDeviceError              ... because of the device
    │  ├─ GuaranteeUnavailable                ... because no candidate keeps the required guarantee
    │  └─ GradNotSupportedError               ... because a gradient was requested
    ├─ ArgumentError (ValueError)             the tensors of a call do not fit the descriptor
    │  ├─ ArgumentTypeError (TypeError)       not a tensor, not the right bundle
    │  ├─ DTypeError (TypeError) · ShapeError · LayoutError · AlignmentError · AliasError · DeviceMismatchError
    │  ├─ WorkspaceError                      .needed .got, in bytes
    │  └─ IndexDataError (IndexError)         .argument .request .position .value .limit .asynchronous .call_id
    ├─ MissingNameError (AttributeError)      an adapter of another library has no such name
    ├─ SettingError (ValueError)              an OPFACADE_* variable has a value that means nothing
    ├─ PlanStateError (RuntimeError)          capture, fork, wrong moment
    │  └─ JitDisabledError                    a build is needed and not allowed
    ├─ CompileError (RuntimeError)            .argv .returncode .log_path .log_tail .key
    │  └─ ToolchainError · CompileTimeout (TimeoutError) · TemplateError
    ├─ FileError (OSError)                    a file cannot be written; keeps errno and filename
    │  ├─ RecordingError                      .recording .kept
    │  └─ CacheError                          the kernel cache
    │     └─ CacheIntegrityError · CacheSecurityError (PermissionError) · CacheLockTimeout (TimeoutError)
    ├─ DeviceError (RuntimeError)             .cuda_error .context_dead
    ├─ LibraryError (RuntimeError)            a library of others is missing, is another version, or failed: .library .status
    ├─ GroupError (RuntimeError)              a call over several ranks: .ranks, those that are missing or differ
    ├─ GuaranteeViolation (ArithmeticError)   a cross-check found an output beyond its SKU's bound: .sku .worst .dump
    └─ InternalError (AssertionError)         an invariant of ours is broken: please report

A message reads `Op.stage: argument expected X, got Y. One hint. [OPF-A023]`. KeyboardInterrupt, MemoryError and
torch.OutOfMemoryError are never wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from opfacade.issue import Issue as Issue
from opfacade.issue import told as told

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_ISSUES = 20
_CODE = re.compile(r"\[(OPF-[A-Z][0-9]{3})\]")


class OpfacadeError(Exception):
    """Root of all errors. `issues` holds every problem found (at most 20), the message tells the first ten.

    code: as in the message. op, stage: whose call it was, and in which part of it; op is empty where no plan has a part in it.
    """

    _stage: ClassVar[str] = ""  # where most of a kind come from

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        op: str = "",
        stage: str = "",
        issues: Iterable[Issue] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.op, self.stage, self.hint = code or _code_in(message), op, stage or self._stage, hint
        self.issues: tuple[Issue, ...] = tuple(issues)[:MAX_ISSUES]


def _code_in(message: str) -> str:
    found = _CODE.search(message)
    return found[1] if found else ""


class DescriptorError(OpfacadeError, ValueError):
    """A field of a descriptor, preference or target is wrong; `errors()` is pydantic's list where it came from there."""

    def errors(self) -> list[dict[str, object]]:
        inner = getattr(self.__cause__, "errors", None)
        return list(inner()) if callable(inner) else []


class GuaranteeConflictError(DescriptorError): ...


class FrozenError(DescriptorError, AttributeError):
    """Descriptors, preferences and plans are immutable: a changed copy is made instead."""


class UnsupportedError(OpfacadeError, NotImplementedError): ...


class UnsupportedDeviceError(UnsupportedError): ...


class GuaranteeUnavailable(UnsupportedError): ...


class GradNotSupportedError(UnsupportedError): ...


class ArgumentError(OpfacadeError, ValueError): ...


class ArgumentTypeError(ArgumentError, TypeError): ...


class DTypeError(ArgumentError, TypeError): ...


class ShapeError(ArgumentError): ...


class LayoutError(ArgumentError): ...


class AlignmentError(ArgumentError): ...


class AliasError(ArgumentError): ...


class DeviceMismatchError(ArgumentError): ...


class WorkspaceError(ArgumentError):
    """The workspace does not fit: `needed` and `got` in bytes."""

    needed: int = 0
    got: int = 0


class IndexDataError(ArgumentError, IndexError):
    """An element of an index tensor is wrong: which request, where in the tensor, its value, and what is allowed.

    asynchronous: a device found it, in the plan's checked call `call_id`, which is over; that request was left empty.
    """

    argument: str = ""
    request: int = -1
    position: int = -1
    value: int = 0
    limit: str = ""
    asynchronous: bool = False
    call_id: int = -1


class MissingNameError(OpfacadeError, AttributeError):
    _stage = "import"  # `from ... import` makes an ImportError of it, without the code


class SettingError(OpfacadeError, ValueError):
    _stage = "setting"


class PlanStateError(OpfacadeError, RuntimeError): ...


class JitDisabledError(PlanStateError):
    _stage = "compile"


class CompileError(OpfacadeError, RuntimeError):
    """A compiler failed: `argv`, `returncode`, `log_path`, `log_tail`, `key` say which, how and where to read on.

    refused_code: it took fault with a line of the generated code, not with the machine.
    """

    _stage = "compile"
    argv: Sequence[str] = ()
    returncode: int | None = None
    log_path: str = ""
    log_tail: str = ""
    key: str = ""
    refused_code: bool = False


class ToolchainError(CompileError): ...


class CompileTimeout(CompileError, TimeoutError): ...


class TemplateError(CompileError): ...


class FileError(OpfacadeError, OSError):
    """A file cannot be written; `errno` and `filename` are those of the failed call, if one failed."""

    @classmethod
    def of(cls, message: str, cause: OSError) -> Self:
        """The error that tells `message` because of `cause`."""
        error = cls(message)
        error.errno, error.strerror, error.filename = cause.errno, cause.strerror, cause.filename
        return error

    def __str__(self) -> str:
        # OSError would print errno and filename in place of the message.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError keeps these outside __dict__, and its own __reduce__ forgets them.
        return _same_file_error, (type(self), self.args, self.__dict__, (self.errno, self.strerror, self.filename))


def _same_file_error(
    kind: type[FileError], args: tuple[Any, ...], state: dict[str, Any], failed: tuple[Any, Any, Any]
) -> FileError:
    error = kind(*args)
    error.__dict__.update(state)
    error.errno, error.strerror, error.filename = failed
    return error


class RecordingError(FileError):
    """A recording cannot be written to its place: `recording` is its text, if there is one yet, `kept` the file that has it."""

    _stage = "record"
    recording: str = ""
    kept: str = ""


class CacheError(FileError):
    """The kernel cache failed."""

    _stage = "cache"


class CacheIntegrityError(CacheError): ...


class CacheSecurityError(CacheError, PermissionError): ...


class CacheLockTimeout(CacheError, TimeoutError): ...


class DeviceError(OpfacadeError, RuntimeError):
    cuda_error: str = ""
    context_dead: bool = False


class LibraryError(OpfacadeError, RuntimeError):
    library: str = ""
    status: int | None = None


class GroupError(OpfacadeError, RuntimeError):
    ranks: tuple[int, ...] = ()


class GuaranteeViolation(OpfacadeError, ArithmeticError):
    """An output is further from the oracle than its SKU promises: `worst` times the bound, at the worst. `dump` replays it."""

    sku: str = ""
    worst: float = 0.0
    dump: str = ""


class InternalError(OpfacadeError, AssertionError): ...


class OpfacadeWarning(UserWarning): ...


class FallbackWarning(OpfacadeWarning): ...  # on a GPU the reference was chosen, because no kernel accepts the descriptor


class TargetWarning(OpfacadeWarning): ...  # the target's name or age, or the compiler here, costs speed


class SettingWarning(OpfacadeWarning): ...  # an OPFACADE_* variable is set that nothing reads, or without effect here


class ReleaseWarning(OpfacadeWarning): ...  # an adapter serves another release of its framework than it was tested with


class LagWarning(OpfacadeWarning): ...  # a rank of a group is late, and still waited for


class DroppedWarning(OpfacadeWarning):
    """A line of the log, a dump or an event was dropped because it could not be written or told; no run fails of that."""


class CachePrivateWarning(OpfacadeWarning):
    """The kernel cache cannot be used; this process compiles into a temporary directory of its own."""


def from_issues(op: str, stage: str, issues: Sequence[Issue]) -> OpfacadeError:
    """The error for a non-empty list of issues: the kind of the first one, with all attached."""
    first = issues[0]
    kind: type[OpfacadeError] = globals()[first.kind]
    place = f"{op}.{stage}" if stage else op
    return kind(told(place, issues), code=first.code, op=op, stage=stage, issues=issues, hint=first.hint)
