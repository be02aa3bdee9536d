"""Selection: pure, explained, and every preference is satisfied or refused with its reason."""

import json
import os
import sys
import threading
import warnings
from itertools import count

import pytest

from opfacade import Plan, Preference, Require, Target, explain
from opfacade.errors import (
    ArgumentTypeError,
    DescriptorError,
    FallbackWarning,
    GuaranteeUnavailable,
    UnsupportedDeviceError,
    UnsupportedError,
)
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.select.pins import NO_PINS
from opfacade.select.registry import BACKENDS, candidates_for, examples
from opfacade.select.selection import choose, survey
from tests.support.problems import REFERENCE, cache

SM_90A, CPU = Target.parse("sm_90a"), Target.cpu()
_unseen = count(1000)


def fresh(**fields):
    """A decode that no earlier test selected, with a CUDA kernel."""
    base = {"batch_size": next(_unseen), "num_qo_heads": 8, "paged_kv": cache(num_total_pages=4096, head_dim=64, page_size=16)}
    return BatchPagedDecodeDescriptor(**(base | fields))


CUDA = any(c.backend == "cuda" for c in candidates_for(BatchPagedDecodeDescriptor))
cuda = pytest.mark.skipif(not CUDA, reason="no CUDA candidate for decode")


def refusal(prefer, target=SM_90A, descriptor=None):
    with pytest.raises(UnsupportedError) as caught:
        Plan.select(descriptor or fresh(), prefer, target)
    return caught.value


def reasons(prefer, backend, target=SM_90A, descriptor=None):
    """{field: reason} against the candidate of a backend."""
    [option] = [o for o in explain(descriptor or fresh(), prefer, target).options if o.candidate.backend == backend]
    return {r.field: r for r in option.reasons}


def honours_backend():
    assert Plan.select(fresh(), Preference(backend="reference"), SM_90A).sku.backend == "reference"
    assert reasons(Preference(backend="reference"), "cuda")["prefer.backend"].code == "OPF-S010"
    assert refusal(Preference(backend="cuda"), CPU).issues[0].code == "OPF-S001"


def honours_forbid():
    for name in ("cuda", "split_kv", Plan.select(fresh(), None, SM_90A).sku.id):
        assert Plan.select(fresh(), Preference(forbid=(name,)), SM_90A).sku.backend == "reference"
        reason = reasons(Preference(forbid=(name,)), "cuda")["prefer.forbid"]
        assert (reason.code, reason.got) == ("OPF-S011", name)
    assert {i.code for i in refusal(Preference(forbid=("cuda", "torch"))).issues} == {"OPF-S011"}


def honours_max_workspace_bytes():
    descriptor = fresh()
    needed = Plan.select(descriptor, None, SM_90A).workspace_size
    assert needed > 0
    assert Plan.select(descriptor, Preference(backend="cuda", max_workspace_bytes=needed), SM_90A).workspace_size == needed
    reason = reasons(Preference(max_workspace_bytes=needed - 1), "cuda", descriptor=descriptor)["prefer.max_workspace_bytes"]
    assert (reason.code, reason.got, reason.allowed) == ("OPF-S014", f"{needed} bytes", f"at most {needed - 1} bytes")
    error = refusal(Preference(backend="cuda", max_workspace_bytes=0), descriptor=descriptor)
    assert str(needed) in str(error)
    assert 'kv_split="off"' in str(error)
    off = Plan.select(fresh(kv_split="off"), Preference(backend="cuda", max_workspace_bytes=0), SM_90A)
    assert off.workspace_size == 0


def honours_require():
    kept = Plan.select(fresh(), Preference(require="deterministic"), SM_90A)
    assert kept.precision_guarantee.deterministic
    error = refusal(Preference(require="batch_invariant"))
    assert isinstance(error, GuaranteeUnavailable)
    assert {i.code for i in error.issues} == {"OPF-S020"}
    assert Plan.select(fresh(kv_split="off"), Preference(require="batch_invariant"), SM_90A).sku.backend == "cuda"
    assert Plan.select(fresh(kv_split=256), Preference(require="batch_invariant"), SM_90A).sku.backend == "cuda"


def honours_jit():
    plan = Plan.select(fresh(), Preference(jit="never"), SM_90A)
    assert plan.preference.jit == "never"
    seen = []
    candidate = plan._candidate
    from dataclasses import replace

    spy = replace(candidate, launcher=lambda d, t, s, allow: seen.append(allow))
    for prefer in ("never", "build"):
        plan = Plan.select(fresh(), Preference(jit=prefer), SM_90A)
        object.__setattr__(plan, "_candidate", spy)
        plan._load()
    assert seen == [False, True]


def honours_allow():
    sku = Plan.select(fresh(), REFERENCE, SM_90A).sku
    assert Plan.select(fresh(), Preference(allow=(sku.id,)), SM_90A).sku == sku
    assert "OPF-S015" in {i.code for i in refusal(Preference(allow=())).issues}


def honours_pin():
    sku = Plan.select(fresh(), REFERENCE, SM_90A).sku
    assert Plan.select(fresh(), Preference(pin=sku.id), SM_90A).sku == sku
    error = refusal(Preference(pin="attention/nothing"))
    assert {i.code for i in error.issues} == {"OPF-S012"}
    assert "attention/nothing" in str(error)


def honours_allow_allocation():
    assert Plan.select(fresh(), Preference(allow_allocation=False), SM_90A).sku.backend == "cuda"
    assert {i.code for i in refusal(Preference(allow_allocation=False, backend="reference")).issues} >= {"OPF-S024"}


def honours_allow_sync():
    assert Plan.select(fresh(), Preference(allow_sync=False), SM_90A).sku.backend == "cuda"
    assert {i.code for i in refusal(Preference(allow_sync=False, backend="reference")).issues} >= {"OPF-S024"}


def honours_autotune():
    assert Plan.select(fresh(), Preference(autotune="off"), SM_90A).sku
    used = Preference(autotune="use")
    assert Plan.select(fresh(), used, SM_90A).sku == Plan.select(fresh(), None, SM_90A).sku
    assert "no measurements were given" in str(explain(fresh(), used, SM_90A, NO_PINS))


@cuda
@pytest.mark.filterwarnings("ignore::opfacade.errors.FallbackWarning")
@pytest.mark.parametrize("field", Preference.model_fields)
def test_every_preference_is_honoured_or_refused(field):
    """A new field without a case here fails."""
    globals()[f"honours_{field}"]()


@pytest.mark.parametrize(
    ("require", "got", "wanted"),
    [
        ({"deterministic": True}, "False", "True"),
        ({"bit_stable_on_same_hardware": True}, "False", "True"),
        ({"batch_invariant": "composition"}, "none", "composition"),
        ({"rank_invariant": "world"}, "none", "world"),
        ({"bounded_wait": "abort"}, "none", "abort"),
        ({"max_error_model": "exact"}, "attention-f32", "exact"),
    ],
)
def test_every_requirement_not_kept_is_named(require, got, wanted):
    fields = {"deterministic", "bit_stable_on_same_hardware", "batch_invariant", "rank_invariant", "bounded_wait"}
    assert set(Require.model_fields) == fields | {"max_error_model"}
    error = refusal(Preference(backend="reference", require=require), CPU)
    assert isinstance(error, GuaranteeUnavailable)
    [field] = require
    [issue] = [i for i in error.issues if i.code == "OPF-S020" and i.argument.startswith("reference")]
    assert (issue.argument, issue.got, issue.expected) == (f"reference/torch: prefer.require.{field}", got, wanted)


def test_a_looser_error_model_than_required_is_accepted_when_the_bound_is_as_tight():
    for model in ("attention-f32", "attention-mma16", "attention-mma8"):
        assert Plan.select(fresh(), Preference(require={"max_error_model": model}), CPU).sku.backend == "reference"
    refusal(Preference(require={"max_error_model": "attention-f64"}), CPU)
    wide = fresh(paged_kv=cache(dtype="f32"))
    assert Plan.select(wide, Preference(require={"max_error_model": "attention-f64"}), CPU).sku


def test_an_error_model_of_another_family_has_no_place_in_the_order_and_is_refused_by_name():
    error = refusal(Preference(require={"max_error_model": "merge-f32"}), CPU)
    [issue] = [i for i in error.issues if i.code == "OPF-S022" and i.argument.startswith("reference")]
    assert issue.got == "merge-f32"
    assert issue.expected == "one of exact, attention-f64, attention-f32, attention-mma16, attention-mma8"


def test_a_copy_satisfies_every_requirement():
    [copy] = [e for e in examples() if e.op == "paged_kv_append"][:1]
    for model in ("exact", "append-f32", "attention-f64"):
        assert Plan.select(copy, Preference(require={"max_error_model": model}), CPU).sku


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "triton"},
        {"require": "fast"},
        {"require": {"speed": 1}},
        {"jit": True},
        {"max_workspace_bytes": -1},
        {"pins": "x"},
        {"forbid": "cuda"},
    ],
)
def test_a_wrong_preference_is_refused(fields):
    with pytest.raises(DescriptorError, match=next(iter(fields))):
        Preference(**fields)


def test_a_preference_that_bypassed_validation_is_caught():
    with pytest.raises(DescriptorError, match="backend"):
        Plan.select(fresh(), Preference().model_copy(update={"backend": "triton"}), CPU)


def test_a_preference_round_trips_as_json():
    prefer = Preference(backend="cuda", forbid=("torch",), require="batch_invariant", max_workspace_bytes=9)
    assert Preference.model_validate_json(prefer.model_dump_json()) == prefer


@pytest.mark.parametrize(
    ("prefer", "target", "code"), [("x", CPU, "OPF-S032"), (None, "sm_90a", "OPF-S033"), (Require(), CPU, "OPF-S032")]
)
def test_the_wrong_kind_of_argument_is_a_type_error(prefer, target, code):
    with pytest.raises(ArgumentTypeError, match=code):
        Plan.select(fresh(), prefer, target)


@pytest.mark.parametrize("arguments", [("x",), (fresh(), "x"), (fresh(), None, "sm_90a")])
def test_explain_refuses_the_wrong_kind_of_argument_too(arguments):
    with pytest.raises(ArgumentTypeError, match="OPF-S03"):
        explain(*arguments, **({} if len(arguments) == 3 else {"target": CPU}))


def test_a_problem_no_kernel_takes_falls_back_with_a_warning():
    with pytest.warns(FallbackWarning, match="sm_90a"):
        plan = Plan.select(fresh(paged_kv=cache(head_dim=65)), None, SM_90A)
    assert plan.sku.backend == "reference"


@cuda
@pytest.mark.parametrize(("prefer", "target", "descriptor"), [
    (REFERENCE, SM_90A, fresh(paged_kv=cache(head_dim=65))), (None, CPU, fresh()), (None, SM_90A, fresh()),
])  # fmt: skip
def test_nothing_is_warned_of_when_nothing_is_downgraded(prefer, target, descriptor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Plan.select(descriptor, prefer, target).sku


@cuda
@pytest.mark.parametrize(
    ("target", "fields", "code", "field", "got"),
    [
        ("cpu", {}, "OPF-S001", "target.arch", "cpu"),
        ("sm_75", {}, "OPF-S001", "target.arch", "sm_75"),
        ("sm_90a", {"paged_kv": cache(head_dim=65)}, "OPF-S003", "head_dim", "65"),
        ("sm_90a", {"paged_kv": cache(head_dim=64, dtype="f8_e4m3")}, "OPF-S002", "q_dtype", "f8_e4m3"),
        ("sm_90a", {"q_dtype": "f32"}, "OPF-S002", "q_dtype", "f32"),
        ("sm_90a", {"o_dtype": "f32"}, "OPF-S002", "o_dtype", "f32"),
        ("sm_90a", {"kv_split": 1, "max_kv_indices": 10**6}, "OPF-S006", "splits", "16000001"),
    ],
)
def test_a_kernel_declines_with_code_field_and_numbers(target, fields, code, field, got):  # rows 7 to 9, 15, 16, 83
    error = refusal(Preference(backend="cuda"), Target.parse(target), fresh(**fields))
    [issue] = [i for i in error.issues if i.argument.endswith(f"/split_kv: {field}")]
    assert (issue.code, issue.got) == (code, got)
    assert issue.expected
    assert error.stage == "select"
    assert isinstance(error, UnsupportedDeviceError) == (code == "OPF-S001")


def test_the_text_of_explain_tells_every_candidate_and_reason():
    found = explain(fresh(paged_kv=cache(head_dim=65)), Preference(backend="cuda"), SM_90A)
    text = str(found)
    for option in found.options:
        assert f"refused  {option.name}" in text
        assert all(f"[{r.code}]" in text and str(r) in text for r in option.reasons)
        assert all(r.got in text for r in option.reasons)
    assert found.chosen is None


def test_the_json_of_explain_is_complete():
    found = explain(fresh(), None, SM_90A)
    data = json.loads(found.to_json())
    assert data["chosen"] == found.chosen.sku.id == Plan.select(found.descriptor, None, SM_90A).sku.id
    assert [(c["backend"], c["impl"]) for c in data["candidates"]] == [
        (c.backend, c.impl) for c in candidates_for(BatchPagedDecodeDescriptor)
    ]
    assert data["target"] == {"arch": "sm_90a", "sm_count": 132}
    assert f"chosen   {found.chosen.name}" in str(found)
    refused = json.loads(explain(fresh(), Preference(pin="x"), SM_90A).to_json())
    assert refused["chosen"] is None
    for candidate in refused["candidates"]:
        [reason] = candidate["reasons"]
        assert reason == {"code": "OPF-S012", "field": "prefer.pin", "got": candidate["sku"], "allowed": "x", "hint": ""}


def test_what_explain_says_is_what_select_does():
    for descriptor in examples():
        for target in (CPU, SM_90A, Target.parse("sm_80")):
            chosen = explain(descriptor, None, target).chosen
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FallbackWarning)
                plan = Plan.select(descriptor, None, target)
            assert (plan.sku, plan.workspace_size) == (chosen.sku, chosen.workspace_size)


def test_the_first_backend_without_a_reason_is_chosen():
    assert BACKENDS[-1] == "reference"
    for descriptor in examples():
        options = survey(descriptor, Preference(), SM_90A)
        first = next(o for o in options if not o.reasons)
        assert choose(descriptor, SM_90A, options) is first


_audited = []
sys.addaudithook(lambda event, args: _audited[-1].append((event, args)) if _audited else None)


def test_selection_opens_nothing_and_reads_no_environment(monkeypatch):
    for example in examples():
        explain(example, None, SM_90A)  # imports the backends
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked torch"))
    for name in ("zeros", "empty", "tensor"):
        monkeypatch.setattr(torch, name, lambda *a, **k: pytest.fail("made a tensor"))
    descriptors = [fresh(), fresh(kv_split=77)]
    _audited.append([])
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", None)
        for descriptor in descriptors:
            choose(descriptor, SM_90A, survey(descriptor, Preference(), SM_90A))
            str(explain(descriptor, None, SM_90A, NO_PINS))
    for descriptor in descriptors:
        Plan.select(descriptor, None, SM_90A)
    events = {event for event, _ in _audited.pop()}
    assert not events & {"open", "import", "subprocess.Popen", "socket.connect", "os.listdir", "os.mkdir", "ctypes.dlopen"}


def test_a_target_changes_the_plan_and_its_workspace():
    descriptor = fresh()
    small = Plan.select(descriptor, REFERENCE, Target("sm_90a", 16, 232448))
    assert small.target.sm_count == 16
    assert Plan.select(descriptor, REFERENCE, SM_90A) is not small


def test_eight_threads_select_the_same_sku():
    descriptor, found = fresh(), []
    threads = [threading.Thread(target=lambda: found.append(Plan.select(descriptor, None, CPU).sku.id)) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(found) == 8
    assert len(set(found)) == 1


def test_what_is_forbidden_may_be_named_as_explain_names_it():
    name = explain(fresh(), target=SM_90A).chosen.name
    assert name.startswith("cuda/")
    assert Plan.select(fresh(), Preference(forbid=(name,)), SM_90A).sku.backend == "reference"
    assert Plan.select(fresh(), Preference(forbid=("wgmma_tile",)), SM_90A).sku.backend == "cuda"  # a kernel of another op


@pytest.mark.parametrize("name", ["split-kv", "cuda/splitkv", ""])
def test_a_name_to_forbid_that_nothing_has_is_refused(name):
    for ask in (Plan.select, explain):
        with pytest.raises(UnsupportedError, match=r"prefer.forbid expected a backend, .*OPF-S019") as caught:
            ask(fresh(), Preference(forbid=(name,)), SM_90A)
        assert repr(name) in caught.value.issues[0].got


def has_kernel(example):
    return any(candidate.backend == "cuda" for candidate in candidates_for(type(example)))


@pytest.mark.parametrize("example", [e for e in examples() if has_kernel(e)], ids=lambda d: d.op)
@pytest.mark.parametrize("target", [CPU, Target.parse("sm_75")], ids=lambda t: t.arch)
def test_a_device_that_no_kernel_is_for_is_to_blame(example, target):
    error = refusal(Preference(backend="cuda"), target, example)
    assert (type(error), error.code) == (UnsupportedDeviceError, "OPF-S001")


def test_a_device_is_not_to_blame_for_what_the_caller_locked_out():
    error = refusal(Preference(allow=("attention/x/reference/cpu/torch@1/a/b/-/g2.0",)), CPU)
    assert (type(error), error.code) == (UnsupportedError, "OPF-S015")
    assert {"OPF-S001", "OPF-S015"} <= {i.code for i in error.issues}


def test_a_guarantee_that_nothing_keeps_has_a_code_of_its_own():
    error = refusal(Preference(require={"max_error_model": "exact"}))
    assert (type(error), error.code) == (GuaranteeUnavailable, "OPF-S020")


def test_a_reference_that_is_asked_for_is_no_fallback():
    sku = Plan.select(fresh(), Preference(backend="reference"), SM_90A).sku.id
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for prefer in (Preference(pin=sku), Preference(allow=(sku,))):
            assert Plan.select(fresh(), prefer, SM_90A).sku.backend == "reference"
