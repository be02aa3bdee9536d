"""The selection of the CUDA kernel of latent attention: its conditions, the reasons with which it declines, and the formulas of
its grid and workspace."""

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from opfacade import Plan, Preference, Target, explain
from opfacade.backends.cuda import mla
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing.families.attention.requests import changed

ROOT = Path(__file__).parents[3]
CUDA, SM_90A = Preference(backend="cuda"), Target.parse("sm_90a")
CACHE = {"num_total_pages": 100, "page_size": 16, "dtype": "bf16"}


def latent(heads=128, batch=4, cache=(), **more):
    pool = PagedLatentCacheDescriptor.model_validate(CACHE | dict(cache))
    return BatchMlaDecodeDescriptor(batch_size=batch, num_qo_heads=heads, paged_kv=pool, sm_scale=0.1, **more)


def reasons(descriptor, target=SM_90A):
    [option] = [o for o in explain(descriptor, target=target).options if o.candidate.impl == "latent_tiles"]
    return [(reason.code, reason.field, reason.got) for reason in option.reasons]


@pytest.mark.parametrize("heads", [1, 16, 24, 64, 65, 128])
@pytest.mark.parametrize("page_size", [1, 5, 8, 64])
def test_every_page_size_and_number_of_heads_is_supported(heads, page_size):
    options = {"sinks": True, "window_left": 9, "logits_soft_cap": 3.0, "page_table": "block", "kv_split": 100}
    for descriptor in (latent(heads, cache={"page_size": page_size}), latent(heads, **options)):
        assert Plan.select(descriptor, CUDA, SM_90A).sku.impl == "latent_tiles"


@pytest.mark.parametrize(
    ("descriptor", "reason"),
    [
        (latent(129), ("OPF-S005", "num_qo_heads", "129")),
        (latent(cache={"dtype": "f8_e4m3"}, q_dtype="bf16"), ("OPF-S002", "dtype of the KV cache", "f8_e4m3")),
        (latent(cache={"dtype": "f32"}), ("OPF-S002", "dtype of the KV cache", "f32")),
        (latent(q_dtype="f16"), ("OPF-S002", "q_dtype", "f16")),
        (latent(cache={"latent_dim": 256}), ("OPF-S003", "latent_dim", "256")),
        (latent(cache={"rope_dim": 32}), ("OPF-S003", "rope_dim", "32")),
    ],
    ids=lambda x: x[2] if isinstance(x, tuple) else "",
)
def test_the_reason_to_decline_names_the_unsupported_field(descriptor, reason):
    assert reason in reasons(descriptor)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a", "cpu"])
def test_another_architecture_is_declined(arch):
    assert ("OPF-S001", "target.arch", arch) in reasons(latent(), Target.parse(arch))


def test_any_assembler_can_build_the_kernel():
    """No wgmma takes an operand from registers, which old assemblers compile incorrectly."""
    with patch("opfacade.backends.cuda.ptxas.release", return_value=(13, 0)):
        assert reasons(latent()) == []
    for path in (ROOT / "kernels/mla").iterdir():
        assert "wgmma_registers" not in path.read_text().replace("wgmma_registers.cuh),", "")


@pytest.mark.parametrize(
    ("descriptor", "units", "slots"),
    [
        (latent(128, kv_split="off"), 4, 0),
        (latent(128, kv_split=100), 1600 // 100 + 4, 1600 // 100 + 4),
        (latent(16), 1600 // 64 + 4, 2 * (1600 // 64 + 4)),
        (latent(16, cache={"num_total_pages": 10_000}), 132, 264),
        (latent(65, cache={"num_total_pages": 10_000}), 66, 132),
    ],
    ids=["off", "fixed", "few-tiles", "device", "two-head-blocks"],
)
def test_grid_and_workspace_follow_their_formulas(descriptor, units, slots):
    assert mla.grid_of(descriptor, SM_90A) == (units, slots)
    heads = min(descriptor.num_qo_heads, 64) * -(-descriptor.num_qo_heads // 64)
    wanted = slots * heads * 513 * 4 + 20 * units if slots else 0
    assert Plan.select(descriptor, CUDA, SM_90A).workspace_size == wanted


@pytest.mark.parametrize(
    ("heads", "q_len", "blocks", "rows"), [(16, 4, 1, 64), (16, 3, 1, 48), (16, 5, 2, 128), (128, 2, 4, 256), (5, 13, 2, 128)]
)
def test_the_rows_of_a_request_fill_a_head_block(heads, q_len, blocks, rows):
    """A head block consists of heads times rows: four rows of 16 heads have the grid and the workspace of 64 heads."""
    descriptor = latent(heads, cache={"num_total_pages": 10_000}, q_len=q_len)
    units = 132 // blocks
    assert mla.head_blocks(descriptor) == blocks
    assert mla.grid_of(descriptor, SM_90A) == (units, 2 * units)
    assert Plan.select(descriptor, CUDA, SM_90A).workspace_size == 2 * units * rows * 513 * 4 + 20 * units


def test_the_sku_id_names_q_len_and_causal_only_for_several_rows():
    ids = {Plan.select(latent(16, **more), CUDA, SM_90A).sku.id for more in ({}, {"causal": False})}
    assert len(ids) == 1  # a single row attends to all keys in either case
    assert "q_len" not in next(iter(ids))
    several = [Plan.select(latent(16, q_len=3, causal=causal), CUDA, SM_90A).sku.id for causal in (True, False)]
    assert ["causal=true" in one and "q_len=3" in one for one in several] == [True, False]


def test_the_constants_of_the_header_agree_with_the_plan():
    text = (ROOT / "kernels/mla/params.h").read_text()
    named = {name: int(value) for name, value in re.findall(r"constexpr int (kMla\w+) = (\d+);", text)}
    assert (named["kMlaLatent"], named["kMlaRope"], named["kMlaRows"], named["kMlaKeys"]) == (512, 64, mla.ROWS, mla.TILE)
    tiles, panels = named["kMlaStages"] * named["kMlaKeys"] * 576 * 2, (9 - named["kMlaKept"] + 1) * named["kMlaRows"] * 128
    assert mla.shared_memory() == tiles + panels + named["kMlaControlBytes"] <= SM_90A.max_shared_memory
    assert text.partition("struct SplitRequest {")[2].partition("}")[0].count("int32_t") * 4 == 20


@pytest.mark.parametrize(("split", "scope"), [("off", "composition"), (64, "composition"), ("auto", "none")])
def test_the_guarantee_of_each_split(split, scope):
    promise = Plan.select(latent(kv_split=split), CUDA, SM_90A).precision_guarantee
    assert (promise.deterministic, promise.batch_invariant) == (True, scope)
    assert all(test.startswith(("tests/families/mla/", "tests/testing/test_determinism.py")) for test in promise.evidence)


def test_every_shape_of_the_benchmark_uses_the_kernel():
    from bench.mla import SHAPES

    assert {(128, 4096, 128), (1, 32768, 128), (64, 8192, 16)} <= {(s.batch, s.kv, s.heads) for s in SHAPES}
    for shape in SHAPES:
        assert Plan.select(shape.descriptor(), CUDA, SM_90A).sku.impl == "latent_tiles"


def test_batch_size_and_number_of_indices_are_not_in_the_sku():
    few, many = latent(16), changed(latent(16), batch_size=77, max_kv_indices=50)
    assert Plan.select(few, CUDA, SM_90A).sku == Plan.select(many, CUDA, SM_90A).sku
