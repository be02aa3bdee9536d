"""Products by mma.sync on a GPU: bounds, and the bits of wgmma tiles."""

import random
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.testing import inputs, numerics
from tests.families.matmul.held import forget
from tests.families.matmul.test_direct_kernel import FORMS, SHAPES, apart, by, fits
from tests.support.unaligned import one_element_on

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the bits of wgmma need sm_90a")
    yield
    forget()


def ran(problem, args, shape):
    with by(shape):
        plan, call = Plan.select(problem, Preference(backend="cuda")), replace(args, out=args.out.clone())
        assert plan.sku.impl == ("wgmma_tile" if shape is None else "mma_direct")
        before = numerics.snapshot(problem, call)
        plan.run(call)
    assert numerics.check(problem, call, plan.sku, before=before).worst <= 1
    return call.out


@pytest.mark.parametrize(("name", "shape"), [(name, one) for name in FORMS for one in SHAPES if fits(FORMS[name], one)])
def test_it_keeps_its_bound_on_a_gpu(name, shape):
    args = inputs.make_args(FORMS[name], 3, "cuda")
    assert torch.equal(ran(FORMS[name], args, SHAPES[shape]).nan_to_num(7.0), ran(FORMS[name], args, None).nan_to_num(7.0))


@pytest.mark.parametrize("seed", range(12))
def test_a_row_has_its_bits_among_any_rows_on_a_gpu(seed):
    """Random sizes, odd ones too, at any address; f32 hides no bit of a sum."""
    rng = random.Random(seed)
    n, k = round(8 * 500 ** rng.random()), round(1.5 * 8000 ** rng.random())
    n, k = (n % 512 + 1, k % 8000 + 2048) if seed % 3 == 0 else (n, k)  # segments
    problem = MatmulDescriptor(total_num_rows=300, n=n, k=k, dtype=("bf16", "f16")[seed % 2], out_dtype="f32")
    args = inputs.make_args(problem, seed, "cuda")
    whole = ran(problem, args, None)
    for name in [one for one in SHAPES if fits(problem, one)]:
        for rows in (1, 7, 16, 33, 300):
            first = rng.randrange(301 - rows)
            x, weight = args.x[first : first + rows], args.weight
            moved = rng.choice([lambda one: one, one_element_on, lambda one: apart(one, rng.choice([1, 2, 5, 8]))])
            few = replace(args, x=moved(x), weight=moved(weight), out=torch.empty_like(whole[:rows]))
            part = problem.model_copy(update={"total_num_rows": rows}).revalidated()
            assert torch.equal(ran(part, few, SHAPES[name]), whole[first : first + rows]), (name, rows)
