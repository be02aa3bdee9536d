"""Cross-check: runs every n-th call, is silent if results agree, and dumps a replayable call if they do not."""

import os
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade import plan as plans
from opfacade.errors import ArgumentError, GuaranteeViolation
from opfacade.observe import crosscheck, dump_files
from opfacade.plans.cascade import EXAMPLES as MERGES
from opfacade.select.registry import examples
from opfacade.testing import inputs
from opfacade.testing.bounds import Report
from opfacade.testing.subject import Subject
from opfacade.tools.crosscheck import replay as replay_crosscheck
from tests.support.accepted import accepted
from tests.support.problems import append, bits, decode, prefill, ragged

PROBLEMS = {
    "prefill": lambda: prefill([3, 40], [9, 45]),
    "decode": lambda: decode([9, 0, 30]),
    "ragged": lambda: ragged([2, 3], [4, 4]),
    "append": lambda: append([2, 3], [9, 6]),
    "merge": lambda: (MERGES[0], inputs.make_args(MERGES[0], seed=1)),
    "plans": lambda: (LAYERS[0], inputs.make_args(LAYERS[0], seed=1)),  # with tensors between them in a workspace
}


LAYERS = [one for one in examples() if one.op == "fused_moe"]


@pytest.fixture(autouse=True)
def _dumps(monkeypatch, tmp_path):
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    monkeypatch.setattr(dump_files, "_used", [0, 0])


def plan_of(descriptor, spoil=None):
    """A plan whose launcher is the reference, with `spoil(args)` after each launch."""
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    make = plan._candidate.launcher

    def launcher(*given):
        right = make(*given)

        def launch(args, workspace):
            right(args, workspace)
            spoil(args)

        return launch

    if spoil is not None:
        object.__setattr__(plan, "_candidate", replace(plan._candidate, launcher=launcher))
    return plan


def outputs(args):
    return [getattr(args, name) for name in ("o", "lse", "k_data", "v_data", "out") if getattr(args, name, None) is not None]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0])
def test_the_share_of_runs_is_kept_and_spread(rate):
    due = crosscheck.due_by_count(rate)
    found = [due() for _ in range(3000)]
    assert abs(sum(found) - 3000 * rate) <= 1
    assert found[0] == (rate > 0)
    assert found == [d() for d in [crosscheck.due_by_count(rate)] for _ in range(3000)]
    gaps = [sum(found[i : i + 100]) for i in range(0, 3000, 100)]
    assert max(gaps) - min(gaps) <= 1


def test_off_leaves_the_launcher_alone():
    descriptor, args = decode([9])
    plan = plan_of(descriptor)
    plan.run(args)
    assert plan._launch.__module__.startswith("opfacade.backends.reference.")


@pytest.mark.parametrize("name", PROBLEMS)
def test_right_runs_pass_and_write_what_they_would(monkeypatch, name):
    descriptor, args = PROBLEMS[name]()
    alone = crosscheck.copied(args)
    plan_of(descriptor).run(alone)
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    plan_of(descriptor).run(args)
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(outputs(args), outputs(alone), strict=True))


def one_ulp_too_many(args):
    target = outputs(args)[0]
    target.view(-1)[:] = torch.where(target.view(-1).abs() > 0, target.view(-1) * 1.02 + 0.01, target.view(-1))


def one_element(args):
    target = outputs(args)[0]
    where = bits(target).flatten().nonzero()[-1]
    target.view(-1)[where] = 3.0


# The bound of plans includes the roundings between them, so it is wider.
SPOILED = [
    ("plans", one_element),
    *((name, how) for name in PROBLEMS if name != "plans" for how in (one_ulp_too_many, one_element)),
]


@pytest.mark.parametrize(("name", "spoil"), SPOILED)
def test_a_wrong_run_raises_with_a_dump_that_replays(monkeypatch, name, spoil):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = PROBLEMS[name]()
    before = crosscheck.copied(args)
    plan = plan_of(descriptor, spoil)
    with pytest.raises(GuaranteeViolation, match=r"\[OPF-G001\]") as caught:
        plan.run(args)
    error = caught.value
    assert (error.code, error.sku) == ("OPF-G001", plan.sku.id)
    assert error.worst > 1
    assert error.dump in str(error)
    kept = torch.load(error.dump, weights_only=True)
    for given in type(before).__slots__:
        if getattr(before, given) is not None:
            assert torch.equal(bits(kept["before"][given]), bits(getattr(before, given))), given
    assert set(kept["got"]) == set(kept["reference"]) == {n for n, s in descriptor.operands().items() if s.written}
    monkeypatch.setattr(plans, "_selected", {})
    assert replay_crosscheck(error.dump).worst <= 1.0  # the plan of that SKU, without the fault, is correct


def test_a_kernel_that_spoils_its_inputs_cannot_hide_it(monkeypatch):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = decode([9, 9])

    def make_it_fit(args):
        args.v_data[args.kv_indices[:6].long()] = 1.0
        args.o.fill_(1.0)

    with pytest.raises(GuaranteeViolation):
        plan_of(descriptor, make_it_fit).run(args)


def test_only_due_runs_are_compared(monkeypatch):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "0.25")
    descriptor, args = decode([9])
    plan = plan_of(descriptor, lambda a: a.o.fill_(7.0))
    raised = []
    for _ in range(8):
        try:
            plan.run(args)
            raised.append(False)
        except GuaranteeViolation:
            raised.append(True)
    assert raised == [True, False, False, False] * 2


def test_a_dump_that_cannot_be_written_does_not_hide_the_violation(monkeypatch, tmp_path):
    (tmp_path / "dumps").write_text("in the way")
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = decode([9])
    with pytest.raises(GuaranteeViolation, match="no dump: "):
        plan_of(descriptor, one_element).run(args)


def violated(monkeypatch):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = decode([9])
    with pytest.raises(GuaranteeViolation) as caught:
        plan_of(descriptor, one_element).run(args)
    return caught.value


@pytest.mark.parametrize(
    "error", [RuntimeError("[enforce fail at inline_container.cc] no space"), MemoryError("none"), OSError("x")]
)
def test_a_disk_that_fills_up_does_not_hide_the_violation(monkeypatch, tmp_path, error):
    def fail(*given):
        raise error

    monkeypatch.setattr(torch, "save", fail)
    assert violated(monkeypatch).dump.startswith("no dump: ")
    assert list((tmp_path / "dumps").iterdir()) == []


def test_a_limit_on_dumps_does_not_hide_the_violation(monkeypatch):
    monkeypatch.setenv("OPFACADE_DUMP_MAX_MB", "0")
    assert "OPFACADE_DUMP_MAX_MB=0" in violated(monkeypatch).dump


def test_what_users_had_in_their_tensors_is_for_them_alone(monkeypatch):
    before = os.umask(0)
    try:
        paths = [Path(violated(monkeypatch).dump) for _ in range(2)]
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in paths} == {0o700}
    assert paths[0] != paths[1]


def test_outputs_that_are_views_leave_the_rest_of_their_storage_out(monkeypatch):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    descriptor, args = decode([9])
    secret = torch.full((1 << 20,), 7.0, dtype=args.o.dtype)
    o = secret[: args.o.numel()].view(args.o.shape)
    with pytest.raises(GuaranteeViolation) as caught:
        plan_of(descriptor, one_element).run(replace(args, o=o))
    assert Path(caught.value.dump).stat().st_size < 100_000


@pytest.mark.parametrize("content", [b"", b"rubbish", {"sku": "x"}, [1]])
def test_what_is_no_dump_of_a_cross_check_is_refused(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ArgumentError, match="OPF-E013"):
        replay_crosscheck(path)


@pytest.mark.gpu
@pytest.mark.parametrize("descriptor", examples(), ids=lambda d: d.op)
def test_kernels_pass_and_a_graph_is_captured_without_the_check(monkeypatch, descriptor):
    monkeypatch.setenv("OPFACADE_CROSSCHECK", "1")
    plan = accepted(Subject(descriptor, "cuda", "cuda")).plan
    args = inputs.make_args(descriptor, device="cuda")
    plan.run(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args)
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize(("worst", "beyond"), [(1.0, False), (1.01, True), (float("inf"), True), (float("nan"), True)])
def test_a_ratio_above_1_or_of_nan_is_a_violation(monkeypatch, worst, beyond):
    told = []
    monkeypatch.setattr(crosscheck, "judge", lambda *given: Report(worst, worst, "o[3]", 1))
    monkeypatch.setattr(crosscheck, "_dump", lambda *given: "nowhere")
    monkeypatch.setattr(crosscheck, "_violation", lambda *given: told.append(1) or GuaranteeViolation("x", code="OPF-G001"))
    with pytest.raises(GuaranteeViolation) if beyond else nullcontext():
        crosscheck._compare(None, None, crosscheck.Evidence(None, {}, {}))
    assert bool(told) is beyond


@pytest.mark.parametrize("capturing", [False, True])
def test_nothing_is_due_while_a_graph_is_captured(monkeypatch, capturing):
    descriptor, args = decode([9])
    plan, compared = plan_of(descriptor), []
    monkeypatch.setattr(crosscheck, "capturing", lambda device: capturing)
    monkeypatch.setattr(crosscheck, "_compare", lambda *given: compared.append(1))
    launched = []
    checked = crosscheck.wrap(lambda args, workspace: launched.append(1), 1.0, (descriptor, plan.sku, plan.target))
    checked(args, None)
    assert (len(launched), len(compared)) == (1, 0 if capturing else 1)


def test_a_replay_runs_the_sku_that_was_dumped(monkeypatch, tmp_path):
    descriptor, args = decode([9])
    before = {name: getattr(args, name) for name in args.__slots__}
    content = {"descriptor": descriptor.canonical_json(), "sku": "a/b", "target": ("cpu", 0, 0), "before": before}
    asked = []

    def select(problem, prefer, target):
        asked.append((prefer.pin, target))
        raise ArgumentError("enough")

    monkeypatch.setattr(dump_files, "load", lambda path, device: content)
    monkeypatch.setattr(Plan, "select", select)
    with pytest.raises(ArgumentError, match="enough"):
        replay_crosscheck(tmp_path)
    assert asked == [("a/b", Target.cpu())]
