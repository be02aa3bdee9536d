"""The page of reliability agrees with the records, and names the records that are older than the kernels."""

import json
import shutil
from types import MappingProxyType, SimpleNamespace

import pytest

from bench import reliability, shortfalls
from opfacade.jit import codegen
from opfacade.tools import kernel_digests
from opfacade.tools.verify import seal

MACHINE = {"device": "GPU", "torch": "2", "date": "2026-01-02"}
OF_A_COMMIT = MACHINE | {"commit": "0123abc"}
RECORDS = {
    "suite.json": {
        "machine": MACHINE,
        "seconds": 7,
        "counts": {"passed": 3, "failure": 1},
        "random_problems": {"op": {"problems": 2, "elements": 1000, "worst_over_hard": 0.5, "worst_over_tight": 0.25}},
        "shown": ["run_to_run decode runs=1000 different=0"],
        "not_passed": ["x: failure"],
    },
    "evidence.json": {
        "machine": MACHINE,
        "date": "2026-01-02T03:04:05Z",
        "random_problems": [],
        "skus": [{"sku": "s", "ok": False, "tried": {"run_to_run": {"runs": 5, "different": 1}}}],
    },
    "sanitize.json": {
        "machine": MACHINE, "kinds": ["a"], "seeds": 2, "tools": [{"tool": "memcheck", "result": "clean", "seconds": 3}],
    },
    "invariance.json": {"machine": MACHINE, "shapes": [{"shape": "q", "best_invariant": 512, "cost": 1.25}]},
    "mutation.json": {"gpu": {"machine": MACHINE, "mutants": [{"fault": "f", "caught_by": ""}]}},
}  # fmt: skip
RECORDS["evidence.json"]["sha256"] = seal(RECORDS["evidence.json"])
PROVING = {  # records that prove their claims
    "suite.json": RECORDS["suite.json"] | {"counts": {"passed": 3}, "not_passed": [], "ran_to_its_end": True},
    "sanitize.json": RECORDS["sanitize.json"] | {
        "tools": [{"tool": tool, "result": "clean", "seconds": 3} for tool in sorted(shortfalls.TOOLS)],
    },
    "invariance.json": RECORDS["invariance.json"],
    "mutation.json": {"mutants": [{"fault": "f", "caught_by": "test", "blind": ""}]},
}  # fmt: skip
CODE = {"sku a": "a" * 64, "sku b": "b" * 64}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    for name, content in RECORDS.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_every_record_has_its_section_with_date_and_machine(results):
    text = reliability.page()
    assert text.count("GPU, torch 2, commit not recorded; 2026-01-02") == 5
    for words in (
        "3 passed, 0 skipped, 1 failure, 0 error",
        "- `x: failure`",
        "1,000 | 0.500 | 0.250",
        "runs=1000 different=0",
        "0 of 1 SKUs held",
        "1 of 5 differ",
    ):
        assert words in text, words
    assert "**no**" in text
    assert "| memcheck | clean | 3 |" in text
    assert "| q | 512 | x1.250 |" in text
    assert "- missed: f" in text
    assert "No record yet of faults planted in Python" in text


def test_what_has_no_record_is_said(results):
    for path in results.glob("*.json"):
        path.unlink()
    text = reliability.page()
    assert text.count("No record yet") == len(reliability.SECTIONS)
    assert "SKUs held" not in text


def test_a_run_that_was_cut_off_is_told_as_one(results):
    cut = RECORDS["suite.json"] | {"machine": MACHINE | {"date": "2026-02-02"}, "ran_to_its_end": False}
    (results / "suite.json").write_text(json.dumps(cut))
    assert "in 7 s, when it was cut off." in reliability.page()


def test_a_record_may_say_how_it_came_about(results):
    noted = RECORDS["suite.json"] | {"note": "Two processes, one after the other."}
    (results / "suite.json").write_text(json.dumps(noted))
    assert "Two processes, one after the other." in reliability.page().splitlines()


@pytest.fixture
def kernels(monkeypatch):
    """The current kernels, which a test may change."""
    found = dict(CODE)
    monkeypatch.setattr(kernel_digests, "present", lambda arch="sm_90a": MappingProxyType(found))
    return found


def proven(**codes):
    rows = [{"sku": sku, "ok": True, "tried": {}, "code": code} for sku, code in ({**CODE, **codes}).items() if code]
    facts = {"machine": OF_A_COMMIT, "date": "2026-01-02T03:04:05Z", "effort": {"quick": False}}
    record = facts | {"random_problems": [], "skus": rows}
    return record | {"sha256": seal(record)}


def write_all(results, evidence):
    """Records of every section, of the present kernels."""
    for name, content in PROVING.items():
        sound = content | {"machine": OF_A_COMMIT, "kernels": kernel_digests.stamp()}
        sound = dict.fromkeys(("gpu", "cpu", "host"), sound) if name == "mutation.json" else sound
        (results / name).write_text(json.dumps(sound))
    (results / "evidence.json").write_text(json.dumps(evidence))


@pytest.fixture
def checked(results, kernels, monkeypatch):
    """The lines that `--check` prints."""
    monkeypatch.setattr(shortfalls, "classes", lambda: {"a": SimpleNamespace(op="op")})
    monkeypatch.setattr(shortfalls, "planted", lambda device: frozenset({"f"}))
    return reliability.faults


def test_check_passes_where_every_record_is_of_the_present_kernels(results, checked):
    write_all(results, proven())
    assert checked() == []
    assert f"kernels {kernel_digests.stamp()['digest'][:12]}" in reliability.page()
    assert "older" not in reliability.page()


def test_a_kernel_that_changed_makes_every_record_of_kernels_older(results, checked, kernels):
    write_all(results, proven())
    kernels["sku b"] = "c" * 64
    found = checked()
    kinds = ("evidence", "invariance", "mutation", "mutation", "mutation", "sanitize", "suite")
    assert sorted(line.split()[0] for line in found) == sorted(f"{kind}.json" for kind in kinds)
    text = reliability.page()
    assert text.count("older than the kernels") == len(reliability.SECTIONS)
    assert "older than the kernels: SKUs in it have other code now." in " ".join(text.split())
    assert "(0 of 2 missing, 1 of other code)" in "".join(found)
    assert "| `sku a` |  | yes | aaaaaaaaaaaa |" in text
    assert "| `sku b` |  | yes | **older** |" in text


def test_a_sku_that_is_not_proven_and_one_that_is_no_longer_selected_are_told(results, checked, kernels):
    write_all(results, proven())
    kernels["sku c"] = kernels.pop("sku a")
    text = reliability.page()
    assert "older than the kernels: SKUs that are selected now are not in it." in " ".join(text.split())
    assert "(1 of 2 missing, 0 of other code)" in "".join(checked())
    assert "| `sku a` |  | yes | **not selected now** |" in text


def test_a_record_that_names_no_kernels_is_older(results, checked):
    write_all(results, proven())
    (results / "suite.json").write_text(json.dumps(PROVING["suite.json"] | {"machine": OF_A_COMMIT}))
    (found,) = checked()
    assert found.startswith("suite.json (suite) is older than the kernels: it does not name those that it is of")


def test_a_changed_proof_is_told_and_fails_the_check(results, checked):
    evidence = proven()
    evidence["skus"][0]["ok"] = False
    write_all(results, evidence)
    assert "changed after it was written" in checked()[0]
    assert "**This record is changed after it was written" in reliability.page()


def test_a_missing_record_fails_the_check(results, checked):
    write_all(results, proven())
    (results / "sanitize.json").unlink()
    assert checked() == [f"no record of {reliability.MISSING['sanitize']}"]


def test_a_comment_ages_nothing_and_code_does(tmp_path, monkeypatch):
    for name in ("kernels", "csrc"):
        shutil.copytree(codegen.source_root() / name, tmp_path / name)
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(tmp_path))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    header = tmp_path / "kernels/cascade/merge_states.cuh"
    before, text = kernel_digests.present.__wrapped__(), header.read_text()
    header.write_text("// words\n" + text)
    assert kernel_digests.present.__wrapped__() == before
    header.write_text(text + "struct More {};\n")
    after = kernel_digests.present.__wrapped__()
    assert {sku.split("/")[1] for sku in before if before[sku] != after[sku]} == {"merge_states"}
    assert before.keys() == after.keys()
    assert not kernel_digests.is_present({"arch": "sm_90a", "skus": len(before), "digest": "0" * 64})


def sealed(record, **changes):
    changed = {name: value for name, value in (record | changes).items() if name != "sha256"}
    return changed | {"sha256": seal(changed)}


SHORT = {
    "a test that failed": ("suite", {"counts": {"passed": 2, "failure": 1}}, "1 tests failed"),
    "an error": ("suite", {"counts": {"error": 2}}, "2 tests failed"),
    "a run that was cut off": ("suite", {"ran_to_its_end": False}, "the run was cut off"),
    "no random problems": ("suite", {"random_problems": {}}, "it lacks random problems of op"),
    "no commit": ("suite", {"machine": MACHINE}, "it does not name its commit"),
    "a SKU that did not hold": ("evidence", {"skus": [{"ok": True}, {"ok": False}]}, "1 of 2 SKUs did not hold"),
    "a wrong random problem": ("evidence", {"random_problems": [{"ok": False}]}, "1 of 1 random problems did not hold"),
    "a wrong function": ("evidence", {"exhaustive": [{"ok": False}]}, "1 of 1 functions did not hold"),
    "a quick proof": ("evidence", {"effort": {"quick": True}}, "the proof is a quick one"),
    "a tool with errors": (
        "sanitize", {"tools": [{"tool": tool, "result": "exit 99"} for tool in shortfalls.TOOLS]}, "memcheck said exit 99",
    ),
    "a tool too few": (
        "sanitize", {"tools": [{"tool": "memcheck", "result": "clean"}]}, "it lacks a run of initcheck, racecheck, synccheck",
    ),
    "a class too few": ("sanitize", {"kinds": []}, "it lacks classes of SKU: a"),
    "no shapes": ("invariance", {"shapes": []}, "no shape was timed"),
    "a fault that was missed": (
        "mutation gpu", {"mutants": [{"fault": "f", "caught_by": "", "blind": ""}]}, "1 faults were not caught",
    ),
    "a fault too few": ("mutation host", {"mutants": [], "listed": 0}, "it lacks faults: f"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "told"), SHORT.values(), ids=SHORT)
def test_a_record_that_proves_less_than_its_claim_is_told(kind, changes, told, checked):
    sound = PROVING.get(f"{kind.split()[0]}.json", proven()) | {"machine": OF_A_COMMIT}
    assert shortfalls.shortfalls(kind, sound) == []
    assert any(told in line for line in shortfalls.shortfalls(kind, sound | changes))


def test_a_missed_fault_with_a_reason_is_no_shortfall(checked):
    blind = {"machine": OF_A_COMMIT, "mutants": [{"fault": "f", "caught_by": "", "blind": "no GPU stores so late"}]}
    assert shortfalls.shortfalls("mutation cpu", blind) == []


def test_the_check_and_the_page_tell_of_a_shortfall(results, checked):
    write_all(results, sealed(proven(), effort={"quick": True}))
    assert checked() == ["evidence.json (evidence) proves less than it should: the proof is a quick one"]
    assert "**This record proves less than it should: the proof is a quick one.**" in reliability.page()


def test_a_proof_without_its_seal_is_told(results, checked):
    write_all(results, {name: value for name, value in proven().items() if name != "sha256"})
    assert "changed after it was written" in checked()[0]


def test_the_classes_and_the_faults_of_today_are_those_of_their_lists():
    assert "decode-auto" in shortfalls.classes()
    assert all(shortfalls.planted(device) for device in ("cpu", "gpu", "host"))
