"""Ops of torch on CUDA kernels: the bits of `run`, torch's own checks, and a compiled function."""

import gc

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.core.operands import nbytes
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.select.registry import examples
from opfacade.testing import inputs
from tests.torch_ops.test_ops import form_of, made_of, op, results, without_nan

pytestmark = pytest.mark.gpu
CUDA = Preference(backend="cuda")
HALF = [e for e in examples() if nbytes(list(e.operands().values())) < 2**26 and not getattr(e, "in_place", False)]


def served(descriptor, seed=1):
    from opfacade import Target, explain

    if explain(descriptor, CUDA, Target.current()).chosen is None:
        pytest.skip("no CUDA kernel")
    plan, args = Plan.select(descriptor, CUDA), inputs.make_args(descriptor, seed, "cuda")
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda") if plan.workspace_size else None
    return plan, args, workspace


@pytest.mark.parametrize("descriptor", HALF, ids=lambda e: f"{e.op}-{e.digest()[:6]}")
def test_both_forms_give_the_bits_of_run(descriptor):
    plan, args, workspace = served(descriptor)
    _, wanted, _ = served(descriptor)
    order = [workspace if n == "workspace" else getattr(args, n) for n in form_of(descriptor).order]
    plan.run(wanted, workspace)
    op(descriptor.op)(plan.handle, *order)
    for n, t in results(descriptor, wanted).items():
        assert torch.equal(getattr(args, n).view(torch.uint8), t.view(torch.uint8)), n


DECODE = BatchPagedDecodeDescriptor(
    batch_size=3,
    num_qo_heads=8,
    paged_kv=PagedKvCacheDescriptor(num_total_pages=40, page_size=16, num_kv_heads=2, head_dim=64, dtype="bf16", layout="HND"),
    kv_split="off",
)


def test_torch_checks_pass_on_a_gpu():
    plan, args, _ = served(DECODE)
    for name, spec in DECODE.operands().items():
        if spec.role != "index" and getattr(args, name) is not None:
            getattr(args, name).copy_(without_nan(getattr(args, name)))
    order = [None if n == "workspace" else getattr(args, n) for n in form_of(DECODE).order]
    torch.library.opcheck(op("paged_decode"), [plan.handle, *order])
    torch.library.opcheck(op("paged_decode_functional"), [plan.handle, *made_of(DECODE, args)])
    gc.collect()


def test_inductor_compiles_a_step_around_the_op():
    plan, args, _ = served(DECODE)
    plan.run(args)
    wanted = args.o.clone()
    given = made_of(DECODE, args)

    def step(handle, *values):
        return op("paged_decode_functional")(handle, *values)[0] * 2 + 1

    found = torch.compile(step, fullgraph=True, backend="inductor")(plan.handle, *given)
    assert torch.equal(found, wanted * 2 + 1)
