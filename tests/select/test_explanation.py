"""`explain` predicts `select`: the same SKU, or the same refusals, for any preference, lock and measurement."""

import json
import uuid
import warnings
from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opfacade import Plan, Preference, Target, errors, explain
from opfacade.core.preference import Require
from opfacade.errors import MAX_ISSUES
from opfacade.select import hardware_stamp as autotune_stamp
from opfacade.select.decision import Measured, TuningRow, decide, tuning_key
from opfacade.select.manifest import SkuManifest
from opfacade.select.measurements import store_here
from opfacade.select.pins import NO_PINS
from opfacade.select.registry import BACKENDS, descriptor_types, examples
from opfacade.select.selection import considered
from opfacade.testing import problems
from opfacade.tune.refresh import refresh

TARGETS = [Target.cpu(), *map(Target.parse, ("sm_90a", "sm_80", "sm_75"))]
DECODE = next(e for e in examples() if e.op == "paged_decode")
SM90 = Target.parse("sm_90a")
MODELS = sorted({model for kind in descriptor_types().values() for model in kind.error_models} | {"no-such-model"})


@pytest.fixture(autouse=True)
def _own_measurements(tmp_path, monkeypatch, fresh_telemetry):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    refresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)
        yield
    monkeypatch.undo()
    refresh()


def of_select(descriptor, prefer, target):
    """The result of select: the SKU and its workspace, or the refused requirement and the reason."""
    try:
        plan = Plan._select(descriptor, prefer, target)
    except errors.UnsupportedError as error:
        return [(issue.code, issue.argument) for issue in error.issues]
    except errors.OpfacadeError as error:
        return error.code
    return plan.sku.id, plan.workspace_size


def of_explain(descriptor, prefer, target):
    """The result of select as explain predicts it."""
    try:
        found = explain(descriptor, prefer, target)
    except errors.UnsupportedError as error:
        return [(issue.code, issue.argument) for issue in error.issues]
    except errors.OpfacadeError as error:
        return error.code
    assert json.loads(found.to_json())["chosen"] == (found.chosen and found.chosen.sku.id)
    if found.chosen is None:
        return [(r.code, f"{o.name}: {r.field}") for o in found.options for r in o.reasons][:MAX_ISSUES]
    return found.chosen.sku.id, found.chosen.workspace_size


def test_a_lock_is_explained_without_being_handed_over(monkeypatch):
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", "a/b/c/d/e@1/f/g/h/g2.0")
    found = explain(DECODE, target=SM90)
    assert found.chosen is None
    assert {reason.code for option in found.options for reason in option.reasons} >= {"OPF-S016"}
    assert explain(DECODE, target=SM90, pins=NO_PINS).chosen is not None


def test_a_measurement_is_explained_without_being_handed_over():
    use = Preference(autotune="use")
    default, slower = [o.sku.id for o in considered(DECODE, use, SM90) if not o.reasons][:2]
    store_here().put([row(DECODE, use, SM90, [(default, 100.0), (slower, 50.0)])])
    refresh()
    assert Plan._select(DECODE, use, SM90).sku.id == explain(DECODE, use, SM90).chosen.sku.id == slower
    assert explain(DECODE, use, SM90, NO_PINS).chosen.sku.id == default


def row(descriptor, prefer, target, times, toolchain=None, require=None):
    measured = tuple(Measured(sku=sku, median_us=time, noise=0.0, samples=9, worst=0.1) for sku, time in times)
    decision = decide(measured)
    return TuningRow(
        key=tuning_key(descriptor),
        hardware=autotune_stamp.hardware(target),
        toolchain=toolchain or autotune_stamp.toolchain_of("reference" if target.is_cpu else "cuda"),
        require=(require or prefer.require).canonical_json(),
        date="2026-01-01T00:00:00Z",
        incumbent=decision.incumbent,
        winner=decision.winner,
        gain=decision.gain,
        noise=decision.noise,
        measured=measured,
    )


@st.composite
def descriptors(draw):
    seed, kind = draw(st.integers(0, 10**6)), draw(st.sampled_from(["plain", "plain", "special"]))
    if kind == "special":
        return problems.special_descriptor(draw(st.sampled_from(problems.SPECIAL)), seed)
    return problems.random_descriptor(draw(st.sampled_from(problems.OPS)), seed)


@st.composite
def preferences(draw, ids):
    some = st.lists(st.sampled_from(ids), max_size=3, unique=True).map(tuple)
    names = st.sampled_from(["cuda", "reference", "mma_tile", "split_kv", "cuda/wgmma_tile", "no such name", *ids])
    require = {
        "deterministic": draw(st.booleans()),
        "batch_invariant": draw(st.sampled_from(["none", "none", "composition"])),
        "max_error_model": draw(st.sampled_from([None, None, *MODELS])),
    }
    return Preference(
        backend=draw(st.sampled_from([None, None, *BACKENDS])),
        forbid=draw(st.one_of(st.just(()), st.lists(names, max_size=2).map(tuple))),
        allow=draw(st.one_of(st.none(), st.none(), some)),
        max_workspace_bytes=draw(st.sampled_from([None, None, None, 0, 1 << 20])),
        require=draw(st.sampled_from([Require(), Require(), Require(**require)])),
        pin=draw(st.sampled_from([None, None, None, *ids])),
        autotune=draw(st.sampled_from(["off", "use", "use"])),
    )


@st.composite
def cases(draw):
    """A problem, a preference, the lock in OPFACADE_REQUIRE_SKU (None: no lock), and measurements."""
    descriptor, target = draw(descriptors()), draw(st.sampled_from(TARGETS))
    ids = [o.sku.id for o in considered(descriptor, Preference(), target) if o.sku is not None]
    ids.append("attention/other/cuda/sm_90a/x@1/q=f16/strided/-/g2.0")
    prefer = draw(preferences(ids))
    some = st.lists(st.sampled_from(ids), max_size=4, unique=True)
    lock = draw(st.one_of(st.none(), st.none(), st.sampled_from([*ids, "nonsense", "nonsense"]), some))
    times = st.lists(
        st.tuples(st.sampled_from(ids), st.floats(1, 1000)), min_size=1, max_size=4, unique_by=lambda pair: pair[0]
    )
    toolchain, require = draw(st.sampled_from([None, None, "older"])), draw(st.sampled_from([None, Require()]))
    rows = draw(st.one_of(st.none(), times))
    return descriptor, prefer, target, lock, rows and row(descriptor, prefer, target, rows, toolchain, require)


def test_explain_says_what_select_does(tmp_path):
    seen = Counter()

    @settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases())
    def agree(case):
        descriptor, prefer, target, lock, measured = case
        with in_force(lock, measured, tmp_path):
            done = of_select(descriptor, prefer, target)
            assert of_explain(descriptor, prefer, target) == done
        seen[type(done)] += 1

    agree()
    assert min(seen[tuple], seen[list]) > 20, seen
    assert seen[str], "nothing that select refuses to begin with was tried"


@contextmanager
def in_force(lock, measured, tmp_path):
    """Sets OPFACADE_REQUIRE_SKU to `lock`, and stores one measurement."""
    store_here().path.unlink(missing_ok=True)
    if measured is not None:
        store_here().put([measured])
    refresh()
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(lock, list):
            path = tmp_path / f"{uuid.uuid4().hex}.json"
            SkuManifest(skus=tuple(sorted(lock))).save(path)
            lock = str(path)
        if lock is not None:
            patch.setenv("OPFACADE_REQUIRE_SKU", lock)
        yield
