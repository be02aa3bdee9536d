"""Locks and preferences apply to every name, to every file, and at any time, not only to the first."""

import os

import pytest

from opfacade import Plan, Preference, SkuManifest, Target, errors, explain, telemetry
from opfacade.core.guarantee import Condition, ErrorModel, PrecisionGuarantee
from opfacade.errors import UnsupportedError
from opfacade.select import measurements
from opfacade.select.decision import Measured
from opfacade.select.pins import NO_PINS, Pins, Tuned
from opfacade.select.registry import examples
from opfacade.select.selection import considered, survey
from opfacade.select.sku_differences import nearest, same_kernel
from opfacade.tune.refresh import refresh
from tests.select.test_explanation import row

SM90 = Target.parse("sm_90a")
DECODE = next(e for e in examples() if e.op == "paged_decode")
OFF = DECODE.model_copy(update={"kv_split": "off"}).revalidated()
pytestmark = pytest.mark.usefixtures("fresh_telemetry")


def sku_of(descriptor, prefer=None):
    return explain(descriptor, prefer, SM90, NO_PINS).chosen.sku.id


def selected(descriptor, prefer=None):
    """Called again: the current pins count."""
    return Plan._select(descriptor, prefer, SM90).sku.id


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """Writes the SKUs of descriptors into the current manifest."""
    path = tmp_path / "fleet.json"
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", str(path))

    def write(*descriptors):
        SkuManifest.freeze(descriptors, target=SM90).save(path)
        return path

    return write


@pytest.mark.parametrize("names", [("cuda", "no-such"), ("no-such", "cuda"), ("cuda", "torch", "mma-tile")])
def test_every_name_that_is_forbidden_must_be_one(names):
    with pytest.raises(UnsupportedError, match="OPF-S019"):
        Plan.select(DECODE, Preference(forbid=names), SM90)


@pytest.mark.parametrize("names", [("torch", "cuda"), ("cuda", "torch")])
def test_every_name_that_is_forbidden_forbids(names):
    with pytest.raises(UnsupportedError) as caught:
        Plan.select(DECODE, Preference(forbid=names), SM90)
    assert {issue.code for issue in caught.value.issues} == {"OPF-S011"}
    assert {issue.argument.partition("/")[0] for issue in caught.value.issues} == {"cuda", "reference"}


def test_every_reason_against_a_candidate_is_counted_and_told():
    prefer = Preference(backend="reference", require="deterministic", max_workspace_bytes=0, forbid=("cuda",), pin="a/b")
    wanted = [reason.code for option in explain(DECODE, prefer, SM90).options for reason in option.reasons]
    assert max(len(option.reasons) for option in explain(DECODE, prefer, SM90).options) >= 3
    telemetry.reset()
    with telemetry.record() as events, pytest.raises(UnsupportedError):
        Plan._select(DECODE, prefer, SM90)
    assert telemetry.refusals() == {code: wanted.count(code) for code in wanted}
    assert [code for event in events if event["event"] == "refuse" for code in event["codes"]] == wanted


def test_every_fallback_is_counted_and_no_other_selection_of_the_reference():
    odd = DECODE.model_copy(update={"paged_kv": DECODE.paged_kv.model_copy(update={"head_dim": 65})}).revalidated()
    with pytest.warns(errors.FallbackWarning):
        sku = Plan._select(odd, None, SM90).sku.id
    assert telemetry.snapshot()[sku]["fallbacks"] == 1
    Plan._select(odd, Preference(backend="reference"), SM90)
    Plan._select(odd, None, Target.cpu())
    assert sum(found["fallbacks"] for found in telemetry.snapshot().values()) == 1


def test_a_measurement_counts_for_those_alone_who_use_them():
    use = Preference(autotune="use")
    default, slower = [o.sku.id for o in considered(DECODE, use, SM90) if not o.reasons][:2]
    pins = Pins(None, Tuned(row(DECODE, use, SM90, [(default, 100.0), (slower, 50.0)]), "a table"))

    def first(prefer):
        option = next(o for o in survey(DECODE, prefer, SM90, pins) if not o.reasons)
        return option.sku.id, bool(option.note)

    assert first(use) == (slower, True)
    assert first(Preference()) == (default, False)
    assert first(Preference(autotune="use", pin=default)) == (default, False)


def test_a_choice_is_made_of_what_may_be_chosen():
    measured = [
        Measured(sku=name, median_us=us, noise=0.0, samples=9, worst=0.1) for name, us in (("a", 9.0), ("b", 5.0), ("c", 1.0))
    ]
    tuned = Tuned(row(DECODE, Preference(), SM90, [(m.sku, m.median_us) for m in measured]), "here")
    assert tuned.choose(("a", "b"))[0] == "b"
    assert tuned.choose(("a", "b", "c"))[0] == "c"
    assert tuned.choose(("x", "c")) == (None, "the default was not among those measured")
    assert tuned.choose(()) == (None, "here")


def test_no_pin_and_no_measurement_lifts_a_lock(lock, monkeypatch, tmp_path):
    lock(DECODE)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    refresh()
    for prefer in (Preference(pin=sku_of(OFF)), Preference(autotune="use"), Preference(autotune="use", pin=sku_of(OFF))):
        with pytest.raises(UnsupportedError) as caught:
            selected(OFF, prefer)
        assert "OPF-S016" in {issue.code for issue in caught.value.issues}
    assert selected(DECODE, Preference(autotune="use")) == sku_of(DECODE)
    refresh()


@pytest.mark.parametrize("same", ["size", "time"])
def test_a_manifest_that_changed_is_read_again(lock, same):
    """Only its size or its time shows the change."""
    path = lock(DECODE)
    assert selected(DECODE) == sku_of(DECODE)
    before = path.stat()
    lock(OFF)
    if same == "size":
        path.write_text(path.read_text().ljust(before.st_size)[: before.st_size])
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    else:
        path.write_text(path.read_text() + " " * before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert selected(OFF) == sku_of(OFF)
    with pytest.raises(UnsupportedError, match="OPF-S016"):
        selected(DECODE)


def test_a_manifest_that_is_gone_locks_everything_out(lock):
    path = lock(DECODE)
    assert selected(DECODE)
    path.unlink()
    with pytest.raises(errors.SettingError, match="OPFACADE_REQUIRE_SKU"):
        selected(DECODE)


def test_one_kernel_has_one_op_backend_architecture_and_types():
    one = sku_of(DECODE)
    parts = one.split("/")
    for index in (0, 1, 2, 3, 5):
        assert not same_kernel(one, "/".join([*parts[:index], "other", *parts[index + 1 :]])), index
    for index in (4, 6, 7, 8):
        assert same_kernel(one, "/".join([*parts[:index], "other", *parts[index + 1 :]])), index


def test_the_nearest_id_is_of_the_same_kernel():
    """An id of another backend may share a longer prefix."""
    own = "norm/norm/cuda/sm_90a/rows@1/in.x=bf16/strided/kind=rms,pieces=16,span=1024/g2.0123456789abcdef"
    other = own.replace("/cuda/", "/reference/")
    far = own.replace("kind=rms,pieces=16,span=1024", "kind=layer").replace("0123456789abcdef", "fedcba9876543210")
    assert nearest(own, [other, far]) == far
    assert nearest(own, [other]) is None


def test_a_row_of_what_is_required_comes_before_one_of_nothing(monkeypatch):
    """Each applies where the other is not; of two of one requirement the later, which is this machine's own, counts."""
    use = Preference(autotune="use")
    strict = Preference(autotune="use", require="deterministic")
    skus = [o.sku.id for o in considered(DECODE, use, SM90) if not o.reasons][:3]
    rows = {sku: row(DECODE, prefer, SM90, [(sku, 1.0)]) for sku, prefer in zip(skus, (use, strict, strict), strict=True)}
    loose, older, newer = rows.values()
    key = loose.key

    def applied(found, prefer):
        monkeypatch.setattr(measurements, "table", lambda: found)
        tuned = measurements.tuned_for(DECODE, prefer, SM90)
        return tuned.row and tuned.row.winner

    none, own = (prefer.require.canonical_json() for prefer in (use, strict))
    assert applied({(key, none): [loose], (key, own): [older, newer]}, strict) == skus[2]
    assert applied({(key, none): [loose], (key, own): [older, newer]}, use) == skus[0]
    assert applied({(key, none): [loose]}, strict) == skus[0]
    assert applied({(key, own): [older]}, use) is None


@pytest.mark.parametrize("update", [{"revision": 7}, {"impl": "other"}, {"arch": "sm_80"}, {"layout": "other"}, {"spec": ()}])
def test_every_fact_of_a_sku_is_in_its_id(update):
    sku = explain(DECODE, None, SM90, NO_PINS).chosen.sku
    assert sku.spec
    other = sku.model_copy(update=update).revalidated()
    assert other.id != sku.id
    assert f"{other.impl}@{other.revision}" in other.id


def test_a_condition_is_part_of_a_promise_and_its_wording_is_not():
    promise = PrecisionGuarantee(math_precision="f32", accumulator="f32", error_model=ErrorModel(id="exact"))
    texts = []
    for conditions in (
        (),
        (Condition(id="a", text="one"),),
        (Condition(id="a", text="two"),),
        (Condition(id="b", text="one"),),
    ):
        texts.append(promise.model_copy(update={"conditions": conditions}).revalidated().promised())
    assert texts[1] == texts[2]
    assert len(set(texts)) == 3
