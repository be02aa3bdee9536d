"""The registry: finds families, their candidates and their harnesses by the names of files.

A family has the same name in plans, backends/<backend> (which defines CANDIDATES) and testing/families (HARNESSES).
"""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from opfacade.core.backends import BACKENDS as BACKENDS
from opfacade.core.candidate import Candidate
from opfacade.core.descriptor import Descriptor
from opfacade.select.descriptor_text import type_in


@lru_cache(maxsize=1)
def families() -> tuple[str, ...]:
    """The operator families: the modules of `opfacade.plans` whose names do not begin with an underscore."""
    package = import_module("opfacade.plans")
    return tuple(sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")))


@lru_cache(maxsize=256)
def candidates_for(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """Every candidate for a descriptor type that may be chosen by default, in order of preference."""
    return tuple(candidate for candidate in configs_for(descriptor) if not candidate.config)


@lru_cache(maxsize=256)
def configs_for(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """Every candidate for a descriptor type, in order of preference; the tuning configs follow all defaults."""
    found: list[Candidate] = []
    for backend in BACKENDS:
        name = f"opfacade.backends.{backend}.{descriptor.family()}"
        # A family may be missing in a backend, but an error while importing one must not be hidden.
        if find_spec(name) is not None:
            found += [c for c in import_module(name).CANDIDATES if c.descriptor is descriptor]
    return tuple(sorted(found, key=lambda candidate: bool(candidate.config)))


@lru_cache(maxsize=1)
def names_to_forbid() -> frozenset[str]:
    """The names of all candidates of all ops."""
    return frozenset[str]().union(*(c.names for kind in descriptor_types().values() for c in configs_for(kind)))


@lru_cache(maxsize=1)
def descriptor_types() -> dict[str, type[Descriptor[Any]]]:
    """Every descriptor type by its op name."""
    types: dict[str, type[Descriptor[Any]]] = {}
    for family in families():
        for example in import_module(f"opfacade.plans.{family}").EXAMPLES:
            types[example.op] = type(example)
    return types


def harness_for(op: str) -> Any:
    """The harness of an op: `testing/families/<family>` ends in HARNESSES, by op."""
    return import_module(f"opfacade.testing.families.{descriptor_types()[op].family()}").HARNESSES[op]


def examples() -> tuple[Descriptor[Any], ...]:
    """The EXAMPLES of all families: compiled in CI, warmed up by default, and tested against their guarantees."""
    return tuple(e for family in families() for e in import_module(f"opfacade.plans.{family}").EXAMPLES)


def load_descriptor(text: str | bytes) -> Descriptor[Any]:
    """A descriptor of any type from its JSON, whose field `op` names the type. Raises DescriptorError for any other text."""
    return type_in(text, descriptor_types()).model_validate_json(text)
