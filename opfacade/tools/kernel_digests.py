"""Digests of the current kernels, by SKU. If a record contains other digests, it is older than the kernels.

The SKUs are those that the matrix of problems and the EXAMPLES select, independently of the installed compiler. A digest covers
the code of a kernel without comments (`jit.code_digest`), so a change of comments changes no digest.
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

ARCH = "sm_90a"  # the architecture of the GPUs on which the proofs run


@lru_cache(maxsize=4)
def present(arch: str = ARCH) -> Mapping[str, str]:
    """{SKU id: digest of its code} for the CUDA kernels that are selected for an architecture."""
    target, found = Target.parse(arch), dict[str, str]()
    for descriptor in (*matrix.matrix().values(), *examples()):
        candidate = _first(descriptor, target)
        if candidate is not None and candidate.compiles:
            sku = candidate.sku(descriptor, target).id
            found[sku] = found.get(sku) or jit.code_digest_of(candidate.jit_specs(descriptor, target))
    return MappingProxyType(dict(sorted(found.items())))


def _first(descriptor: Descriptor[Any], target: Target) -> Candidate | None:
    """The CUDA candidate that would be selected with a sufficiently new compiler."""
    kind: type[Descriptor[Any]] = type(descriptor)
    for candidate in candidates_for(kind):
        reasons = candidate.declines(descriptor, target) if candidate.backend == "cuda" else None
        if reasons is not None and all(reason.code == COMPILER_TOO_OLD for reason in reasons):
            return candidate
    return None


def stamp(arch: str = ARCH) -> dict[str, Any]:
    """The field `kernels` of a record: architecture, number of SKUs, and one digest over all SKUs."""
    found = present(arch)
    return {"arch": arch, "skus": len(found), "digest": codegen.canonical_digest(dict(found))}


def is_present(kernels: object) -> bool:
    """Whether the field `kernels` of a record matches the current kernels."""
    return kernels == stamp()
