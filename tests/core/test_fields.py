"""Every field of a descriptor is used where it is documented: the SKU, the launcher, validation, the result."""

import pytest

from opfacade import Target
from opfacade.core.descriptor import forget_specializations
from opfacade.select.registry import candidates_for
from tests.families.cascade.test_reference import states
from tests.support.problems import append, cache, decode, prefill, ragged, run

SM_90A, CPU = Target.parse("sm_90a"), Target.cpu()


class Reads:
    """Records which fields of a descriptor, and of its cache, Python code reads."""

    def __init__(self, monkeypatch, kind):
        self.found = set()
        for cls in (kind, type(cache())):
            monkeypatch.setattr(cls, "__getattribute__", self._spy(cls))

    def _spy(self, cls):
        def read(instance, name):
            if name in cls.model_fields:
                self.found.add(f"{cls.__name__}.{name}")
            return object.__getattribute__(instance, name)

        return read


FULL = [
    lambda: prefill([3, 2], [6, 9], max_kv_indices=24, sm_scale=0.5), lambda: prefill([3, 2], [6, 9], page_table="block"),
    lambda: decode([6, 9], sm_scale=0.5), lambda: ragged([3, 2], [6, 9], sm_scale=0.5), lambda: append([3, 2], [6, 9]),
    lambda: states(2, 3),
]  # fmt: skip


@pytest.mark.parametrize("make", FULL)
def test_every_field_reaches_the_sku_the_launcher_or_validation(make, monkeypatch):
    """A field that no code reads would be an empty promise."""
    forget_specializations()
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda: None)  # independent of the installed compiler
    descriptor, args = make()
    kind = type(descriptor)
    reads = Reads(monkeypatch, kind)
    checked = descriptor.revalidated()
    if "allow_unusual_scale" in kind.model_fields:
        kind(**(dict(checked) | {"sm_scale": -1.0, "allow_unusual_scale": True}))
    checked.operands()
    backends = set()
    for candidate in candidates_for(kind):
        backends.add(candidate.backend)
        target = SM_90A if candidate.backend == "cuda" else CPU
        capable = next(d for d in _accepted_by_each(checked) if not candidate.declines(d, target))
        sku = candidate.sku(capable, target)
        candidate.workspace(capable, target)
        if candidate.compiles:
            candidate.jit_specs(capable, target)
            _launcher_parameters(candidate, capable, target, sku, monkeypatch)
        else:
            candidate.launcher(checked, target, sku, True)(args, None)
    wanted = {f"{kind.__name__}.{name}" for name in kind.model_fields} | {
        f"PagedKvCacheDescriptor.{name}" for name in type(cache()).model_fields if "paged_kv" in kind.model_fields
    }
    idle = {f"{kind.__name__}.schema_version"} | ({f"{kind.__name__}.kv_split"} if "cuda" not in backends else set())
    assert wanted - reads.found - idle == set()


def _accepted_by_each(descriptor):
    """The usual form and the fp8 form, and each where a request may be long: every CUDA candidate accepts one of them."""
    for plain in _usual_and_fp8(descriptor):
        yield plain
        fields = dict(plain)
        if "paged_kv" in fields:
            pool = fields["paged_kv"].model_copy(update={"num_total_pages": 2**20}).revalidated()
            yield type(plain)(**fields | {"paged_kv": pool} | {n: None for n in ("max_kv_indices",) if n in fields})
        elif "total_kv_rows" in fields:
            yield type(plain)(**fields | {"total_kv_rows": 2**23})


def _usual_and_fp8(descriptor):
    kind, fields = type(descriptor), dict(descriptor)
    paged = "paged_kv" in kind.model_fields
    yield kind(**fields | ({"paged_kv": cache(head_dim=64)} if paged else {"head_dim": 64}))
    fp8 = {"paged_kv": cache(head_dim=128, page_size=16, dtype="f8_e4m3")} if paged else {"head_dim": 128, "dtype": "f8_e4m3"}
    yield kind(**fields | fp8 | {"q_dtype": None})


def _launcher_parameters(candidate, descriptor, target, sku, monkeypatch):
    """Everything that a CUDA launcher passes to the kernel, without building it."""
    from opfacade.backends.cuda import support

    monkeypatch.setattr(support, "launcher", lambda *a: None)
    candidate.launcher(descriptor, target, sku, False)


@pytest.mark.parametrize("change", [
    {"sm_scale": 0.9}, {"logits_soft_cap": 0.5}, {"window_left": 1}, {"causal": False}, {"q_dtype": "f32"},
])  # fmt: skip
def test_a_field_of_the_formula_changes_the_result(change):
    _, plain = run(prefill([3, 2], [6, 9]))
    _, other = run(prefill([3, 2], [6, 9], **change))
    assert not (plain.o.float() == other.o.float()).all()
