"""The kernels that a fleet may run, frozen on a machine without a GPU; any other choice is refused."""

import tempfile
from pathlib import Path

from opfacade import Plan, Preference, SkuManifest, Target
from opfacade.errors import UnsupportedError
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor

H100 = Target.parse("sm_90a")


def decode(batch_size, kv_split):
    cache = PagedKvCacheDescriptor(num_total_pages=64, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="NHD")
    return BatchPagedDecodeDescriptor(
        batch_size=batch_size, num_qo_heads=8, paged_kv=cache, page_table="block", kv_split=kv_split
    )


manifest = SkuManifest.freeze([decode(n, "off") for n in (1, 8, 64)], Preference(backend="cuda"), H100)
with tempfile.TemporaryDirectory() as folder:
    manifest.save(Path(folder) / "fleet.json")  # OPFACADE_REQUIRE_SKU=fleet.json locks a whole process
Plan.select(decode(3, "off"), manifest.enforce(), H100)
code = ""
try:
    Plan.select(decode(3, 256), manifest.enforce(), H100)  # another split would be another SKU
except UnsupportedError as error:
    code = error.code
assert code == "OPF-S015"
