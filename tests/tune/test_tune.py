"""Tuning end to end: candidates of the reference backend and a clock that the test decides; and once with the real one."""

import json
import re

import pytest
import torch
from click.testing import CliRunner

from opfacade import Plan, Preference, Target, errors, explain, telemetry
from opfacade.cli.main import main
from opfacade.core.preference import Require
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.select import first_fit, selection
from opfacade.select import hardware_stamp as autotune_stamp
from opfacade.select import measurements as autotune_table
from opfacade.select.in_force import in_force
from opfacade.select.registry import examples
from opfacade.tools.workload import Lengths, Work
from opfacade.tune.measure import MeasureEffort
from opfacade.tune.refresh import refresh
from opfacade.tune.tune import Setup, TuneResult, lengths_of, tune
from tests.support.fake_candidates import CLOCK, RAN, candidate, clock, way
from tests.support.problems import decode

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, SM90 = Target.cpu(), Target.parse("sm_90a")
USE = Preference(autotune="use")
DECODE, _ = decode([5, 9, 2])


@pytest.fixture
def field(monkeypatch, tmp_path, fresh_telemetry):
    """Replaces the candidates of decode; measurements go to a directory of the test."""
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    known = selection.configs_for

    def use(*candidates):
        everything = lambda kind: candidates if kind is BatchPagedDecodeDescriptor else known(kind)  # noqa: E731
        monkeypatch.setattr(selection, "configs_for", everything)
        default = lambda kind: tuple(c for c in everything(kind) if not c.config)  # noqa: E731
        for module in (selection, first_fit):
            monkeypatch.setattr(module, "candidates_for", default)
        refresh()

    yield use
    monkeypatch.undo()
    refresh()


def tuned(problems=(DECODE,), require=None, **times):
    return tune(problems, CPU, require, clock(**times))


def used(descriptor=DECODE, prefer=USE):
    return way(Plan.select(descriptor, prefer, CPU).sku.id)


# -- what is measured and kept -----------------------------------------------------------------------------------------


def test_the_faster_way_is_kept_applied_and_explained(field):
    field(candidate("plain"), candidate("other"))
    (found,) = tuned(plain=100.0, other=80.0)
    assert (way(found.row.winner), way(found.default), round(found.gain, 3)) == ("other", "plain", 0.2)
    assert used() == "other"
    assert used(prefer=None) == "plain"
    said = str(explain(DECODE, USE, CPU, in_force(DECODE, USE, CPU)))
    assert "measured: 80 us in 12 samples; 20.0% faster than" in said
    assert "chosen   reference/torch[other]" in said
    assert telemetry.counts()["tuned_hit"] == 2


@pytest.mark.parametrize(("time", "kept"), [(97.5, "plain"), (96.5, "other"), (110.0, "plain")])
def test_the_default_stays_within_three_percent(field, time, kept):
    field(candidate("plain"), candidate("other"))
    tuned(plain=100.0, other=time)
    assert used() == kept


def test_what_is_kept_says_where_when_and_how_it_was_measured(field):
    field(candidate("plain"), candidate("other"))
    (found,) = tuned(plain=100.0, other=50.0, spread=0.001)
    (row,) = autotune_table.store_here().rows()
    assert row == found.row
    assert row.hardware == autotune_stamp.hardware(CPU)
    assert row.toolchain == autotune_stamp.toolchain_of("reference")
    assert [(way(m.sku), m.samples >= 12, m.noise > 0, 0 < m.worst <= 1) for m in row.measured] == [
        ("plain", True, True, True),
        ("other", True, True, True),
    ]
    assert row.date.startswith("20")


@pytest.mark.parametrize("flaw", ["wrong", "raises", "writes nothing"])
def test_a_candidate_that_is_wrong_is_never_timed_or_chosen(field, flaw):
    field(candidate("plain"), candidate("flawed", flaw), candidate("other"))
    RAN.clear()
    (found,) = tuned(plain=100.0, flawed=1.0, other=80.0)
    assert [way(sku) for sku in found.wrong] == ["flawed"]
    assert RAN.count("flawed") == 1
    assert used() == "other"
    assert telemetry.counts()["tune_candidate_wrong"] == 1


def test_a_default_that_is_wrong_leaves_nothing_to_compare_with(field):
    field(candidate("plain", "wrong"), candidate("other"))
    (found,) = tuned(plain=1.0, other=80.0)
    assert [way(sku) for sku in found.wrong] == ["plain"]
    assert used() == "plain"


def test_if_every_candidate_is_wrong_the_default_stays_and_nothing_is_timed(field):
    field(candidate("plain", "wrong"), candidate("other", "raises"))
    (found,) = tuned(plain=1.0, other=80.0)
    assert sorted(way(sku) for sku in found.wrong) == ["other", "plain"]
    assert found.row is None
    assert used() == "plain"


def test_one_candidate_is_not_measured(field):
    field(candidate("plain"))
    (found,) = tuned(plain=1.0)
    assert found == TuneResult(DECODE, found.default, None)
    assert autotune_table.store_here().rows() == ()


def test_a_second_tuning_keeps_the_winner_of_the_first_within_the_margin(field):
    field(candidate("plain"), candidate("other"))
    tuned(plain=100.0, other=90.0)
    tuned(plain=100.0, other=102.0)
    assert used() == "other"
    tuned(plain=100.0, other=105.0)
    assert used() == "plain"


def test_problems_of_one_key_are_measured_once(field):
    field(candidate("plain"), candidate("other"))
    like = DECODE.model_copy(update={"batch_size": 4}).revalidated()
    found = tuned((DECODE, like, decode([1] * 9)[0]), plain=100.0, other=80.0)
    assert [t.reused for t in found] == [False, True, False]
    assert used(like) == "other"


def test_a_workspace_that_does_not_fit_is_told_and_nothing_is_allocated(monkeypatch):
    from types import SimpleNamespace

    from opfacade.tune.tune import _workspace

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
    plan = SimpleNamespace(workspace_size=1001, descriptor=DECODE, sku=SimpleNamespace(id="a/b"))
    with pytest.raises(errors.UnsupportedError, match=r"1001 bytes of workspace, got 1000 that are free. \[OPF-T003\]"):
        _workspace(plan, SimpleNamespace(q=SimpleNamespace(is_cuda=True)))


def test_a_problem_that_nothing_solves_as_required_stops_no_other(field):
    field(candidate("plain"), candidate("other"))
    strict = Work(decode([1] * 20)[0], Preference(require="deterministic"))
    one, two = tuned((strict, DECODE), plain=100.0, other=80.0)
    assert (one.row, one.default, list(one.wrong)) == (None, "", ["select"])
    assert "OPF-S020" in one.wrong["select"]
    assert way(two.row.winner) == "other"


def test_measuring_another_machine_is_refused():
    with pytest.raises(errors.UnsupportedDeviceError, match="OPF-T001"):
        tune([DECODE], SM90)


# -- guarantees --------------------------------------------------------------------------------------------------------


def test_a_choice_never_crosses_what_was_required(field):
    field(candidate("plain", deterministic=True), candidate("loose"), candidate("strict", deterministic=True))
    tuned(plain=100.0, loose=50.0, strict=80.0)
    strict = Preference(autotune="use", require="deterministic")
    assert used() == "loose"
    assert used(prefer=strict) == "strict"
    assert "20.0% faster" in str(explain(DECODE, strict, CPU, in_force(DECODE, strict, CPU)))


def test_what_does_not_keep_the_requirement_is_not_even_measured(field):
    field(candidate("plain", deterministic=True), candidate("loose"), candidate("strict", deterministic=True))
    RAN.clear()
    (found,) = tuned(require="deterministic", plain=100.0, loose=50.0, strict=80.0)
    assert "loose" not in RAN
    assert way(found.row.winner) == "strict"
    assert Require.model_validate_json(found.row.require).deterministic


def test_a_row_of_a_requirement_says_nothing_about_none(field):
    field(candidate("plain", deterministic=True), candidate("strict", deterministic=True))
    tuned(require="deterministic", plain=100.0, strict=80.0)
    assert used() == "plain"
    assert used(prefer=Preference(autotune="use", require="deterministic")) == "strict"


def test_one_problem_under_two_requirements_is_measured_for_each(field):
    field(candidate("plain", deterministic=True), candidate("loose"), candidate("strict", deterministic=True))
    one, two = tuned((Work(DECODE, Preference(require="deterministic")), DECODE), plain=100.0, loose=50.0, strict=80.0)
    assert (one.reused, way(one.row.winner)) == (False, "strict")
    assert (two.reused, way(two.row.winner)) == (False, "loose")


def test_the_requirement_of_a_recording_is_kept(field):
    field(candidate("plain", deterministic=True), candidate("loose"), candidate("strict", deterministic=True))
    work = Work(DECODE, Preference(require="deterministic"))
    (found,) = tuned((work,), plain=100.0, loose=50.0, strict=80.0)
    assert way(found.row.winner) == "strict"


def test_every_other_field_of_a_preference_still_holds(field):
    field(candidate("plain"), candidate("other"), candidate("third"))
    (found,) = tuned(plain=100.0, other=60.0, third=80.0)
    ids = {way(m.sku): m.sku for m in found.row.measured}
    assert used(prefer=Preference(autotune="use", forbid=(ids["other"],))) == "third"
    assert used(prefer=Preference(autotune="use", pin=ids["plain"])) == "plain"
    assert used(prefer=Preference(autotune="use", allow=(ids["plain"], ids["third"]))) == "third"


# -- variants ----------------------------------------------------------------------------------------------------------


def test_a_variant_is_chosen_only_by_a_pin_or_a_measurement(field):
    field(candidate("plain"), candidate("other"))
    ids = {way(o.sku.id): o.sku.id for o in selection.considered(DECODE, USE, CPU)}
    assert [o.name for o in selection.survey(DECODE, Preference(), CPU)] == ["reference/torch"]
    assert used(prefer=Preference(pin=ids["other"])) == "other"
    assert used(prefer=Preference(autotune="use", pin=ids["other"])) == "other"
    assert used(prefer=USE) == "plain"
    for prefer in (Preference(allow=(ids["other"],)), Preference(allow=(ids["other"],), autotune="use")):
        with pytest.raises(errors.UnsupportedError, match="OPF-S015"):
            Plan.select(DECODE, prefer, CPU)


def test_a_locked_fleet_gets_a_measured_variant_that_it_allows(field):
    field(candidate("plain"), candidate("other"))
    (found,) = tuned(plain=100.0, other=80.0)
    assert used(prefer=Preference(allow=(found.row.winner,), autotune="use")) == "other"


# -- lookup ------------------------------------------------------------------------------------------------------------


def test_what_was_not_measured_is_the_default_and_said_so(field):
    field(candidate("plain"), candidate("other"))
    assert used() == "plain"
    assert "was not measured on cpu/" in str(explain(DECODE, USE, CPU, in_force(DECODE, USE, CPU)))
    assert telemetry.counts() == {"tuned_miss": 2}


@pytest.mark.parametrize("part", ["hardware", "toolchain"])
def test_a_row_of_elsewhere_or_of_before_is_not_applied(field, part):
    field(candidate("plain"), candidate("other"))
    (found,) = tuned(plain=100.0, other=80.0)
    store = autotune_table.store_here()
    store.path.unlink()
    store.put([found.row.model_copy(update={part: "something else"})])
    refresh()
    assert used() == "plain"
    counted = "tuned_row_outdated" if part == "toolchain" else "tuned_miss"
    assert telemetry.counts()[counted] == 1


def test_a_corrupt_database_reaches_no_selection(field, tmp_path):
    field(candidate("plain"), candidate("other"))
    (tmp_path / "tune.db").write_bytes(b"rubbish" * 1000)
    descriptor, args = decode([5, 9, 2])
    plan = Plan.select(descriptor, USE, CPU)
    plan.run(args)
    assert way(plan.sku.id) == "plain"
    assert telemetry.counts() == {"tuned_store_corrupt": 1, "tuned_miss": 1}


def test_a_place_that_cannot_be_written_costs_only_what_was_measured(field, monkeypatch):
    field(candidate("plain"), candidate("other"))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", "/proc/nowhere")
    (found,) = tuned(plain=100.0, other=80.0)
    assert way(found.row.winner) == "other"
    assert telemetry.counts()["tuned_store_failed"] == 1


def test_a_plan_selected_before_a_tuning_stays_and_the_next_one_follows_it(field):
    field(candidate("plain"), candidate("other"))
    before = Plan.select(DECODE, USE, CPU)
    tuned(plain=100.0, other=80.0)
    assert (way(before.sku.id), used()) == ("plain", "other")


def test_a_table_that_comes_with_the_package_is_applied_and_overruled_by_ones_own(field, monkeypatch, tmp_path):
    field(candidate("plain"), candidate("other"))
    tuned(plain=100.0, other=80.0)
    export = CliRunner().invoke(main, ["tuned", "export", str(tmp_path / "table.json")])
    assert export.output == f"1 choices in {tmp_path / 'table.json'}\n"
    (tmp_path / "tune.db").unlink()
    package = tmp_path / "package" / "tuned"
    package.mkdir(parents=True)
    (tmp_path / "table.json").rename(package / "here.json")
    (package / "broken.json").write_text("{")
    monkeypatch.setattr(autotune_table, "files", lambda name: package.parent)
    refresh()
    assert used() == "other"
    assert telemetry.counts()["tuned_table_broken"] == 1
    tuned(plain=100.0, other=200.0)
    assert used() == "plain"


def test_hardware_that_is_not_here_is_known_by_architecture_and_size():
    assert autotune_stamp.hardware(SM90) == "sm_90a/132/"
    assert autotune_stamp.holds_for("sm_90a/132/NVIDIA H200", "sm_90a/132/")
    assert not autotune_stamp.holds_for("sm_90a/132/NVIDIA H200", "sm_90a/132/NVIDIA H100")
    assert not autotune_stamp.holds_for("sm_90a/78/NVIDIA H200", "sm_90a/132/")
    assert autotune_stamp.hardware(CPU).startswith("cpu/")


def test_a_kernel_that_was_edited_has_another_toolchain(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(tmp_path))
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.h").write_text("one")
    autotune_stamp.toolchain_of.cache_clear()
    one = autotune_stamp.toolchain_of("cuda")
    (tmp_path / "csrc" / "a.h").write_text("two")
    autotune_stamp.toolchain_of.cache_clear()
    assert autotune_stamp.toolchain_of("cuda") != one
    autotune_stamp.toolchain_of.cache_clear()


# -- lengths, and the clock of the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.op)
def test_every_example_has_lengths_that_fit(example):
    from opfacade.testing import inputs

    found = lengths_of(Work(example))
    rows = getattr(example, "total_num_rows", None)
    if found.q is not None:
        assert sum(found.q) == rows
        assert max(found.q) - min(found.q) <= 1
    args = inputs.make_args(example, 1, "cpu", found)
    Plan.select(example, Preference(backend="reference"), CPU).run(args)


def test_recorded_lengths_are_those_measured():
    found = lengths_of(Work(DECODE, lengths=Lengths(kv=(5, 9, 2))))
    assert (found.q, found.kv) == (None, (5, 9, 2))


def test_the_reference_is_tuned_by_the_clock_of_the_host(field, monkeypatch):
    monkeypatch.setattr("opfacade.tune.measure.time", CLOCK)
    field(candidate("plain", "slow"), candidate("quick"))
    (found,) = tune([DECODE], setup=Setup(effort=MeasureEffort(least=12, most=24)))
    assert way(found.row.winner) == "quick"
    assert found.gain == pytest.approx(0.95)
    assert used() == "quick"


def test_the_command_tunes_lists_exports_and_imports(field, tmp_path, monkeypatch):
    monkeypatch.setattr("opfacade.tune.measure.time", CLOCK)
    field(candidate("plain", "slow"), candidate("quick"))
    path = tmp_path / "works.jsonl"
    path.write_text(DECODE.model_dump_json() + "\n" + next(e for e in examples() if e.op == "merge_states").model_dump_json())
    run = lambda *words: CliRunner().invoke(main, list(map(str, words)))  # noqa: E731
    result = run("tune", path, "--rounds=16")
    assert result.exit_code == 0, result.output
    assert "merge_states: one candidate" in result.output
    assert "2 problems: 1 measured, 1 of them better than the default choice\n" in result.output
    assert re.search(r"mean gain [\d.]+%\n$", result.output)
    assert "way=quick" in run("tuned", "ls").output
    assert run("tuned", "export", tmp_path / "t.json", "--hardware=sm_90a").output.startswith("0 choices")
    run("tuned", "export", tmp_path / "t.json")
    (tmp_path / "tune.db").unlink()
    assert run("tuned", "ls").output.startswith("0 choices")
    assert run("tuned", "import", tmp_path / "t.json").output.startswith("1 choices kept")
    assert used() == "quick"
    facts = json.loads(run("tune", path, "--rounds=16", "--json").stdout)
    assert [bool(f["row"]) for f in facts] == [True, False]
    assert run("tuned", "import", path).exit_code == 2
    (tmp_path / "d.json").write_text(DECODE.model_dump_json())
    assert "torch[quick]" in run("explain", tmp_path / "d.json", "--autotune").output
