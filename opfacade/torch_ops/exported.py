"""torch.export programs together with the plans whose handles they contain.

    save(torch.export.export(model, inputs), "model.pt2")
    program = load("model.pt2")  # in another process

A handle is a number, and the file of torch.export contains only this number. `save` also writes the plan of each number: its
descriptor, preference and SKU. `load` selects exactly these plans, or raises an error that names them before anything runs."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import torch

from opfacade.base import strict_json
from opfacade.core import plan_handles
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.errors import Issue, from_issues
from opfacade.plan import Plan
from opfacade.select.registry import load_descriptor
from opfacade.torch_ops.library import NAMESPACE

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FILE = "opfacade_plans.json"
_loaded: dict[int, Plan[Any]] = {}  # keeps the plans alive: a loaded program contains only their handles


def save(program: ExportedProgram, file: str | IO[bytes]) -> None:
    """Writes a program with its plans. Raises PlanStateError for a handle whose plan was deleted (OPF-R020)."""
    torch.export.save(program, file, extra_files={FILE: plans_of(program)})


def load(file: str | IO[bytes]) -> ExportedProgram:
    """Loads a program that `save` wrote. Its plans live as long as the process.

    Raises UnsupportedError if no candidate on this machine has a plan's SKU (OPF-S012), and PlanStateError if the file has no
    plans (OPF-R022)."""
    extra: dict[str, Any] = {FILE: ""}
    program = torch.export.load(file, extra_files=extra)
    if not extra[FILE]:
        hint = "Write it with opfacade.torch_ops.exported.save."
        raise _wrong("file", f"a program with {FILE}", "one without", hint)
    select(extra[FILE])
    return program


def plans_of(program: ExportedProgram) -> str:
    """JSON of the plans whose handles are constants of a program, for `select`."""
    handles = {node.args[0] for graph in _graphs(program.graph_module) for node in graph.nodes if _is_ours(node)}
    rows = [_row(handle) for handle in sorted(handle for handle in handles if isinstance(handle, int))]
    return json.dumps({"version": 1, "plans": rows})


def select(text: str) -> tuple[Plan[Any], ...]:
    """The plans of a program, pinned to its SKUs, even if this machine would choose others. Raises as `load` does."""
    told = strict_json.loads(text)
    if told.get("version") != 1:
        raise _wrong("version", "1", told.get("version"), "Load it with a later version of opfacade.")
    return tuple([_select(row) for row in told["plans"]])


def _row(handle: int) -> dict[str, Any]:
    plan = plan_handles.plan_of(handle)
    descriptor, preference = (x.model_dump(mode="json") for x in (plan.descriptor, plan.preference))
    arch = plan.target.arch
    return {"handle": handle, "descriptor": descriptor, "preference": preference, "sku": plan.sku.id, "arch": arch}


def _select(row: dict[str, Any]) -> Plan[Any]:
    handle, sku = int(row["handle"]), row["sku"]
    descriptor = load_descriptor(json.dumps(row["descriptor"]))
    preference = Preference.model_validate_json(json.dumps(row["preference"] | {"pin": sku}))
    plan: Plan[Any] = Plan.select(descriptor, preference, Target.cpu() if row["arch"] == "cpu" else Target.current())
    if plan.handle != handle:
        plan_handles.add(handle, plan)
    _loaded[handle] = plan
    return plan


def _graphs(module: torch.nn.Module) -> list[torch.fx.Graph]:
    """The graphs of a program, including those of branches."""
    return [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]


def _is_ours(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "namespace", "") == NAMESPACE and bool(node.args)


def _wrong(argument: str, expected: str, got: object, hint: str) -> Exception:
    return from_issues("exported", "select", [Issue("OPF-R022", argument, expected, str(got), hint, kind="PlanStateError")])
