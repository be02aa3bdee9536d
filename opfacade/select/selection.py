"""Choosing a candidate: a pure function of (descriptor, preference, target, pins). It reads no tensor, GPU, clock or file.

Both `Plan.select` and `explain` call `answer`, the only function that uses the pins of the process by default.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from opfacade import telemetry
from opfacade.base.short_repr import shown
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.guarantee import EXACT, BoundedWait, RankInvariant
from opfacade.core.preference import DEFAULT, Preference, Require
from opfacade.core.sku import OLDER_FORM, KernelSku, is_older_sku_id, is_sku_id
from opfacade.core.target import Target
from opfacade.errors import (
    GuaranteeUnavailable,
    Issue,
    UnsupportedDeviceError,
    UnsupportedError,
    from_issues,
)
from opfacade.select.pins import NO_PINS, Pins
from opfacade.select.registry import candidates_for, configs_for, names_to_forbid

_RANKS, _WAITS = get_args(RankInvariant), get_args(BoundedWait)  # weakest first


class Option(NamedTuple):
    """One surveyed candidate: its SKU and workspace if it accepts the descriptor, and the reasons against it."""

    candidate: Candidate
    reasons: tuple[Reason, ...]
    sku: KernelSku | None = None
    workspace_size: int | None = None
    note: str = ""

    @property
    def is_pointless(self) -> bool:
        """True for a tuning config that does not apply to this descriptor."""
        return bool(self.candidate.config) and any(reason.code == "OPF-S017" for reason in self.reasons)

    @property
    def name(self) -> str:
        return self.candidate.name


def _called(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require_right_kinds(
    name: str, descriptor: object, prefer: object, target: object, args_type: type[Args] | None = None
) -> None:
    """Raises ArgumentTypeError if arguments of `select` or `explain` have wrong types."""
    issue = _wrong_argument(descriptor, prefer, target, args_type)
    if issue is not None:
        raise from_issues(name, "select", [issue])


def require_choice(name: str, stage: str, prefer: object, target: object = None) -> None:
    """Raises ArgumentTypeError for an invalid preference or target."""
    issue = _wrong_choice(prefer, target)
    if issue is not None:
        raise from_issues(name, stage, [issue])


def _wrong_argument(descriptor: object, prefer: object, target: object, args_type: type[Args] | None) -> Issue | None:
    """args_type: that of a named plan, or None."""
    if not isinstance(descriptor, Descriptor):
        hint = "Read its JSON with load_descriptor." if isinstance(descriptor, (dict, str, bytes)) else ""
        return Issue("OPF-S030", "descriptor", "a Descriptor", _called(descriptor), hint, kind="ArgumentTypeError")
    if args_type is not None and descriptor.args_type is not args_type:
        wanted = f"a descriptor of {args_type.__name__.removesuffix('Args')}"
        return Issue("OPF-S031", "descriptor", wanted, _called(descriptor), kind="ArgumentTypeError")
    return _wrong_choice(prefer, target)


def _wrong_choice(prefer: object, target: object) -> Issue | None:
    if prefer is not None and not isinstance(prefer, Preference):
        return Issue(
            "OPF-S032",
            "prefer",
            "a Preference or None",
            _called(prefer),
            _example("Preference(backend={})", prefer),
            "ArgumentTypeError",
        )
    if target is not None and not isinstance(target, Target):
        return Issue(
            "OPF-S033", "target", "a Target or None", _called(target), _example("Target.parse({})", target), "ArgumentTypeError"
        )
    return None


def _example(form: str, given: object) -> str:
    return f"Write {form.format(shown(given))}." if isinstance(given, str) else ""


def require_known_names(op: str, prefer: Preference) -> None:
    """Raises UnsupportedError for a forbidden name that no candidate has: otherwise a typo would allow the candidate."""
    for name in prefer.forbid:
        if name not in names_to_forbid() and not is_sku_id(name):
            expected = "a backend, an implementation or a SKU id"
            hint = f"It is {OLDER_FORM}." if is_older_sku_id(name) else "explain(descriptor) shows names."
            issue = Issue("OPF-S019", "prefer.forbid", expected, repr(name), hint, kind="UnsupportedError")
            raise from_issues(op, "select", [issue])


def survey(descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins = NO_PINS) -> tuple[Option, ...]:
    """Every candidate, in order of preference, with every reason against it; measured choices come first.

    Tuning configs are included only if pinned or measured to be best.
    """
    measured = pins.tuned is not None and pins.tuned.row is not None
    found = configs_for if prefer.pin is not None or measured else candidates_for
    options = tuple([consider(candidate, descriptor, prefer, target, pins) for candidate in found(type(descriptor))])
    if found is configs_for:
        options = tuple(option for option in options if not option.is_pointless)
    return _measured_first(options, pins) if prefer.autotune == "use" and prefer.pin is None else options


def considered(descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins = NO_PINS) -> tuple[Option, ...]:
    """Every candidate and tuning config, configs last, each with every reason against it."""
    return tuple(consider(candidate, descriptor, prefer, target, pins) for candidate in configs_for(type(descriptor)))


def _measured_first(options: tuple[Option, ...], pins: Pins) -> tuple[Option, ...]:
    """The defaults, preceded by the measured choice; a note on the first option gives the reason for it, or for its absence."""
    defaults = tuple(option for option in options if not option.candidate.config)
    fitting = {option.sku.id: option for option in options if option.sku is not None and not option.reasons}
    sku, note = pins.tuned.choose(tuple(fitting)) if pins.tuned is not None else (None, "no measurements were given")
    first = next((o for o in defaults if not o.reasons), None) if sku is None else fitting[sku]
    if first is None:
        return defaults
    return (first._replace(note=note), *(option for option in defaults if option is not first))


def consider(candidate: Candidate, descriptor: Descriptor[Any], prefer: Preference, target: Target, pins: Pins) -> Option:
    """The candidate's SKU, workspace and reasons, plus the reasons of the caller and of the process against it."""
    option = _offered(candidate, descriptor, target)
    if pins is NO_PINS and (prefer is DEFAULT or prefer == DEFAULT):
        return option
    return option._replace(reasons=(*option.reasons, *_unwelcome(option, prefer, pins)))


def _offered(candidate: Candidate, descriptor: Descriptor[Any], target: Target) -> Option:
    """The candidate's SKU, workspace and reasons."""
    found = candidate.declines(descriptor, target)
    if reasons := found if isinstance(found, tuple) else tuple(found):
        return Option(candidate, reasons)
    return Option(candidate, reasons, candidate.sku(descriptor, target), candidate.workspace(descriptor, target))


def _unwelcome(option: Option, prefer: Preference, pins: Pins) -> Iterator[Reason]:
    """Reasons of the caller and of the process against an option."""
    yield from _unwanted(option.candidate, option.sku, prefer)
    yield from _busy(option.candidate, prefer)
    if option.sku is not None and option.workspace_size is not None:
        yield from _locked_out(option.sku, prefer, pins)
        kind = option.candidate.descriptor
        yield from _over_budget(option.workspace_size, prefer, kind.workspace_hint)
        yield from _unmet(option.sku, prefer.require, kind)


def _unwanted(candidate: Candidate, sku: KernelSku | None, prefer: Preference) -> Iterator[Reason]:
    if prefer.backend not in (None, candidate.backend):
        yield Reason("OPF-S010", "prefer.backend", candidate.backend, str(prefer.backend))
    names = {*candidate.names, sku.id if sku else ""} if prefer.forbid else set()
    for name in sorted(names & set(prefer.forbid)):
        yield Reason("OPF-S011", "prefer.forbid", name, f"anything but {', '.join(prefer.forbid)}")
    if prefer.pin is not None and sku is not None and sku.id != prefer.pin:
        yield Reason("OPF-S012", "prefer.pin", sku.id, prefer.pin)


def _busy(candidate: Candidate, prefer: Preference) -> Iterator[Reason]:
    """Reasons against runs that may allocate or wait, if the caller forbids this, for example for a graph."""
    if candidate.allocates and not prefer.allow_allocation:
        yield Reason("OPF-S024", "prefer.allow_allocation", "allocate device memory", "no candidate that does")
    if candidate.synchronises and not prefer.allow_sync:
        yield Reason("OPF-S024", "prefer.allow_sync", "wait for the device", "no candidate that does")


def _locked_out(sku: KernelSku, prefer: Preference, pins: Pins) -> Iterator[Reason]:
    if prefer.allow is not None and sku.id not in prefer.allow:
        yield Reason("OPF-S015", "prefer.allow", sku.id, f"one of {len(prefer.allow)} allowed SKUs")
    if pins.allowed is not None and pins.refuses(sku):
        hint = "Change the descriptor back, or add it to the file that `opfacade manifest freeze` reads."
        allowed = f"a SKU of {pins.allowed.origin}, which has {len(pins.allowed.skus)}"
        yield Reason("OPF-S016", "OPFACADE_REQUIRE_SKU", sku.id, allowed, hint)


def _over_budget(workspace: int, prefer: Preference, hint: str) -> Iterator[Reason]:
    limit = prefer.max_workspace_bytes
    if limit is not None and workspace > limit:
        yield Reason("OPF-S014", "prefer.max_workspace_bytes", f"{workspace} bytes", f"at most {limit} bytes", hint)


def _unmet(sku: KernelSku, require: Require, kind: type[Descriptor[Any]]) -> Iterator[Reason]:
    promise = sku.precision_guarantee
    for field in ("deterministic", "bit_stable_on_same_hardware"):
        if getattr(require, field) and not getattr(promise, field):
            yield Reason("OPF-S020", f"prefer.require.{field}", "False", "True")
    if require.batch_invariant != "none" and promise.batch_invariant != require.batch_invariant:
        hint = kind.invariance_hint
        yield Reason("OPF-S020", "prefer.require.batch_invariant", promise.batch_invariant, require.batch_invariant, hint)
    if _RANKS.index(promise.rank_invariant) < _RANKS.index(require.rank_invariant):
        yield Reason("OPF-S020", "prefer.require.rank_invariant", promise.rank_invariant, require.rank_invariant)
    if _WAITS.index(promise.bounded_wait) < _WAITS.index(require.bounded_wait):
        hint = "On GPUs of one host, pass target=group.target." if promise.bounded_wait == "abort" else ""
        yield Reason("OPF-S020", "prefer.require.bounded_wait", promise.bounded_wait, require.bounded_wait, hint)
    wanted, stated = require.max_error_model, promise.error_model.id
    if wanted is None or stated == EXACT:
        return
    if wanted not in kind.error_models:
        yield Reason("OPF-S022", "prefer.require.max_error_model", wanted, f"one of {', '.join(kind.error_models)}")
    elif kind.error_models.index(stated) > kind.error_models.index(wanted):
        yield Reason("OPF-S020", "prefer.require.max_error_model", stated, wanted)


def count_refusals(op: str, options: tuple[Option, ...]) -> None:
    """Reports every reason against a candidate to telemetry."""
    listening = telemetry.listening()
    for option in options:
        for reason in option.reasons:
            telemetry.count_refusal(reason.code)
        if listening and option.reasons:
            codes = [reason.code for reason in option.reasons]
            telemetry.emit("refuse", op=op, candidate=option.name, codes=codes)


def choose(descriptor: Descriptor[Any], target: Target, options: tuple[Option, ...]) -> Option:
    """The first option without a reason against it; UnsupportedError with all reasons when there is none."""
    for option in options:
        if not option.reasons:
            return option
    raise _unsupported(descriptor, target, options)


def fallback(descriptor: Descriptor[Any], target: Target, options: tuple[Option, ...]) -> str:
    """The warning that the reference runs on a GPU, with the first reason against a kernel and how to see the others."""
    refused = next((o for o in options if o.reasons and o.candidate.backend != "reference"), None)
    why = f"{refused.name}: {refused.reasons[0]}" if refused is not None else "no kernel is written for it."
    return (
        f"{descriptor.op}: falling back to the reference backend on {target.arch}. {why} explain(descriptor) has every reason."
    )


def _unsupported(descriptor: Descriptor[Any], target: Target, options: tuple[Option, ...]) -> UnsupportedError:
    issues = [
        Issue(r.code, f"{o.name}: {r.field}", r.allowed, r.got, r.hint, kind="UnsupportedError")
        for o in options
        for r in o.reasons
    ]
    pinned = _pinned(options)
    if pinned is not None and not any(o.sku is not None and o.sku.id == pinned for o in options):
        message = f"{descriptor.op}.select: {_wrong_pin(target, options, pinned)}"
        return UnsupportedError(message, code="OPF-S012", op=descriptor.op, stage="select", issues=issues)
    kind, code = _kind(options)
    lines = "".join(f"\n  {o.name}: {'; '.join(map(str, o.reasons))}" for o in options)
    message = f"{descriptor.op}.select: no candidate for target {target.arch} [{code}]{lines}"
    return kind(message, code=code, op=descriptor.op, stage="select", issues=issues)


def _pinned(options: tuple[Option, ...]) -> str | None:
    return next((r.allowed for o in options for r in o.reasons if r.code == "OPF-S012"), None)


def _wrong_pin(target: Target, options: tuple[Option, ...], pin: str) -> str:
    """The error for a pinned id that no candidate has: similar ids, and the reasons if its kernel is refused."""
    known = [o.sku.id for o in options if o.sku is not None]
    near = "".join(f"\n  nearest: {sku}" for sku in difflib.get_close_matches(pin, known, n=3, cutoff=0.0))
    named = [o for o in options if o.sku is None and is_sku_id(pin) and _names(pin, o)]
    refused = "".join(f"\n  refused: {o.name}: {'; '.join(map(str, o.reasons))}" for o in named)
    expected = f"the SKU id of a candidate for target {target.arch}"
    issue = Issue("OPF-S012", "prefer.pin", expected, repr(pin), kind="UnsupportedError")
    return f"{issue}{refused}{near}"


def _names(pin: str, option: Option) -> bool:
    """Whether a SKU id belongs to this implementation."""
    parts = pin.split("/")
    return (parts[2], parts[4].partition("@")[0]) == (option.candidate.backend, option.candidate.impl)


def _kind(options: tuple[Option, ...]) -> tuple[type[UnsupportedError], str]:
    """Error type and code if no option fits. UnsupportedDeviceError if the device is the reason for all permitted options."""
    lacking = {r.code for o in options if {r.code for r in o.reasons} <= {"OPF-S020", "OPF-S022"} for r in o.reasons}
    if lacking:
        return GuaranteeUnavailable, max(lacking)
    might = [o for o in options if not any(r.code in ("OPF-S010", "OPF-S011") for r in o.reasons)]
    if might and all(any(r.code == "OPF-S001" for r in o.reasons) for o in might):
        return UnsupportedDeviceError, "OPF-S001"
    # If a candidate accepts the descriptor, the preference or the lock refuses it, and the caller can change these.
    able = [o for o in might if o.sku is not None]
    return UnsupportedError, next((r.code for o in (*able, *might, *options) for r in o.reasons), "OPF-S000")
