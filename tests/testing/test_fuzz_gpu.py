"""10,000 small random problems on a GPU over about thirty kernels; each result is checked against its SKU's bound."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import OpfacadeError
from opfacade.testing import inputs, numerics, problems
from tests.support.fuzzing import spoiled_args

pytestmark = [pytest.mark.gpu, pytest.mark.heavy, pytest.mark.timeout(580)]
CUDA = Preference(backend="cuda")
KERNELS, PROBLEMS = 30, 10_000


def base(i):
    """A problem whose kernel is shared by the others of its number: its split does not depend on the batch or its sizes."""
    rng = random.Random(f"kernel {i}")
    descriptor = problems.random_descriptor(problems.OPS[i % len(problems.OPS)], i, tokens=600)
    split = {"kv_split": rng.choice(("off", 64))} if hasattr(descriptor, "kv_split") else {}
    return varied(descriptor, rng, **split)


def varied(descriptor, rng, **more):
    """Another size of a problem for the same kernel."""
    fields = descriptor.model_dump(mode="json")
    sizes = {"batch_size": rng.randint(1, 6), "total_num_rows": rng.randint(1, 40), "total_kv_rows": rng.randint(0, 300)}
    fields |= {name: n for name, n in sizes.items() if name in fields} | more
    if "num_states" in fields:
        fields["num_states"] = rng.randint(1, 8 if fields.get("states") == "list" else 9)
        fields["num_heads"] = rng.randint(1, 6)
    if "paged_kv" in fields:
        cache = fields["paged_kv"]
        power = cache["page_size"] & (cache["page_size"] - 1) == 0
        fields["paged_kv"] = cache | {
            "page_size": rng.choice((1, 2, 16, 64) if power else (3, 5, 7, 100)),
            "num_total_pages": rng.randint(40, 60),
        }
        if "layout" in cache:
            fields["paged_kv"]["layout"] = rng.choice(("HND", "NHD"))
        if "total_num_rows" in fields:
            fields["total_num_rows"] = min(fields["total_num_rows"], 30)
    return type(descriptor).model_validate(fields)


def compiled(bases):
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda d: Plan.select(d, CUDA).compile(), bases))


def one(descriptor, seed, rng):
    plan = Plan.select(descriptor, CUDA)
    args = inputs.make_args(descriptor, seed=seed, device="cuda", interleaved=rng.random() < 0.2)
    if rng.random() < 0.1:
        with pytest.raises(OpfacadeError):
            plan.run(spoiled_args(rng, args, 1), torch.empty(1, dtype=torch.float32))
    before = numerics.snapshot(descriptor, args)
    plan.run(args)
    report = numerics.check(descriptor, args, plan.sku, rows=3, before=before)
    assert report.worst <= 1.0, (seed, plan.sku.id, report)
    return plan.sku.id, report


def test_ten_thousand_small_problems():
    bases = [base(i) for i in range(KERNELS)]
    compiled(bases)
    kernels, worst, tight = set(), 0.0, 0.0
    for seed in range(PROBLEMS):
        rng = random.Random(f"gpu {seed}")
        sku, report = one(varied(bases[seed % KERNELS], rng), seed, rng)
        kernels.add(sku)
        worst, tight = max(worst, report.worst), max(tight, report.worst_tight)
    torch.cuda.synchronize()
    print(f"{PROBLEMS} problems, {len(kernels)} kernels, worst {worst:.3f} of the hard bound, {tight:.3f} of the tight one")
    assert len(kernels) <= KERNELS + 10
