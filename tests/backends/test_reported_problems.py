"""Problems that users reported because of a spill compile: one per engine, with the installed ptxas.

`python -m bench.random_builds` draws thousands of similar problems.
"""

import time

import pytest

from bench.device_builds import DeviceBuilds
from opfacade import Plan, Preference, Target
from opfacade.core.descriptor import Descriptor
from opfacade.jit import toolchain
from opfacade.plans._quantize.quant import Quant
from opfacade.plans.attention import PagedKvCacheDescriptor
from opfacade.plans.norm import NormDescriptor
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.rotary import QkvPrepareDescriptor, RotaryDescriptor
from opfacade.plans.softmax import SoftmaxDescriptor

POOL = PagedKvCacheDescriptor(num_total_pages=9, page_size=16, num_kv_heads=2, head_dim=128, dtype="bf16", layout="HND")
QKV = {"total_num_rows": 5, "num_qo_heads": 8, "paged_kv": POOL, "dtype": "bf16"}
REPORTED: dict[str, Descriptor] = {
    "layer norm in groups": NormDescriptor(
        kind="layer", total_num_rows=17, hidden=10240, groups=2, dtype="bf16", bias=True
    ),
    "layer norm, rounded sum": NormDescriptor(
        kind="layer", total_num_rows=9, hidden=18432, dtype="bf16", eps=1e-12, residual=True, residual_sum="rounded"
    ),
    "rms norm with bias": NormDescriptor(kind="rms", total_num_rows=9, hidden=20000, dtype="bf16", bias=True),
    "qkv, sections": QkvPrepareDescriptor(**QKV, rotary_dim=60, sections=(1, 5, 13, 11), section_order="interleaved"),
    "qkv, 94 rotated": QkvPrepareDescriptor(**QKV, rotary_dim=94),
    "rotary of 192": RotaryDescriptor(
        total_num_rows=5, num_qo_heads=8, num_kv_heads=2, head_dim=192, rotary_dim=192, sections=(80, 7, 5, 4),
        section_order="interleaved", dtype="bf16",
    ),
    "softmax over the first of three axes": SoftmaxDescriptor(shape=(4097, 2, 5), axis=-3, dtype="f32"),
    "softmax over rows": SoftmaxDescriptor(shape=(2488, 3), axis=0, dtype="f32"),
    "logarithms at a temperature": SoftmaxDescriptor(shape=(2, 5, 4500, 2), axis=2, dtype="f32", log=True, temperature=0.7),
    "blocks of i8": QuantizeDescriptor(total_num_rows=200, hidden=127, dtype="f32", quant=Quant(dtype="i8", scale="block")),
}  # fmt: skip


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    return DeviceBuilds(toolchain.find(tmp_path_factory.mktemp("memo") / "toolchain.json"))


@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_problem_compiles(builds, name):
    spec = Plan.select(REPORTED[name], Preference(backend="cuda"), Target.parse("sm_90a")).jit_spec
    assert builds.build(spec, time.monotonic() + 600).failure == ""


def test_a_problem_that_spills_is_compiled_and_kept(builds, monkeypatch, tmp_path):
    """All steps of a build, as for a user: no strict mode."""
    monkeypatch.delenv("OPFACADE_JIT_STRICT")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    plan = Plan.select(REPORTED["softmax over rows"], Preference(backend="cuda"), Target.parse("sm_90a"))
    plan.compile()
    assert plan.cache_state == "shared"
