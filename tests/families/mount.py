"""Mounts a family from a folder of tests as if its files were in the package, without changing the package."""

import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from opfacade import plan
from opfacade.select import registry

PLACES = ("plans", "backends/reference", "backends/cuda", "testing/families")


@contextmanager
def mounted(family, root=None):
    """The family in `root`, by default `tests/families/<family>`, becomes visible to the registry and the harness."""
    root = root or Path(__file__).parent / family
    packages = [import_module(f"opfacade.{place.replace('/', '.')}") for place in PLACES]
    before = set(sys.modules)
    for package, place in zip(packages, PLACES, strict=True):
        package.__path__.append(str(root / place))
    _forget()
    try:
        yield import_module(f"opfacade.plans.{family}")
    finally:
        for package in packages:
            package.__path__.pop()
        for name in set(sys.modules) - before:
            if name.endswith(f".{family}"):
                del sys.modules[name]
        for package in packages:
            vars(package).pop(family, None)
        _forget()


def _forget():
    for known in (registry.families, registry.candidates_for, registry.configs_for, registry.names_to_forbid,
                  registry.descriptor_types):  # fmt: skip
        known.cache_clear()
    plan.forget_selections()
