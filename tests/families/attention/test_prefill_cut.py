"""Prefill that splits row tiles by the lengths on the device: which batches it applies to, which alternatives selection offers,
and the results on a GPU."""

from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.attention import prefill_pieces as attention_prefill_pieces
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs, numerics
from opfacade.testing.families.attention.requests import bits

TARGET = Target("sm_90a", 132, 232448)
LONG = 240_000


def _as_built_here():
    """Selection assumes an installed assembler that builds every kernel."""
    return patch("opfacade.backends.cuda.ptxas.release", return_value=(13, 5))


@pytest.fixture(autouse=True)
def _any_assembler():
    with _as_built_here():
        yield


def paged(q, kv, dtype="bf16", dim=128, **more):
    pages = sum(-(-n // 16) for n in kv)
    cache = PagedKvCacheDescriptor(num_total_pages=pages, page_size=16, num_kv_heads=8, head_dim=dim, dtype=dtype, layout="HND")
    facts = {"batch_size": len(q), "total_num_rows": sum(q), "num_qo_heads": 32, "causal": True, "paged_kv": cache}
    return BatchPagedPrefillDescriptor.model_validate(facts | more)


def split_of(descriptor, prefer=None):
    return dict(Plan.select(descriptor, prefer or Preference(), target=TARGET).sku.spec)["split"]


MIXED = paged([1, 512], [LONG, 512])
CHOICES = {
    "a long row beside a prompt": (MIXED, "pieces"),
    "8 of them": (paged([1] * 8 + [512], [LONG] * 8 + [512]), "pieces"),
    "64 of them": (paged([1] * 64 + [512], [LONG] * 64 + [512]), "pieces"),
    "a short prompt": (paged([1, 300], [LONG, 300]), "pieces"),
    "one among 64 short rows": (paged([1] * 65, [LONG] + [100] * 64), "pieces"),
    "one request": (paged([513], [LONG]), "off"),
    "a window": (paged([1, 512], [LONG, 512], window_left=1000), "off"),
    "no split": (paged([1, 512], [LONG, 512], kv_split="off"), "off"),
    "chunks": (paged([1, 512], [LONG, 512], kv_split=4096), "fixed"),
    "a bound on each": (paged([1, 512], [LONG, 512], max_kv_len=8192), "off"),
    "16x1024": (paged([1024] * 16, [1024] * 16), "off"),
    "2x8192 full": (paged([8192] * 2, [8192] * 2, causal=False), "off"),
    "64 decodes and a chunk": (paged([1] * 64 + [2048], [2000] * 64 + [7430]), "off"),
    "those, of requests that may be long": (paged([1] * 64 + [2048], [2000] * 64 + [7430], max_kv_len=131072), "pieces"),
    "few rows, alike": (paged([1] * 8, [4096] * 8), "auto"),
    "a batch of whole prompts": (paged([8192] * 2, [16384] * 2), "off"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_bounds_decide_whether_lengths_split_the_batch(name):
    descriptor, split = CHOICES[name]
    assert split_of(descriptor) == split


def test_a_ragged_batch_is_split_too():
    facts = {"batch_size": 2, "total_num_rows": 513, "total_kv_rows": LONG, "num_qo_heads": 32, "num_kv_heads": 8}
    descriptor = BatchRaggedPrefillDescriptor.model_validate(facts | {"head_dim": 128, "dtype": "bf16", "causal": True})
    assert split_of(descriptor) == "pieces"


@pytest.mark.parametrize(
    "prefer",
    [Preference(require={"batch_invariant": "composition"}), Preference(max_workspace_bytes=0)],
    ids=["invariant", "room"],
)
def test_an_unsplit_kernel_is_selected_if_the_split_one_lacks_the_required_guarantee(prefer):
    for descriptor in (MIXED, paged([1, 512], [LONG, 512], dtype="f8_e4m3")):
        plan, cut = Plan.select(descriptor, prefer, target=TARGET), Plan.select(descriptor, target=TARGET)
        assert (plan.sku.impl, dict(plan.sku.spec)["split"], plan.workspace_size) == (cut.sku.impl, "off", 0)
        assert dict(cut.sku.spec)["split"] == "pieces"


@pytest.mark.parametrize(("rows", "held"), [(3, 12), (513, 128)])
def test_the_workspace_holds_two_partials_per_cta(rows, held):
    descriptor = paged([1, rows - 1], [LONG, rows])
    assert attention_prefill_pieces.WGMMA.workspace(descriptor, TARGET) == 132 * (2 * 4 * held * 129 + 8 * 8)


BATCHES = {
    "every tile is cut": ([1] * 8, [4096] * 8, {}),
    "few rows": ([16] * 4, [8192] * 4, {}),
    "two tiles a head": ([1] * 2, [8192] * 2, {}),
    "mixed": ([1, 512], [100_000, 512], {}),
    "long and empty": ([1, 0, 5, 1, 300], [50_000, 900, 0, 1, 300], {}),
    "more than are ranked": ([1] * 300, [100] * 150 + [60_000] + [100] * 149, {}),
    "full": ([1, 200], [50_000, 200], {"causal": False}),
    "head_dim 64": ([1, 40], [50_000, 40], {"dim": 64}),
    "head_dim 256": ([1, 40], [50_000, 40], {"dim": 256}),
    "an fp8 cache": ([1, 40], [50_000, 40], {"dtype": "f8_e4m3", "q_dtype": "bf16"}),
    "products of fp8": ([1, 40], [50_000, 40], {"dtype": "f8_e4m3"}),
}


def ragged(q, kv, dtype="bf16", dim=128, **more):
    facts = {"batch_size": len(q), "total_num_rows": sum(q), "total_kv_rows": sum(kv), "num_qo_heads": 32, "num_kv_heads": 8}
    return BatchRaggedPrefillDescriptor.model_validate(facts | {"head_dim": dim, "dtype": dtype, "causal": True} | more)


def cut_plan(form, name, target=None):
    """The plan that splits a batch even if its bounds do not call for a split."""
    q, kv, more = BATCHES[name]
    with patch.object(attention_prefill_pieces, "may_cut", lambda *_: True):
        return Plan.select(form(q, kv, sm_scale=0.09, **more), target=target)


SUBJECTS = [(form, name) for form in (paged, ragged) for name in BATCHES if form is paged or name != "an fp8 cache"]


def subjects():
    """The (op, implementation) pairs of the test below."""
    with _as_built_here():
        plans = [cut_plan(form, name, TARGET) for form, name in SUBJECTS]
    assert {dict(plan.sku.spec)["split"] for plan in plans} == {"pieces"}
    return {(plan.descriptor.op, plan.sku.impl) for plan in plans}


@pytest.mark.gpu
@pytest.mark.parametrize(("form", "name"), SUBJECTS)
def test_split_row_tiles_repeat_bitwise_on_a_gpu(form, name):
    """The workspace has any content, and several launches follow each other."""
    q, kv, _ = BATCHES[name]
    plan = cut_plan(form, name)
    if plan.target.arch != "sm_90a":
        pytest.skip("tiles are cut on sm_90a")
    args = inputs.make_args(plan.descriptor, 1, "cuda", inputs.DrawnLengths(q=q, kv=kv))
    workspace, found = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda"), []
    for turn in range(30):
        args.o.fill_(float("nan"))
        if turn % 10 == 3:
            workspace.random_(0, 255)
        for _ in range(1 + turn % 3):
            plan.run(args, workspace)
        found.append(bits(args.o).clone())
    assert all(torch.equal(found[0], other) for other in found)
    assert numerics.check(plan.descriptor, args, plan.sku, rows=8).worst <= 1
