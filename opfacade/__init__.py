"""Plan-based GPU operator facade: typed descriptors, stable kernel identities, proven precision guarantees.

Names load on first use, so that importing the package costs little and touches no GPU, compiler or file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opfacade import errors, telemetry
    from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
    from opfacade.core.preference import Preference, Require
    from opfacade.core.sku import KernelSku
    from opfacade.core.target import Target
    from opfacade.core.verdict import Verdict
    from opfacade.plan import Plan
    from opfacade.select.change import explain_change
    from opfacade.select.explanation import explain
    from opfacade.select.manifest import SkuManifest
    from opfacade.select.registry import load_descriptor
    from opfacade.serving.plan_cache import PlanCache
    from opfacade.serving.workspace import Workspace
    from opfacade.tools.recorder import record

__version__ = "0.1.0"

_HOME = {
    "ErrorModel": "core.guarantee",
    "KernelSku": "core.sku",
    "Plan": "plan",
    "PlanCache": "serving.plan_cache",
    "PrecisionGuarantee": "core.guarantee",
    "Preference": "core.preference",
    "Require": "core.preference",
    "SkuManifest": "select.manifest",
    "Target": "core.target",
    "Verdict": "core.verdict",
    "Workspace": "serving.workspace",
    "errors": "",
    "explain": "select.explanation",
    "explain_change": "select.change",
    "load_descriptor": "select.registry",
    "record": "tools.recorder",
    "telemetry": "",
}

__all__ = [
    "ErrorModel",
    "KernelSku",
    "Plan",
    "PlanCache",
    "PrecisionGuarantee",
    "Preference",
    "Require",
    "SkuManifest",
    "Target",
    "Verdict",
    "Workspace",
    "errors",
    "explain",
    "explain_change",
    "load_descriptor",
    "record",
    "telemetry",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'opfacade' has no attribute {name!r}")
    value = getattr(import_module(f"opfacade.{home}"), name) if home else import_module(f"opfacade.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
