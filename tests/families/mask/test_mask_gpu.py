"""GPU tests of pack_mask."""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.mask import EXAMPLES, pack_mask
from opfacade.testing import inputs, numerics

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: f"{d.segments}-{d.bit_order}")
def test_runs_repeat_bitwise(descriptor):
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=1, device="cuda")
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku).worst == 0
    first = args.packed.clone(), args.packed_indptr.clone()
    for _ in range(50):
        args.packed.fill_(7), args.packed_indptr.fill_(7)
        plan.run(args)
        assert torch.equal(args.packed, first[0])
        assert torch.equal(args.packed_indptr, first[1])


def test_pack_mask_launches_one_kernel():
    mask = torch.rand(4, 100, 300, device="cuda") < 0.5
    pack_mask(mask)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        packed, _ = pack_mask(mask)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert [event.name for event in kernels] == ["pack_mask"]
    assert torch.equal(packed.cpu(), pack_mask(mask.cpu())[0])
