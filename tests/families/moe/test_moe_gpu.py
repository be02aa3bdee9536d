"""GPU tests of the ops and layers of mixtures of experts."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import OpfacadeError
from opfacade.plan import forget_selections
from opfacade.plans.moe import EXAMPLES, FusedMoeDescriptor, MoeSortDescriptor, RouteDescriptor, Router
from opfacade.testing import inputs, numerics
from opfacade.testing.bits import same_bits

pytestmark = pytest.mark.gpu
OWN = [d for d in EXAMPLES if d.op != "fused_moe" and not getattr(d, "loads", False)]
LARGE = [
    RouteDescriptor(total_num_rows=8192, experts=256, top_k=8, dtype="f32", renormalise=True),
    MoeSortDescriptor(total_num_rows=8192, top_k=8, experts=256),
    MoeSortDescriptor(total_num_rows=8191, top_k=3, experts=1024, first_expert=256, num_local=512),
]


@pytest.mark.parametrize("descriptor", [*OWN, *LARGE], ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    written = [name for name, spec in descriptor.operands().items() if spec.written]
    for name in written:
        getattr(args, name).fill_(7)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=64).worst <= 1
    first = {name: getattr(args, name).clone() for name in written}
    for _ in range(50):
        for name in written:
            getattr(args, name).fill_(7)
        plan.run(args)
        assert all(same_bits(getattr(args, name), first[name]) for name in written)


LAYERS = [d for d in EXAMPLES if d.op == "fused_moe"]
CHOSEN = ("chosen_ids", "chosen_weights")


@pytest.mark.parametrize("descriptor", LAYERS, ids=lambda d: d.digest()[:6])
def test_the_reference_layer_keeps_its_bound_on_a_gpu(descriptor):
    plan = Plan.select(descriptor, Preference(backend="reference"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst <= 1


@pytest.fixture
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")


LARGE_LAYERS = [
    FusedMoeDescriptor(
        total_num_rows=300, experts=64, top_k=8, hidden=512, width=256, dtype="bf16", shared_width=256,
        router=Router(dtype="f32", renormalise=True),
    ),
    FusedMoeDescriptor(
        total_num_rows=1000, experts=32, top_k=4, hidden=360, width=360, dtype="bf16", halves="interleaved", limit=7.0,
        alpha=1.702, beta=1.0, weight_layout="kn", bias=True, router=Router(dtype="bf16", score="softmax_chosen", bias=True),
    ),
]  # fmt: skip
WITH_KERNELS = [*(d for d in LAYERS if d.dtype != "f32"), *LARGE_LAYERS]


@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("descriptor", WITH_KERNELS, ids=lambda d: d.digest()[:6])
def test_a_layer_of_kernels_keeps_its_bound_and_repeats_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, rows=32).worst <= 1
    first = args.out.clone()
    for byte in (0, 0xFF) * 10:
        args.out.fill_(7)
        plan.run(args, torch.full((plan.workspace_size,), byte, dtype=torch.uint8, device="cuda"))
        assert same_bits(args.out, first)


@pytest.mark.usefixtures("_hopper")
def test_a_captured_layer_replays_with_another_routing():
    """The host does not read the counts: each replay gives the bits of a run with its logits."""
    descriptor = LARGE_LAYERS[0]
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=2, device="cuda")
    workspace = torch.zeros(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, workspace)
    skewed = torch.full_like(args.logits, -20.0)
    skewed[:, :8] = torch.rand(skewed.shape[0], 8, device="cuda")
    for logits in (torch.randn_like(args.logits), skewed, torch.randn_like(args.logits)):
        args.logits.copy_(logits)
        args.out.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        replayed = args.out.clone()
        args.out.fill_(7)
        plan.run(args)
        assert same_bits(args.out, replayed)


@pytest.mark.usefixtures("_hopper")
def test_a_layer_with_validation_off_refuses_operands_that_no_binding_accepts(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "off")
    forget_selections()
    try:
        descriptor = LAYERS[0]
        plan, args = Plan.select(descriptor, Preference(backend="cuda")), inputs.make_args(descriptor, 3, device="cuda")
        plan.run(args)
        assert numerics.check(descriptor, args, plan.sku).worst <= 1
        with pytest.raises(OpfacadeError):
            plan.run(replace(args, x=args.x[:, 1:]))
    finally:
        forget_selections()


@pytest.mark.usefixtures("_hopper")
def test_a_layer_with_more_than_2_31_elements_keeps_its_bound():
    """Rows of choices together exceed 2^31 elements; results of the last tokens come after them in the workspace."""
    sizes = {"total_num_rows": 75_100, "experts": 8, "top_k": 4, "hidden": 7168, "width": 128}
    descriptor = FusedMoeDescriptor(**sizes, dtype="bf16", router=Router(dtype="f32", renormalise=True))
    assert descriptor.total_num_rows * descriptor.top_k * descriptor.hidden > 2**31
    plan, made = Plan.select(descriptor, Preference(backend="cuda")), torch.Generator("cuda").manual_seed(1)
    args = inputs.make_args(descriptor.model_copy(update={"total_num_rows": 8}).revalidated(), seed=1, device="cuda")
    for weight in (args.up, args.down):
        weight.copy_(torch.randn(weight.shape, generator=made, device="cuda") * 0.05)
    rows = {"x": torch.bfloat16, "logits": torch.float32}
    drawn = {
        name: torch.randn(75_100, getattr(args, name).shape[1], generator=made, device="cuda", dtype=dtype)
        for name, dtype in rows.items()
    }
    chosen = {name: torch.zeros(75_100, 4, dtype=getattr(args, name).dtype, device="cuda") for name in CHOSEN}
    args = replace(args, **drawn, **chosen, out=torch.full_like(drawn["x"], float("nan")))
    plan.run(args)
    assert bool(args.out.isfinite().all())
    assert numerics.check(descriptor, args, plan.sku, rows=64).worst <= 1
    last = list(range(75_100 - 3, 75_100))
    few = descriptor.model_copy(update={"total_num_rows": 3}).revalidated()
    cut = {name: getattr(args, name)[last].contiguous() for name in (*rows, *CHOSEN)}
    assert numerics.check(few, replace(args, **cut, out=args.out[last]), plan.sku).worst <= 1
