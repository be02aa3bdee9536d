"""Every exception opfacade raises.

    OpfacadeError
    ├─ DescriptorError (ValueError)           a field of a descriptor, preference or target is wrong
    │  ├─ GuaranteeConflictError              fields contradict a requested guarantee
    │  └─ FrozenError (AttributeError)        a value that cannot change was set or deleted
    ├─ UnsupportedError (NotImplementedError) a valid problem that no candidate accepts
    │  ├─ UnsupportedDeviceError              ... because of the device
    │  ├─ GuaranteeUnavailable                ... because no candidate has the required guarantee
    │  └─ GradNotSupportedError               ... because a gradient was requested
    ├─ ArgumentError (ValueError)             the tensors of a call do not fit the descriptor
    │  ├─ ArgumentTypeError (TypeError)       not a tensor, or not the right args class
    │  ├─ DTypeError (TypeError) · ShapeError · LayoutError · AlignmentError · AliasError · DeviceMismatchError
    │  ├─ WorkspaceError                      .needed .got, in bytes
    │  └─ IndexDataError (IndexError)         .argument .request .position .value .limit .asynchronous .call_id
    ├─ MissingNameError (AttributeError)      an adapter of another library has no such name
    ├─ SettingError (ValueError)              an OPFACADE_* variable has an invalid value
    ├─ PlanStateError (RuntimeError)          during a capture, after a fork, or too early
    │  └─ JitDisabledError                    a build is needed but not allowed
    ├─ CompileError (RuntimeError)            .argv .returncode .log_path .log_tail .key
    │  └─ ToolchainError · CompileTimeout (TimeoutError) · TemplateError
    ├─ FileError (OSError)                    a file cannot be written; keeps errno and filename
    │  ├─ RecordingError                      .recording .kept
    │  └─ CacheError                          the kernel cache
    │     └─ CacheIntegrityError · CacheSecurityError (PermissionError) · CacheLockTimeout (TimeoutError)
    ├─ DeviceError (RuntimeError)             .cuda_error .context_dead
    ├─ LibraryError (RuntimeError)            a third-party library is missing, is another version, or failed: .library .status
    ├─ GroupError (RuntimeError)              a call over several ranks: .ranks are missing or differ
    ├─ GuaranteeViolation (ArithmeticError)   a cross-check found an output beyond its SKU's bound: .sku .worst .dump
    └─ InternalError (AssertionError)         an internal invariant is broken: please report it

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
    """Root of all errors. `issues` contains all problems that were found (at most 20); the message lists the first ten.

    code: as in the message. op, stage: the op and the part of its call; op is empty if no plan is involved."""

    _stage: ClassVar[str] = ""  # the usual origin of errors of this class

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
    """A field of a descriptor, preference or target is wrong; `errors()` is pydantic's list if pydantic found the error."""

    def errors(self) -> list[dict[str, object]]:
        inner = getattr(self.__cause__, "errors", None)
        return list(inner()) if callable(inner) else []


class GuaranteeConflictError(DescriptorError): ...


class FrozenError(DescriptorError, AttributeError):
    """Descriptors, preferences and plans are immutable; make a changed copy."""


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
    """An element of an index tensor is wrong: its request, position, value and limit.

    asynchronous: the device found it in the plan's checked call `call_id`, which has ended; that request was treated as empty.
    """

    argument: str = ""
    request: int = -1
    position: int = -1
    value: int = 0
    limit: str = ""
    asynchronous: bool = False
    call_id: int = -1


class MissingNameError(OpfacadeError, AttributeError):
    _stage = "import"  # `from ... import` turns this into an ImportError without the code


class SettingError(OpfacadeError, ValueError):
    _stage = "setting"


class PlanStateError(OpfacadeError, RuntimeError): ...


class JitDisabledError(PlanStateError):
    _stage = "compile"


class CompileError(OpfacadeError, RuntimeError):
    """A compiler failed: `argv`, `returncode`, `log_path`, `log_tail`, `key` describe the failed command.

    refused_code: the compiler rejected the generated code, so the machine is not the cause.
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
        """The error with `message`, caused by `cause`."""
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
    """A recording cannot be written: `recording` is its text, if it exists, and `kept` the file that contains it."""

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
    """An output exceeds the error bound of its SKU: the largest error is `worst` times the bound. `dump` replays it."""

    sku: str = ""
    worst: float = 0.0
    dump: str = ""


class InternalError(OpfacadeError, AssertionError): ...


class OpfacadeWarning(UserWarning): ...


class FallbackWarning(OpfacadeWarning): ...  # on a GPU the reference was chosen, because no kernel accepts the descriptor


class TargetWarning(OpfacadeWarning): ...  # the target's name or age, or the compiler here, costs speed


class SettingWarning(OpfacadeWarning): ...  # an OPFACADE_* variable is set but is unknown, or has no effect here


class ReleaseWarning(OpfacadeWarning): ...  # the framework's release differs from the release for which the adapter was tested


class LagWarning(OpfacadeWarning): ...  # a rank of a group is late; the others still wait for it


class DroppedWarning(OpfacadeWarning):
    """A log line, a dump or an event could not be written or delivered and was dropped; runs do not fail."""


class CachePrivateWarning(OpfacadeWarning):
    """The kernel cache cannot be used; this process compiles into its own temporary directory."""


def from_issues(op: str, stage: str, issues: Sequence[Issue]) -> OpfacadeError:
    """The error for a non-empty list of issues: its class is that of the first issue, and all issues are attached."""
    first = issues[0]
    kind: type[OpfacadeError] = globals()[first.kind]
    place = f"{op}.{stage}" if stage else op
    return kind(told(place, issues), code=first.code, op=op, stage=stage, issues=issues, hint=first.hint)
