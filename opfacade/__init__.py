"""Plan-based GPU operator facade: typed descriptors, stable kernel identities, proven precision guarantees.

Names load on first use, so that importing the package costs little and touches no GPU, compiler or file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opfacade import errors, telemetry
    from opfacade.change import explain_change
    from opfacade.manifest import SkuManifest
    from opfacade.plan import Plan
    from opfacade.preference import Preference, Require
    from opfacade.recorder import record
    from opfacade.registry import load_descriptor
    from opfacade.selection import explain
    from opfacade.sku import ErrorModel, KernelSku, PrecisionGuarantee
    from opfacade.target import Target
    from opfacade.verdict import Verdict

__version__ = "0.1.0"

_HOME = {
    "ErrorModel": "sku",
    "KernelSku": "sku",
    "Plan": "plan",
    "PrecisionGuarantee": "sku",
    "Preference": "preference",
    "Require": "preference",
    "SkuManifest": "manifest",
    "Target": "target",
    "Verdict": "verdict",
    "errors": "",
    "explain": "selection",
    "explain_change": "change",
    "load_descriptor": "registry",
    "record": "recorder",
    "telemetry": "",
}

__all__ = [
    "ErrorModel",
    "KernelSku",
    "Plan",
    "PrecisionGuarantee",
    "Preference",
    "Require",
    "SkuManifest",
    "Target",
    "Verdict",
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
