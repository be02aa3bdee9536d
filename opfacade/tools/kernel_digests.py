"""Digests of the kernels of today, by SKU. A record that names its kernels is older than the kernels if these differ.

The SKUs are those that the matrix of problems and the EXAMPLES select, whatever compiler is here. A digest covers the code of
a kernel without comments (`jit.code_digest`), so a change of comments changes no digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from opfacade import jit
from opfacade.core.candidate import COMPILER_TOO_OLD, Candidate
from opfacade.core.descriptor import Descriptor
from opfacade.core.target import Target
from opfacade.jit import codegen
from opfacade.select.registry import candidates_for, examples
from opfacade.testing import matrix

ARCH = "sm_90a"  # of the GPUs that the proofs run on


@lru_cache(maxsize=4)
def present(arch: str = ARCH) -> Mapping[str, str]:
    """{SKU id: digest of its code} of the CUDA kernels that are selected for an architecture."""
    target, found = Target.parse(arch), dict[str, str]()
    for descriptor in (*matrix.matrix().values(), *examples()):
        candidate = _first(descriptor, target)
        if candidate is not None and candidate.compiles:
            sku = candidate.sku(descriptor, target).id
            found[sku] = found.get(sku) or jit.code_digest_of(candidate.jit_specs(descriptor, target))
    return MappingProxyType(dict(sorted(found.items())))


def _first(descriptor: Descriptor[Any], target: Target) -> Candidate | None:
    """The CUDA candidate that is selected where the compiler is new enough."""
    kind: type[Descriptor[Any]] = type(descriptor)
    for candidate in candidates_for(kind):
        reasons = candidate.declines(descriptor, target) if candidate.backend == "cuda" else None
        if reasons is not None and all(reason.code == COMPILER_TOO_OLD for reason in reasons):
            return candidate
    return None


def stamp(arch: str = ARCH) -> dict[str, Any]:
    """The field `kernels` of a record: architecture, number of SKUs, one digest over all of them."""
    found = present(arch)
    return {"arch": arch, "skus": len(found), "digest": codegen.canonical_digest(dict(found))}


def is_present(kernels: object) -> bool:
    """Whether the field `kernels` of a record names the kernels of today."""
    return kernels == stamp()
