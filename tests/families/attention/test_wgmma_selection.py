"""The conditions under which selection chooses the prefill for sm_90a: the architecture, the group size and the assembler."""

import subprocess
from unittest.mock import patch

import pytest

from opfacade import Plan, Preference, Target, explain
from opfacade.backends.cuda import ptxas
from opfacade.backends.cuda.attention import prefill_sm90
from opfacade.backends.cuda.attention import prefill_sm90_fp8 as attention_prefill_fp8
from opfacade.plans.attention import BatchRaggedPrefillDescriptor
from tests import emulator

CUDA, SM_90A = Preference(backend="cuda"), Target.parse("sm_90a")
RELEASE = "opfacade.backends.cuda.ptxas.release"


def ragged(heads=8, kv_heads=2, head_dim=128, dtype="bf16", **fields):
    return BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=900, total_kv_rows=900, num_qo_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
        causal=True, dtype=dtype, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("release", "arch", "chosen"),
    [
        ((13, 3), "sm_90a", "wgmma_tile"),
        ((14, 0), "sm_90a", "wgmma_tile"),
        (None, "sm_90a", "wgmma_tile"),
        ((13, 0), "sm_90a", "mma_tile"),
        ((12, 9), "sm_90a", "mma_tile"),
        ((13, 5), "sm_90", "mma_tile"),
        ((13, 5), "sm_80", "mma_tile"),
    ],
)
def test_an_old_assembler_or_another_architecture_selects_the_older_kernel(release, arch, chosen):
    with patch(RELEASE, return_value=release):
        options = explain(ragged(), CUDA, Target.parse(arch))
    assert options.chosen.candidate.impl == chosen


def test_the_reason_to_decline_names_the_assembler_and_the_remedy():
    with patch(RELEASE, return_value=(13, 0)):
        text = str(explain(ragged(), CUDA, SM_90A))
    assert "ptxas=13.0 (allowed: 13.3 and later). Install a newer one" in text
    assert "OPF-S018" in text


def test_the_assembler_does_not_matter_if_jit_is_disabled(monkeypatch):
    monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")
    with patch(RELEASE, return_value=(13, 0)):
        assert list(ptxas.reasons()) == []


def test_a_group_wider_than_a_tile_is_declined():
    with patch(RELEASE, return_value=None):
        sku = Plan.select(ragged(heads=129, kv_heads=1), CUDA, SM_90A).sku
    assert sku.impl == "mma_tile"


def test_the_release_of_ptxas_is_read_from_its_binary(tmp_path):
    program = tmp_path / "ptxas"
    program.write_bytes(b"\0" * 100 + b"Cuda compilation tools, V13.4.7\n" + b"\0" * 9)
    assert ptxas._release_of(program) == (13, 4)
    program.write_bytes(b"nothing here")
    assert ptxas._release_of(program) is None


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_v_may_be_narrower_than_k_and_the_sku_states_its_width(dtype):
    with patch(RELEASE, return_value=None):
        sku = Plan.select(ragged(head_dim=192, head_dim_vo=128, dtype=dtype), CUDA, SM_90A).sku
        even = Plan.select(ragged(head_dim=128, head_dim_vo=128), CUDA, SM_90A).sku
        assert even == Plan.select(ragged(head_dim=128), CUDA, SM_90A).sku
    assert sku.impl == "wgmma_tile"
    assert dict(sku.spec) | {"head_dim": 192, "head_dim_vo": 128} == dict(sku.spec)


@pytest.mark.parametrize(
    ("fields", "impl", "field", "got", "allowed"),
    [
        ({"head_dim": 192, "head_dim_vo": 128}, "mma_tile", "head_dim", "192", "64, 128, 256"),
        ({"head_dim": 192, "head_dim_vo": 64}, "wgmma_tile", "head_dim_vo", "64", "128"),
        ({"head_dim": 192}, "wgmma_tile", "head_dim_vo", "192", "128"),
        ({"head_dim": 256, "head_dim_vo": 128}, "wgmma_tile", "head_dim_vo", "128", "256"),
        ({"head_dim": 128, "head_dim_vo": 64}, "mma_tile", "head_dim_vo", "64", "128"),
        ({"head_dim": 192, "head_dim_vo": 128, "dtype": "f8_e4m3", "q_dtype": "bf16"}, "wgmma_tile", "head_dim", "192",
         "64, 128, 256"),
        ({"head_dim": 80, "head_dim_vo": 64}, "wgmma_tile", "head_dim", "80", "64, 128, 192, 256"),
    ],
)  # fmt: skip
def test_other_head_dims_are_declined_with_field_and_allowed_values(fields, impl, field, got, allowed):
    with patch(RELEASE, return_value=None):
        options = {o.candidate.impl: o.reasons for o in explain(ragged(**fields), CUDA, SM_90A).options}
    assert ("OPF-S003", field, got, allowed) in [(r.code, r.field, r.got, r.allowed) for r in options[impl]]


TILES = [*((dim, None, dtype) for dim in (64, 128, 256) for dtype in ("bf16", "f8_e4m3")), (192, 128, "bf16")]
TILE = """
#include <cstdio>
#include "kernels/attention/prefill_sm90/params.h"
int main() { printf("%d", opfacade::WgmmaTile<HEAD_DIM, KV_BYTES, HEAD_DIM_VO>::kSharedBytes); }
"""


@emulator.needed
@pytest.mark.parametrize(("head_dim", "head_dim_vo", "dtype"), TILES)
def test_the_host_computes_the_shared_memory_that_the_kernel_requests(head_dim, head_dim_vo, dtype, tmp_path):
    text = TILE.replace("HEAD_DIM_VO", str(head_dim_vo or head_dim)).replace("HEAD_DIM", str(head_dim))
    (tmp_path / "tile.cc").write_text(text.replace("KV_BYTES", "2" if dtype == "bf16" else "1"))
    program = tmp_path / "tile"
    subprocess.run([emulator.compiler(), "-std=c++17", "-I", emulator.ROOT, "-o", program, tmp_path / "tile.cc"], check=True)
    asked = int(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    descriptor = ragged(head_dim=head_dim, head_dim_vo=head_dim_vo, dtype=dtype, q_dtype="bf16")
    assert asked == prefill_sm90.shared_memory(descriptor)


@emulator.needed
def test_the_host_computes_the_shared_memory_of_the_fp8_kernel(tmp_path):
    text = TILE.replace("WgmmaTile<HEAD_DIM, KV_BYTES, HEAD_DIM_VO>", "WgmmaFp8Tile<128>")
    (tmp_path / "tile.cc").write_text(text)
    program = tmp_path / "tile"
    subprocess.run([emulator.compiler(), "-std=c++17", "-I", emulator.ROOT, "-o", program, tmp_path / "tile.cc"], check=True)
    asked = int(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    assert asked == attention_prefill_fp8.SHARED_MEMORY <= SM_90A.max_shared_memory


def test_fp8_products_are_selected_for_an_fp8_query_and_need_a_new_assembler():
    descriptor = ragged(dtype="f8_e4m3", q_scale="tensor")
    with patch(RELEASE, return_value=(13, 3)):
        assert Plan.select(descriptor, CUDA, SM_90A).sku.impl == "wgmma_fp8_tile"
    with patch(RELEASE, return_value=(13, 0)):
        text = str(explain(descriptor, CUDA, SM_90A))
    assert "ptxas=13.0 (allowed: 13.3 and later)" in text


@pytest.mark.parametrize(("head_dim", "head_dim_vo", "dtype"), TILES)
def test_the_shared_memory_of_a_cta_fits_the_device(head_dim, head_dim_vo, dtype):
    descriptor = ragged(head_dim=head_dim, head_dim_vo=head_dim_vo, dtype=dtype, q_dtype="bf16")
    assert prefill_sm90.shared_memory(descriptor) <= SM_90A.max_shared_memory


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_soft_cap_with_an_fp8_cache_is_accepted_for_each_head_dim(head_dim):
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        descriptor = ragged(head_dim=head_dim, dtype="f8_e4m3", q_dtype="bf16", logits_soft_cap=30.0)
        assert Plan.select(descriptor, CUDA, SM_90A).sku.impl == "wgmma_tile"
