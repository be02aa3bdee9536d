"""Which kernel would run on any GPU, and why the others do not, without one."""

from opfacade import Preference, Target, explain
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor

cache = PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=2, head_dim=80, dtype="bf16", layout="NHD")
desc = BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=8, paged_kv=cache, page_table="block")
found = explain(desc, Preference(backend="cuda"), Target.parse("sm_90a"))
assert found.chosen is None
reasons = {option.name: [reason.code for reason in option.reasons] for option in found.options}
assert "OPF-S003" in reasons["cuda/split_kv"]  # head_dim=80
print(found)
