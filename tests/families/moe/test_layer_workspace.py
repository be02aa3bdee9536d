"""The workspace of a layer: the offsets of the intermediate tensors, and the independence of its previous content."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.core.descriptor import operands_of
from opfacade.plans._composites.steps import Last, fitted, places
from opfacade.plans.moe import FusedMoeDescriptor
from opfacade.serving.workspace import Workspace
from tests.families.moe.layers import LAYERS, SIZES, by_hand, drawn


def test_results_do_not_depend_on_the_previous_content_of_the_workspace():
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
def test_intermediate_tensors_with_overlapping_lifetimes_do_not_overlap(d):
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
def test_a_tensor_is_placed_beside_all_tensors_with_overlapping_lifetimes(sizes, pairs, want):
    """A short tensor may be placed within the memory of a long one if their lifetimes do not overlap."""
    others = [[b if a == at else a for a, b in pairs if at in (a, b)] for at in range(len(sizes))]
    assert fitted(sizes, others)[0][-1] == want


def test_the_workspace_has_the_size_of_the_largest_set_of_live_tensors():
    """DeepSeek-V3 at 8192 rows needs gates and ups together with their successors; the results reuse the memory of gates and
    ups."""
    d = FusedMoeDescriptor(total_num_rows=8192, experts=256, top_k=8, hidden=7168, width=2048, dtype="bf16")
    choices = 8192 * 8
    small = 4 * (257 + choices)
    assert 0 <= Plan.select(d, target=Target.cpu()).workspace_size - 2 * choices * (7168 + 2048) - small <= 4 * choices + 1024


def test_a_shared_workspace_is_large_enough_for_a_layer_on_a_cpu():
    """The size of the workspace includes padding for an allocation of any alignment."""
    d = FusedMoeDescriptor(**SIZES)
    for _ in range(5):
        args, plan, workspace = drawn(d), Plan.select(d), Workspace("cpu")
        plan.run(args, workspace.of(plan))
        torch.testing.assert_close(args.out.double(), by_hand(d, args), rtol=2e-6, atol=2e-6)
