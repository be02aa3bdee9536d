"""Compiles kernels in parallel before the first call that needs them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.preference import Preference
from opfacade.plan import Plan
from opfacade.testing.subject import Subject


def build(descriptors: Iterable[Descriptor[Any]], forbid: tuple[str, ...] = ()) -> None:
    """All CUDA kernels that these descriptors need, each once; none for descriptors that CUDA declines.

    forbid: implementations that would be chosen before those under test.
    """
    accepted = (d for d in descriptors if not Subject(d, "cuda", "cuda").declined)
    build_plans(Plan.select(d, Preference(backend="cuda", forbid=forbid)) for d in accepted)


def build_plans(plans: Iterable[Plan[Any]]) -> None:
    """All kernels of these plans, each once. Loads none."""
    from opfacade import jit

    owners = {spec: plan.sku.id for plan in plans for spec in plan.jit_specs}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda spec: jit.build_for_plan(spec, label=owners[spec]), owners))
