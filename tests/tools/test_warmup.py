"""Ahead-of-time builds: what is built, that it is built once and reported, and the error of a plan that must not build."""

import json

import pytest
from click.testing import CliRunner

from opfacade import Plan, Preference, Target, errors, explain, jit
from opfacade.cli.main import main
from opfacade.jit import cache
from opfacade.select.registry import examples
from opfacade.tools.warmup import read_descriptors, warmup

SM90, SM80 = Target.parse("sm_90a"), Target.parse("sm_80")
CUDA = Preference(backend="cuda")
SMALL = [d for d in examples() if d.op in ("merge_states", "paged_kv_append") and explain(d, CUDA, SM90).chosen is not None]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A cache with the small operators built, and the reports of these builds."""
    place, told = tmp_path_factory.mktemp("warm"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_CACHE_DIR", str(place))
        steps = warmup([*SMALL, SMALL[0]], SM90, jobs=2, report=told.append)
    return place, steps, told


@pytest.fixture
def warm_cache(warmed, monkeypatch):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(warmed[0]))


def test_each_binary_is_built_once_and_reported_twice(warmed):
    _, steps, told = warmed
    specs = {Plan.select(d, target=SM90).jit_spec for d in SMALL}
    assert [step.state for step in steps] == ["built"] * len(specs)
    assert sorted(step.state for step in told) == ["build"] * len(specs) + ["built"] * len(specs)
    assert all(step.expected_seconds > 0 and step.sku for step in told)


def test_what_is_built_is_found(warm_cache):
    steps = warmup(SMALL, SM90)
    assert {step.state for step in steps} == {"cached"}
    assert all(jit.is_built(Plan.select(d, target=SM90).jit_spec) for d in SMALL)


def test_expected_seconds_come_from_builds_of_the_same_kind(warm_cache, monkeypatch):
    monkeypatch.setattr(jit, "build", lambda *args, **facts: None)
    taken = [json.loads(path.read_text()) for path in (cache.root() / "obj").glob("*/*/meta.json")]
    seconds = [facts["seconds"] for facts in taken if facts["name"] == "merge_states"]
    (step,) = warmup([d for d in SMALL if d.op == "merge_states"][:1], SM80)
    assert min(seconds) <= step.expected_seconds <= max(seconds)


def test_a_failure_stops_no_other_and_is_kept(warm_cache, monkeypatch):
    def build(spec, **facts):
        raise errors.CompileError("broken")

    monkeypatch.setattr(jit, "build", build)
    steps = warmup(SMALL, SM80, jobs=1)
    assert {(step.state, str(step.error)) for step in steps} == {("failed", "broken")}


def test_nothing_is_built_for_the_reference():
    assert warmup(SMALL, Target.cpu()) == ()


def test_a_plan_that_must_not_build_says_how_to_prebuild(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    plan = Plan.select(SMALL[0], Preference(jit="never"), SM90)
    with pytest.raises(errors.JitDisabledError) as caught:
        plan.compile()
    for part in (jit.key(plan.jit_spec), "plan.compile()", "opfacade warmup FILE", str(tmp_path)):
        assert part in str(caught.value)
    (step,) = warmup(SMALL[:1], SM90, Preference(jit="never"))
    assert isinstance(step.error, errors.JitDisabledError)


def test_a_plan_that_must_not_build_finds_what_was_prebuilt(warm_cache):
    Plan.select(SMALL[0], Preference(jit="never"), SM90).compile()


@pytest.mark.parametrize("form", ["lines", "array", "one"])
def test_descriptors_are_read_from_lines_an_array_or_one_object(form):
    texts = [d.model_dump_json() for d in SMALL]
    text = {"lines": "\n".join(texts) + "\n\n", "array": f"[{','.join(texts)}]", "one": texts[0]}[form]
    assert list(read_descriptors(text)) == (SMALL[:1] if form == "one" else SMALL)


def test_an_entry_that_is_no_descriptor_is_named():
    with pytest.raises(errors.DescriptorError, match=r"entry 2: .*OPF-D020"):
        read_descriptors(SMALL[0].model_dump_json() + "\n{}\n")


def test_the_command_writes_log_lines_where_there_is_no_terminal(warm_cache, tmp_path):
    path = tmp_path / "descriptors.jsonl"
    path.write_text("\n".join(d.model_dump_json() for d in SMALL))
    result = CliRunner().invoke(main, ["warmup", str(path), "--target=sm_90a", "--jobs=2"])
    assert result.exit_code == 0
    *lines, last = result.stdout.splitlines()
    assert all(line.startswith("cached  ") for line in lines)
    assert last.startswith(f"0 built, {len(lines)} cached, 0 failed in ")


def test_the_command_fails_when_a_build_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OPFACADE_DISABLE_JIT", "1")
    result = CliRunner().invoke(main, ["warmup", "-", "--target=sm_90a"], input=SMALL[0].model_dump_json())
    assert result.exit_code == 1
    assert "build   cascade/merge_states" in result.output
    assert "[OPF-J040]" in result.output
