"""Fakes of frameworks that cannot be installed here. tests/integrations/test_signatures.py compares them with the frameworks'
sources.
"""

import sys
from types import ModuleType, SimpleNamespace


def put(monkeypatch, **modules):
    """Modules by dotted name, with `__` for the dot; parent packages are created."""
    for name, namespace in modules.items():
        parts = name.split("__")
        for end in range(1, len(parts)):
            package = ".".join(parts[:end])
            if package not in sys.modules:
                monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(".".join(parts))
        module.__dict__.update(namespace)
        monkeypatch.setitem(sys.modules, module.__name__, module)


class Unread:
    """A host copy, which a builder must not touch."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} of a host tensor was read")


__all__ = ["SimpleNamespace", "Unread", "put"]
