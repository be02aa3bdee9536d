"""Repeats a run that a cross-check found to exceed its error bound and dumped (observe/crosscheck.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opfacade.core.descriptor import operands_of
from opfacade.core.links import Links
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import ArgumentError
from opfacade.observe import dump_files
from opfacade.observe.crosscheck import Checked, Evidence, copied, judge
from opfacade.plan import Plan
from opfacade.select.registry import load_descriptor
from opfacade.testing.bounds import Report


def _target(arch: str, sm_count: int, max_shared_memory: int, *links: Sequence[Any]) -> Target:
    """The target of a dump, in which links are a tuple of their fields; older dumps have no links."""
    return Target(arch, sm_count, max_shared_memory, *(Links(*fields) for fields in links))


def replay(path: str | Path, device: str | None = None) -> Report:
    """Runs a dump again with the plan of its SKU. If the report's `worst` is at most 1, the violation was not reproduced.

    device: where the tensors are loaded; default: the device of the dump. ArgumentError if `path` is not a dump of a
    cross-check.
    """
    try:
        content = dump_files.load(path, device)
        descriptor, pin, target = load_descriptor(content["descriptor"]), content["sku"], _target(*content["target"])
        before = descriptor.args_type(**content["before"])
    except dump_files.UNREADABLE as error:
        message = f"crosscheck.replay: path expected a dump of a cross-check, got {type(error).__name__} of {path}. [OPF-E013]"
        raise ArgumentError(message, code="OPF-E013", op="crosscheck", stage="replay") from error
    plan: Plan[Any] = Plan.select(descriptor, Preference(pin=pin), target)
    args = copied(before)
    checked = Checked(descriptor, plan.sku, plan.target)
    plan.run(args)
    written = [name for name, spec in operands_of(descriptor).items() if spec.written]
    outputs = {name: getattr(args, name) for name in written}
    report: Report = judge(checked, Evidence(before, outputs, {}), outputs)
    return report
