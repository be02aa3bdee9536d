"""Every template compiles for the oldest and the newest architecture we name, on a machine without a GPU, without spills."""

import json

import pytest

from opfacade import Plan, Preference, Target, jit
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.registry import examples

WIDE = PagedKvCacheDescriptor(num_total_pages=99, page_size=1, num_kv_heads=2, head_dim=256, dtype="bf16")
PLAIN = PagedKvCacheDescriptor(num_total_pages=99, page_size=16, num_kv_heads=2, head_dim=128, dtype="f32")
MORE = (  # what EXAMPLES leave out: head_dim 256, f32 decode, no split, a group of more than 16
    BatchPagedPrefillDescriptor(batch_size=1, total_num_rows=900, num_qo_heads=26, causal=True, paged_kv=WIDE, kv_split=512),
    BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=40, paged_kv=WIDE, kv_split="off", return_lse=False),
    BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=10, paged_kv=PLAIN, window_left=5),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("descriptor", [*examples(), *MORE], ids=lambda d: d.op)
def test_every_template_compiles_without_spills(descriptor, arch):
    plan = Plan.select(descriptor, Preference(backend="cuda"), target=Target.parse(arch))
    plan.compile()
    library = jit.build(plan._candidate.jit_spec(plan.descriptor, plan.target))
    facts = json.loads((library.parent / "meta.json").read_text())
    resources = facts["resources"]
    assert resources
    for kernel in resources.values() if isinstance(resources, dict) else resources:
        assert not any(value for name, value in kernel.items() if "spill" in name), kernel
