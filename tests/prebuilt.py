"""Kernels compiled side by side before the first test that needs them."""

import os
from concurrent.futures import ThreadPoolExecutor

from opfacade import Plan, Preference


def build(descriptors):
    """Every CUDA kernel that these descriptors need, each once."""
    plans = {p.sku.id: p for p in (Plan.select(d, Preference(backend="cuda")) for d in descriptors)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda plan: plan.compile(), plans.values()))
