"""The workspace of a layer: offsets of the tensors between its steps, and that its previous content has no effect."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.plans._composites.steps import Last, fitted, places
from opfacade.plans.moe import FusedMoeDescriptor
from opfacade.serving.workspace import Workspace
from tests.families.moe.layers import LAYERS, SIZES, by_hand, drawn


def test_what_stood_in_the_workspace_has_no_effect_and_ids_of_no_expert_have_no_part():
    d = FusedMoeDescriptor(**SIZES, weights_at="input", shared_width=3)
    args, plan = drawn(d), Plan.select(d)
    args.ids[2] = -1
    args.ids[3, 1] = -1
    results = []
    for byte in (0, 0xFF):
        room = torch.full((plan.workspace_size + 256,), byte, dtype=torch.uint8)
        begin = -room.data_ptr() % 256
        plan.run(args, room[begin : begin + plan.workspace_size])
        results.append(args.out.clone())
    assert torch.equal(*results)
    torch.testing.assert_close(results[0].double(), by_hand(d, args), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("d", LAYERS, ids=lambda d: d.digest()[:6])
def test_tensors_that_are_needed_together_do_not_overlap(d):
    steps = d.steps()
    found, total = places(operands_of(d), steps)
    spans = {}
    for name, place in found.items():
        count = math.prod(dim.size for dim in place.spec.shape)
        spans[name] = (place.offset, place.offset + count * {"i32": 4, "f32": 4, "f8_e4m3": 1}.get(place.spec.dtype, 2))
        assert place.offset % 256 == 0
        assert spans[name][1] <= total <= Plan.select(d).workspace_size

    def named(step):
        return {one.name if isinstance(one, Last) else one for one in step.tensors.values()} & set(found)

    uses = {name: [i for i, step in enumerate(steps) if name in named(step)] for name in found}
    for a in found:
        for b in found:
            together = max(uses[a][0], uses[b][0]) <= min(uses[a][-1], uses[b][-1])
            assert a == b or not together or spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0], (a, b)


@pytest.mark.parametrize(
    ("sizes", "pairs", "want"),
    [
        ((1000, 256, 256, 100), ((1, 2), (0, 3), (2, 3)), 1000),
        ((150, 140, 100), ((0, 1), (1, 2)), 0),
        ((200, 150, 110, 90), ((0, 1), (1, 3), (2, 3)), 110),
    ],
)
def test_the_last_tensor_lies_beside_all_that_are_needed_together_with_it(sizes, pairs, want):
    """A short one may lie within the span of a long one, when they are not needed at the same time."""
    others = [[b if a == at else a for a, b in pairs if at in (a, b)] for at in range(len(sizes))]
    assert fitted(sizes, others)[0][-1] == want


def test_the_workspace_of_a_layer_is_what_its_steps_need_at_once():
    """DeepSeek-V3 at 8192 rows: gates and ups with their successors; results reuse the memory of gates and ups."""
    d = FusedMoeDescriptor(total_num_rows=8192, experts=256, top_k=8, hidden=7168, width=2048, dtype="bf16")
    choices = 8192 * 8
    small = 4 * (257 + choices)
    assert 0 <= Plan.select(d, target=Target.cpu()).workspace_size - 2 * choices * (7168 + 2048) - small <= 4 * choices + 1024


def test_a_shared_workspace_serves_a_layer_on_a_cpu():
    """Its size allows an allocation at any alignment."""
    d = FusedMoeDescriptor(**SIZES)
    for _ in range(5):
        args, plan, workspace = drawn(d), Plan.select(d), Workspace("cpu")
        plan.run(args, workspace.of(plan))
        torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)
