"""explain: the result of `select`, with every reason against every other candidate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.preference import DEFAULT, Preference
from opfacade.core.target import NEWEST_TUNED, Target
from opfacade.select import target_notes
from opfacade.select.first_fit import survey_to_chosen
from opfacade.select.in_force import in_force
from opfacade.select.pins import Pins
from opfacade.select.selection import Option, require_known_names, require_right_kinds, survey


@dataclass(frozen=True)
class Explanation:
    """Every candidate, chosen or refused, and why. Use `str()` to read it, and `to_json()` in programs."""

    descriptor: Descriptor[Any]
    preference: Preference
    target: Target
    options: tuple[Option, ...]

    @property
    def chosen(self) -> Option | None:
        return next((o for o in self.options if not o.reasons), None)

    @property
    def slow_code(self) -> tuple[str, ...]:
        """Spills and other slow code of the chosen kernel's binary in the cache of this machine; () if it is not built."""
        from opfacade.select import built_code

        return built_code.slow_code(self.chosen, self.descriptor, self.target)

    def __str__(self) -> str:
        lines = [f"{self.descriptor.op} on {self.target.arch}: {len(self.options)} candidates"]
        for option in self.options:
            state = "chosen" if option is self.chosen else "refused" if option.reasons else "eligible"
            lines.append(f"  {state:8} {option.name}")
            if option.sku is not None:
                lines.append(f"           sku {option.sku.id}")
                lines.append(f"           workspace {option.workspace_size} bytes{option.candidate.habits}")
            lines += [f"           measured: {option.note}"] if option.note else []
            lines += [f"           - {reason}" for reason in option.reasons]
        lines += [f"  note     {note}" for note in target_notes.notes(self.descriptor.op, self.target, self.options)]
        return "\n".join(lines)

    def report(self) -> str:
        """`str()`, which opens no file, and the result of `slow_code`, which reads the cache of this machine."""
        slow = [f"  built    {finding} (slower than it could be, and right)" for finding in self.slow_code]
        return "\n".join([str(self), *slow])

    def as_dict(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "descriptor": self.descriptor.model_dump(mode="json"),
            "preference": self.preference.model_dump(mode="json"),
            "target": {"arch": self.target.arch, "sm_count": self.target.sm_count},
            "chosen": chosen.sku.id if chosen and chosen.sku else None,
            "slow_code": list(self.slow_code),
            "notes": list(target_notes.notes(self.descriptor.op, self.target, self.options)),
            "candidates": [
                {
                    "backend": o.candidate.backend,
                    "impl": o.candidate.impl,
                    "config": o.candidate.config,
                    "measured": o.note,
                    "sku": o.sku.id if o.sku else None,
                    "workspace_size": o.workspace_size,
                    "allocates": o.candidate.allocates,
                    "synchronises": o.candidate.synchronises,
                    "reasons": [r.as_dict() for r in o.reasons],
                }
                for o in self.options
            ],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


def answer(
    name: str,
    descriptor: Descriptor[Any],
    prefer: Preference | None,
    target: Target,
    pins: Pins | None = None,
    args_type: type[Args] | None = None,
    every: bool = True,
) -> tuple[Descriptor[Any], Preference, Target, tuple[Option, ...]]:
    """The chosen option and the refusals with their reasons: shared by `select` and `explain`.

    pins: None: the pins of the process. args_type: that of a named plan, which accepts no other descriptor. every: also surveys
    candidates after the chosen one, which `select` does not.
    """
    require_right_kinds(name, descriptor, prefer, target, args_type)
    checked = descriptor.revalidated()
    preference = DEFAULT if prefer is None else prefer.revalidated()
    if preference.forbid:
        require_known_names(checked.op, preference)
    given = in_force(checked, preference, target) if pins is None else pins
    ask = survey if every else survey_to_chosen
    options = ask(checked, preference, target, given)
    if options[0].reasons or target.sm_version > NEWEST_TUNED:
        target_notes.warn(checked.op, target, options)
    return checked, preference, target, options


def explain(
    descriptor: Descriptor[Any], prefer: Preference | None = None, target: Target | None = None, pins: Pins | None = None
) -> Explanation:
    """The choice of `select` for a target, with every reason against every other candidate. Needs no GPU.

    prefer, target: as in `select`. pins: None: the pins of this process, that is, the manifest of OPFACADE_REQUIRE_SKU and,
    with Preference(autotune="use"), its measurements; `select.pins.NO_PINS`: neither. Raises the errors of `select` except
    UnsupportedError: if no candidate fits, `chosen` is None and `options` holds the reasons.
    """
    return Explanation(*answer("explain", descriptor, prefer, Target.current() if target is None else target, pins))
