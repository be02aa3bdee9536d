"""The backend of vLLM writes each row to the slot that the engine names, and nowhere else."""

from types import SimpleNamespace

import pytest
import torch

from opfacade import errors
from tests.integrations.paged_attention import i32
from tests.integrations.vllm_step import DIM, HEADS, KV_HEADS, PAGE, Step, built, run


def filled(step):
    """The content of the cache if the engine had written every row: [blocks, kv_heads, block, 2 * dim]."""
    want = step.kv.clone()
    for slot, k, v in zip(step.slots().tolist(), step.k_new, step.v_new, strict=False):
        want[slot // PAGE, :, slot % PAGE] = torch.cat([k, v], -1)
    return want


@pytest.mark.parametrize("physical", ["HND", "NHD"])
@pytest.mark.parametrize(("q_lens", "nowhere"), [((1, 1, 1), [1]), ((5, 1, 7), [0, 4, 5, 12]), ((5, 1, 7), range(13))])
def test_rows_whose_slot_is_minus_1_are_stored_nowhere(vllm, physical, q_lens, nowhere):
    """Drafts past max_model_len and rejected rows of parallel drafting."""
    step = Step(q_lens, (9, 12, 7), physical=physical)
    slots, want = step.slots(), filled(step)
    for row in nowhere:
        want[slots[row] // PAGE, :, slots[row] % PAGE] = float("nan")
    slots[list(nowhere)] = -1
    run(vllm, step, step.common(slot_mapping=slots))
    assert torch.equal(step.kv.nan_to_num(7.0), want.nan_to_num(7.0))


def test_a_draft_past_the_longest_length_leaves_the_first_token_alone(vllm):
    """Its length is 1, as vLLM clamps it."""
    step = Step((1, 1), (1, 12))
    before = step.kv.clone()
    run(vllm, step, step.common(slot_mapping=torch.full((2,), -1), seq_lens=i32(1, 12)))
    assert torch.equal(step.kv.nan_to_num(7.0), before.nan_to_num(7.0))


def test_rows_go_to_the_slots_of_the_engine_and_not_to_the_ends_of_requests(vllm):
    step = Step((3, 2), (9, 5))
    other = torch.tensor([46, 1, 17, 18, 3])
    run(vllm, step, step.common(slot_mapping=other))
    for slot, k, v in zip(other.tolist(), step.k_new, step.v_new, strict=True):
        assert torch.equal(step.kv[slot // PAGE, :, slot % PAGE], torch.cat([k, v], -1))


def test_slots_are_read_anew_in_each_pass_over_the_same_metadata(vllm):
    """A replayed graph uses the tensors of its capture, with new contents."""
    step, slots = Step((1, 1), (9, 12)), torch.tensor([3, 5])
    metadata, impl = built(vllm, step.common(slot_mapping=slots)), vllm.impl(HEADS, DIM, 0.25, KV_HEADS)
    for given in ([3, 5], [14, -1]):
        slots.copy_(torch.tensor(given))
        impl.forward(SimpleNamespace(), step.q, step.k_new, step.v_new, step.kv, metadata, torch.empty_like(step.q))
    written = ~step.kv.isnan().any(-1).any(1)
    past = {p[i // PAGE] * PAGE + i % PAGE for p, n in zip(step.pages, (8, 11), strict=True) for i in range(n)}
    assert set(written.flatten().nonzero()[:, 0].tolist()) == past | {3, 5, 14}


def test_the_layers_of_a_step_share_the_places(vllm):
    metadata = built(vllm, Step((1, 1), (9, 12)).common())
    first = metadata.places("a", PAGE)
    assert metadata.places("b", PAGE) is first
    assert metadata.places("a", PAGE) is not first


def test_level_full_finds_two_rows_with_one_slot_and_permits_two_in_one_page(vllm, monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")
    monkeypatch.setattr("opfacade.plan._selected", {})  # the level is read when a plan is created
    step = Step((5, 1, 7), (9, 12, 7))
    run(vllm, step, step.common())
    slots = step.slots()
    slots[9] = slots[7]
    with pytest.raises(errors.IndexDataError, match=r"slot_mapping\[9\].*row 7 also goes there"):
        run(vllm, step, step.common(slot_mapping=slots))


def test_a_layer_that_shares_another_ones_cache_writes_nothing(vllm):
    step = Step((1,), (9,))
    before = step.kv.clone()
    run(vllm, step, step.common(), kv_sharing_target_layer_name="model.layers.0")
    assert torch.equal(step.kv.nan_to_num(7.0), before.nan_to_num(7.0))


def test_pages_of_integers_are_refused_by_name():
    from opfacade.integrations.paged_layer import Pool

    pages = torch.zeros(3, 4, 2, 8, dtype=torch.int16)
    with pytest.raises(errors.OpfacadeError, match=r"^vllm\.attention: kv_cache expected f.*got torch\.int16.*OPF-I003"):
        _ = Pool("vllm", pages, pages, "NHD").descriptor
