"""Products by mma.sync on a GPU: groups with codes, and kernels for GPUs before sm_90, selected here by force."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.backends.cuda import matmul
from opfacade.backends.cuda.matmul import (
    coded_mma as matmul_coded_mma,
)
from opfacade.backends.cuda.matmul import (
    grouped as matmul_grouped,
)
from opfacade.backends.cuda.matmul import (
    grouped_mma as matmul_grouped_mma,
)
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.testing import inputs, numerics
from tests.families.matmul import test_copied_bytes, test_copied_codes, test_copied_groups
from tests.families.matmul.test_copied_groups import WEIGHTS, made
from tests.families.matmul.test_grouped_kernel import drawn

pytestmark = pytest.mark.gpu
HERE = (*matmul_coded_mma.ARCHS, "sm_90a")


@contextmanager
def forced():
    """Kernels of wgmma decline, and kernels for other GPUs accept."""
    forget_specializations(), forget_selections()
    with (
        patch.object(matmul_grouped, "ARCH", "none"),
        patch.object(matmul, "ARCH", "none"),
        patch.object(matmul.matmul_coded, "ARCH", "none"),
        patch.object(matmul.matmul_coded_groups, "ARCH", "none"),
        patch.object(matmul.matmul_decoded_groups, "ARCH", "none"),
        patch.object(matmul_coded_mma, "ARCHS", HERE),
        patch.object(matmul_grouped_mma, "BEFORE", HERE),
    ):
        yield
    forget_specializations(), forget_selections()


@pytest.fixture(autouse=True)
def _before_hopper():
    with forced():
        yield


def on_gpu(args):
    return type(args)(
        **{name: None if (value := getattr(args, name)) is None else value.cuda() for name in type(args).__slots__}
    )


def ran(problem, args, impl):
    plan, before = Plan.select(problem, Preference(backend="cuda")), numerics.snapshot(problem, args)
    assert plan.sku.impl == impl
    plan.run(args)
    torch.cuda.synchronize()
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1
    return args.out


def impl_of(problem):
    return "mma_groups" if problem.weight_format is None else "mma_grouped_codes"


@pytest.mark.parametrize("name", test_copied_groups.FORMS)
def test_groups_keep_their_bound_on_a_gpu(name):
    problem = test_copied_groups.FORMS[name]
    ran(problem, on_gpu(drawn(problem)), impl_of(problem))


@pytest.mark.parametrize("name", test_copied_bytes.FORMS)
def test_products_of_bytes_keep_their_bound_on_a_gpu(name):
    problem = test_copied_bytes.FORMS[name]
    ran(problem, inputs.make_args(problem, 3, "cuda"), "mma_byte_codes")


@pytest.mark.parametrize("name", test_copied_codes.FORMS)
def test_products_of_codes_keep_their_bound_on_a_gpu(name):
    problem = test_copied_codes.FORMS[name]
    ran(problem, inputs.make_args(problem, 3, "cuda"), "mma_codes")


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("n", "k"), [(2880, 2880), (1000, 520)])
def test_a_row_has_its_bits_in_any_group_on_a_gpu(n, k, name):
    """Rows of one group, alone and in tiles of other heights, have the bits that they have among nine groups."""
    problem = made(WEIGHTS[name], groups=9, rows=700, n=n, k=k, out_dtype="f32")
    args = inputs.make_args(problem, 5, "cuda")
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    args = replace(args, indptr=torch.tensor([3, 4, 4, 68, 133, 133, 300, 301, 500, 690], dtype=torch.int32, device="cuda"))
    whole = ran(problem, args, impl_of(problem))
    for first, stop in ((3, 4), (60, 68), (68, 84), (133, 163)):
        group = int((args.indptr <= first).sum()) - 1
        one = made(WEIGHTS[name], groups=9, rows=stop - first, n=n, k=k, out_dtype="f32")
        indptr = torch.zeros(10, dtype=torch.int32, device="cuda")
        indptr[group + 1 :] = stop - first
        part = replace(args, x=args.x[first:stop], indptr=indptr, out=torch.empty_like(whole[first:stop]))
        assert torch.equal(ran(one, part, impl_of(one)), whole[first:stop])


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_graph_replays_with_other_counts_on_a_gpu(name):
    problem = made(WEIGHTS[name], groups=16, rows=256, n=320, k=640)
    args = inputs.make_args(problem, 5, "cuda")
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    plan = Plan.select(problem, Preference(backend="cuda"))
    plan.run(args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    for seed in range(3):
        cuts = torch.randint(0, 257, (17,), generator=torch.Generator().manual_seed(seed)).sort().values.int()
        args.indptr.copy_(cuts), args.out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        fresh = replace(args, out=torch.zeros_like(args.out))
        plan.run(fresh)
        torch.cuda.synchronize()
        assert torch.equal(args.out, fresh.out)
        assert numerics.check(problem, args, plan.sku).worst <= 1
