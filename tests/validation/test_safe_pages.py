"""Safe pages: a compile-time option with separate binaries and ids, off by default."""

import pytest

from opfacade import Plan, Preference, Target, jit
from opfacade import plan as plans
from opfacade.backends.cuda import support
from opfacade.core.descriptor import forget_specializations
from opfacade.jit import codegen
from opfacade.plans import attention, kv_cache
from opfacade.select.registry import candidates_for

PAGED = [e for e in (*attention.EXAMPLES, *kv_cache.EXAMPLES) if hasattr(e, "paged_kv")]
H100 = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _nothing_stays_remembered():
    yield
    forget_specializations()  # after the constant has its old value again


def set_safe_pages(monkeypatch, safe):
    """Values cached for a kind were correct for the old constant."""
    monkeypatch.setattr(support, "SAFE_PAGES", safe)
    monkeypatch.setattr(plans, "_selected", {})
    forget_specializations()


def spec_and_sku(monkeypatch, descriptor, safe):
    set_safe_pages(monkeypatch, safe)
    candidate = next(c for c in candidates_for(type(descriptor)) if c.backend == "cuda")
    return candidate.jit_spec(descriptor, H100), candidate.sku(descriptor, H100)


@pytest.mark.parametrize("descriptor", PAGED, ids=lambda d: f"{d.op}-{d.page_table}")
def test_the_fact_reaches_the_source_and_the_id(monkeypatch, descriptor):
    plain, plain_sku = spec_and_sku(monkeypatch, descriptor, False)
    safe, safe_sku = spec_and_sku(monkeypatch, descriptor, True)
    assert "kSafePages = false;" in codegen.render(plain).device
    assert "kSafePages = true;" in codegen.render(safe).device
    assert ("safe_pages", True) in safe_sku.spec
    assert "safe_pages" not in dict(plain_sku.spec)
    assert safe_sku.id != plain_sku.id
    assert jit.source_digest(safe) != jit.source_digest(plain)


def test_a_plan_takes_the_fact_as_it_is_when_it_is_made(monkeypatch):
    ids = []
    for safe in (False, True):
        set_safe_pages(monkeypatch, safe)
        ids.append(Plan.select(PAGED[0], Preference(backend="cuda"), H100).sku.id)
    assert ids[0] != ids[1]


@pytest.mark.gpu
@pytest.mark.parametrize("descriptor", PAGED, ids=lambda d: f"{d.op}-{d.page_table}")
def test_a_page_outside_the_pool_reads_page_zero_and_spares_the_neighbours(monkeypatch, descriptor):
    import torch

    from opfacade.testing import inputs
    from tests.support.index_corruption import same_bits

    set_safe_pages(monkeypatch, True)
    plan = Plan.select(descriptor, Preference(backend="cuda"))
    args = inputs.make_args(descriptor, seed=5, device="cuda")
    names = [name for name, spec in descriptor.operands().items() if spec.written]
    pages = args.kv_indices if args.block_table is None else args.block_table
    own = slice(0, int(args.kv_indptr[1])) if args.block_table is None else 0
    pages[own] = 0
    if descriptor.op == "paged_kv_append":
        for outside in (-1, 1 << 30, -(1 << 31), descriptor.paged_kv.num_total_pages):
            pages[own] = outside
            plan.run(args)
        torch.cuda.synchronize()
        return
    plan.run(args)
    zero = [getattr(args, name).clone() for name in names]
    for outside in (-1, 1 << 30, -(1 << 31), descriptor.paged_kv.num_total_pages):
        pages[own] = outside
        plan.run(args)
        assert all(same_bits(a, getattr(args, name)) for a, name in zip(zero, names, strict=True))
