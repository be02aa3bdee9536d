"""One workspace serves all plans: it is as large as the largest requirement, is not reallocated without a request, and its
refusals are typed.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Target, Workspace
from opfacade.errors import ArgumentTypeError, DeviceMismatchError, PlanStateError, WorkspaceError
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.serving import workspace as module

SM_90A, CPU = Target.parse("sm_90a"), Target.cpu()
CACHE = PagedKvCacheDescriptor(num_total_pages=512, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")


def plan_of(batch, target=SM_90A, **fields):
    return Plan.select(BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=32, paged_kv=CACHE, **fields), target=target)


@pytest.fixture
def fake_cuda():
    """GPU tensors without memory: a workspace depends only on their sizes and devices."""
    with FakeTensorMode():
        yield


SMALL, LARGE = (plan_of(16, kv_split=chunk) for chunk in (4096, 128))
NONE = plan_of(16, kv_split="off")


def test_the_plans_differ_in_what_they_need():
    assert NONE.workspace_size == 0 < SMALL.workspace_size < LARGE.workspace_size


def test_it_grows_to_the_largest_plan_and_stays(fake_cuda):
    workspace = Workspace("cuda")
    assert workspace.of(NONE) is None
    assert workspace.size == 0
    first = workspace.of(SMALL)
    assert (first.shape, first.dtype, first.device.type) == ((SMALL.workspace_size,), torch.uint8, "cuda")
    second = workspace.of(LARGE)
    assert second.shape == (LARGE.workspace_size,)
    assert workspace.of(SMALL) is second
    assert workspace.of(LARGE) is second
    assert workspace.of(NONE) is None
    assert repr(workspace) == f"Workspace('cuda', {LARGE.workspace_size} bytes)"


def test_memory_that_is_given_up_waits_for_the_current_stream(monkeypatch):
    recorded = []

    class Tensor:
        is_cuda, device = True, torch.device("cuda", 0)

        def record_stream(self, stream):
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(module, "capturing", lambda device: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    monkeypatch.setattr(torch, "empty", lambda *sizes, **how: Tensor())
    workspace = Workspace("cuda")
    workspace.reserve(SMALL)
    assert recorded == []
    workspace.reserve(SMALL, LARGE)
    assert recorded == [("stream of", torch.device("cuda", 0))]


def test_reserving_for_several_allocates_once(fake_cuda):
    workspace = Workspace("cuda")
    workspace.reserve(NONE, LARGE, SMALL)
    assert workspace.size == LARGE.workspace_size
    kept = workspace.of(LARGE)
    workspace.reserve(SMALL)
    workspace.reserve()
    assert workspace.of(SMALL) is kept


def test_a_run_takes_what_it_gives(fake_cuda):
    workspace = Workspace("cuda")
    workspace.reserve(LARGE)
    d = SMALL.descriptor
    given = {
        n: torch.empty([x.size or 9 for x in s.shape], dtype=module_dtype(s), device="cuda") for n, s in d.operands().items()
    }
    assert SMALL.can_implement(d.args_type(**given), workspace.of(SMALL))
    assert not SMALL.can_implement(
        d.args_type(**given), torch.empty(SMALL.workspace_size - 1, dtype=torch.uint8, device="cuda")
    )


def module_dtype(spec):
    from opfacade.core.dtypes import torch_dtype

    return torch_dtype(spec.dtype)


def test_frozen_it_refuses_more_and_serves_the_rest(fake_cuda):
    workspace = Workspace("cuda")
    workspace.reserve(SMALL)
    kept = workspace.of(SMALL)
    workspace.freeze()
    with pytest.raises(
        WorkspaceError, match=rf"at least {LARGE.workspace_size} bytes, got {SMALL.workspace_size}, frozen.*W003"
    ) as e:
        workspace.of(LARGE)
    assert (e.value.needed, e.value.got, e.value.code) == (LARGE.workspace_size, SMALL.workspace_size, "OPF-W003")
    assert workspace.of(SMALL) is kept
    assert workspace.of(NONE) is None


def test_it_does_not_grow_while_a_graph_is_captured(fake_cuda, monkeypatch):
    workspace = Workspace("cuda")
    workspace.reserve(SMALL)
    monkeypatch.setattr(module, "capturing", lambda device: True)
    assert workspace.of(SMALL) is not None
    with pytest.raises(PlanStateError, match=r"Reserve for all plans before the first capture\. \[OPF-R021\]"):
        workspace.of(LARGE)
    assert workspace.size == SMALL.workspace_size


def test_a_plan_of_a_gpu_is_refused_on_the_cpu_and_what_is_no_plan_everywhere():
    workspace = Workspace("cpu")
    with pytest.raises(DeviceMismatchError, match=r"device expected that of .*, cuda, got cpu\..*OPF-W002"):
        workspace.reserve(SMALL)
    with pytest.raises(ArgumentTypeError, match="plan expected a Plan, got BatchPagedDecodeDescriptor"):
        workspace.of(SMALL.descriptor)
    assert workspace.of(NONE) is None
    assert workspace.of(plan_of(16, CPU)) is None
    assert workspace.size == 0


@pytest.mark.gpu
def test_layers_that_share_it_have_the_bits_of_their_own():
    from opfacade.testing import inputs

    plans = [Plan.select(p.descriptor) for p in (SMALL, LARGE, NONE)]
    workspace = Workspace()
    workspace.reserve(*plans)
    workspace.of(plans[0]).fill_(255)
    for seed in range(3):
        for plan in plans:
            shared, own = (inputs.make_args(plan.descriptor, seed, "cuda") for _ in range(2))
            plan.run(shared, workspace.of(plan))
            plan.run(own)
            assert torch.equal(shared.o, own.o)
            assert torch.equal(shared.lse, own.lse)


@pytest.mark.parametrize("device", ["x", 1.5, [0]])
def test_a_device_that_torch_does_not_know_is_refused(device):
    with pytest.raises(ArgumentTypeError, match=r"Workspace: device expected a device of torch or its name.*OPF-W006") as e:
        Workspace(device)
    assert e.value.code == "OPF-W006"
