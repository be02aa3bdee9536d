"""Random problems as users might write them are built, failures and slow code are counted, and a sample of each engine
compiles.
"""

import json
import time

import pytest

from bench import device_builds, random_builds, strangers
from bench.device_builds import Built, DeviceBuilds
from opfacade import Preference, Target, explain
from opfacade.backends.cuda import ptxas
from opfacade.core.joined import JoinedArgs
from opfacade.jit import toolchain
from opfacade.jit.spec import JitSpec
from opfacade.select.registry import examples
from tests.jit.conftest import TINY, make_root
from tests.jit.slow_sources import SPILLS

FOREVER = time.monotonic() + 1e6


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return toolchain.find(tmp_path_factory.mktemp("memo") / "toolchain.json")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(make_root(tmp_path / "root")))
    return tmp_path / "root/csrc/testing/tiny.cu.jinja"


@pytest.mark.parametrize("engine", strangers.ENGINES)
def test_a_seed_says_all_of_a_problem_and_another_seed_says_another(engine):
    drawn = [strangers.draw(engine, seed) for seed in range(12)]
    assert drawn == [strangers.draw(engine, seed) for seed in range(12)]
    assert len(set(drawn)) > 6
    assert {one.op for one in drawn} <= set(strangers.ENGINES[engine])


def test_what_a_compiler_refuses_is_a_failure_in_its_words(tools, source):
    source.write_text("__global__ void k() { no_such_name = 1; }\n")
    built = DeviceBuilds(tools).build(TINY, FOREVER)
    assert 'identifier "no_such_name" is undefined' in built.failure


def test_slow_code_is_named(tools, source):
    source.write_text(SPILLS)
    (found,) = DeviceBuilds(tools).build(TINY, FOREVER).findings
    assert (found.name, found.kernel) == ("spills", "tiny")


def test_a_source_is_built_once_for_each_architecture_and_not_after_the_deadline(tools, source):
    builds, other = DeviceBuilds(tools), JitSpec(TINY.name, TINY.template, TINY.params, "sm_90a")
    assert [builds.claim(TINY), builds.claim(TINY), builds.claim(other)] == [True, False, True]
    assert builds.build(TINY, time.monotonic()) is None


def test_the_architectures_of_nvcc_are_those_of_devices(tools):
    found = device_builds.architectures(tools)
    assert {"sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a", "sm_121a"} <= set(found)
    assert "sm_75" not in found


@pytest.mark.parametrize(("built", "status"), [(Built(), 0), (Built("error: no"), 1)])
def test_a_failure_is_the_status_and_in_the_record(tools, tmp_path, monkeypatch, capsys, built, status):
    monkeypatch.setattr(DeviceBuilds, "build", lambda self, spec, deadline: built)
    place = tmp_path / "record.json"
    assert random_builds.main(["--engine", "softmax", "--count", "5", "--jobs", "1", "--out", str(place)]) == status
    (toolkit,) = json.loads(place.read_text())["toolkits"]
    tally = toolkit["engines"]["softmax sm_90a"]
    assert (tally["drawn"], tally["failed"]) == (5, tally["sources"] * status)
    assert "| softmax | sm_90a | 5 |" in capsys.readouterr().out


def test_each_compiler_has_a_record(tmp_path, monkeypatch):
    """Each --nvcc has a record, even if two name the same compiler: such a path may be a wrapper script."""
    monkeypatch.setattr(DeviceBuilds, "build", lambda self, spec, deadline: Built())
    monkeypatch.setenv("OPFACADE_NVCC", "")
    nvcc, place = str(toolchain.find(tmp_path / "toolchain.json").nvcc), tmp_path / "record.json"
    random_builds.main(["--engine", "softmax", "--count", "3", "--jobs", "1", "--nvcc", nvcc, nvcc, "--out", str(place)])
    first, second = json.loads(place.read_text())["toolkits"]
    assert first["engines"] == second["engines"]
    assert first["engines"]["softmax sm_90a"]["sources"] > 0


def test_another_compiler_is_asked_what_it_can_build(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_NVCC", "")
    for release in ("12.9", "13.5"):
        program = tmp_path / release / "bin/nvcc"
        program.parent.mkdir(parents=True)
        program.write_bytes(b"\x7fELF")
        program.chmod(0o755)
        (program.parent / "ptxas").write_bytes(f"V{release}.0\0".encode())
        builds = DeviceBuilds.by(str(program))
        assert builds.tools.home == tmp_path / release
        assert bool(ptxas.reasons()) == (release == "12.9")
    ptxas.release.cache_clear()


def test_every_op_that_compiles_belongs_to_an_engine():
    """Ops over several ranks belong to no engine, because they have no kernel."""
    alone = {example.op for example in examples() if issubclass(example.args_type, JoinedArgs)}
    assert {one.op for one in examples()} - alone == {op for ops in strangers.ENGINES.values() for op in ops}


@pytest.mark.parametrize("engine", strangers.ENGINES)
def test_a_problem_of_each_engine_builds(tools, engine):
    """Only one for each engine; `python -m bench.random_builds` builds thousands."""
    drawn = (strangers.draw(engine, seed) for seed in range(7, 99))
    chosen = (explain(one, Preference(backend="cuda"), Target.parse("sm_90a")) for one in drawn)
    found = next((one for one in chosen if one.chosen and one.chosen.candidate.jit_specs(one.descriptor, one.target)), None)
    if found is None and ptxas.reasons():
        pytest.skip("this ptxas is too old for any kernel of this engine")
    spec = found.chosen.candidate.jit_specs(found.descriptor, found.target)[0]
    assert DeviceBuilds(tools).build(spec, FOREVER).failure == ""
