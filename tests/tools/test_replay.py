"""Calls dumped by OPFACADE_LOG=dump, run again and judged."""

import contextlib
import json
import random

import pytest
import torch
from click.testing import CliRunner

from opfacade import errors
from opfacade import plan as plans
from opfacade.cli.main import main
from opfacade.observe import dump_files
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.select.registry import examples
from opfacade.testing.inputs import make_args
from opfacade.testing.matrix import matrix
from opfacade.testing.problems import random_descriptor, special_descriptor
from opfacade.testing.subject import Subject
from opfacade.tools.replay import Replayed, replay
from tests.support.accepted import accepted
from tests.support.problems import decode

OPS = sorted({d.op for d in examples()})


@pytest.fixture
def dumped(monkeypatch, tmp_path):
    """Run one call of an op while it is dumped; the directory."""
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    monkeypatch.setattr(plans, "_selected", {})
    monkeypatch.setattr(dump_files, "_used", [0, 0])

    def make(op, descriptor=None, device="cpu"):
        descriptor = descriptor or random_descriptor(op, 1, tokens=200)
        plans.Plan.select(descriptor).run(make_args(descriptor, seed=1, device=device))
        monkeypatch.delenv("OPFACADE_LOG")
        plans._selected.clear()
        return tmp_path / "dumps"

    return make


@pytest.mark.parametrize("op", OPS)
def test_a_dumped_call_runs_again_to_the_same_bits_within_the_bound(dumped, op):
    (call,) = replay(dumped(op))
    assert call.same
    assert call.sound
    assert call.dumped_worst == call.worst
    assert call.sku == call.dumped_sku


@pytest.mark.parametrize("make", [random_descriptor, special_descriptor])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["paged_prefill", "paged_decode", "paged_kv_append", "mla_decode"])
def test_a_call_on_a_pool_that_was_made_small_runs_to_the_same_bits(dumped, op, seed, make):
    (call,) = replay(dumped(op, make(op, seed, tokens=300)))
    assert call.same
    assert call.sound
    assert call.dumped_worst == call.worst


@pytest.mark.gpu
@pytest.mark.parametrize("kind", matrix())
def test_kernels_replay_to_the_same_bits(dumped, monkeypatch, kind):
    descriptor = matrix()[kind]
    accepted(Subject(descriptor, "cuda", "cuda"))
    place = dumped("", descriptor, device="cuda")
    (call,) = replay(place)
    assert call.same
    assert call.sound
    assert call.sku == call.dumped_sku


def test_a_wrong_output_in_a_dump_is_told(dumped):
    place = dumped("paged_decode")
    (path,) = place.glob("*/outputs.pt")
    outputs = torch.load(path, weights_only=True)
    outputs["o"] += 1
    torch.save(outputs, path)
    (call,) = replay(place)
    assert not call.same
    assert call.sound
    assert call.dumped_worst > 1


@pytest.mark.parametrize("name", ["o", "lse"])
def test_one_output_of_other_bits_is_another_result(dumped, name):
    place = dumped("paged_decode", decode([6, 3])[0])
    (path,) = place.glob("*/outputs.pt")
    outputs = torch.load(path, weights_only=True)
    assert list(outputs) == ["o", "lse"]
    outputs[name].view(torch.int16)[..., -1] += 1
    torch.save(outputs, path)
    (call,) = replay(place)
    assert call.same is False


def test_a_state_that_was_overwritten_is_judged_by_what_it_was(dumped):
    merge = MergeStatesDescriptor(num_states=3, total_num_rows=5, num_heads=2, head_dim=64, dtype="f32", in_place=True)
    (call,) = replay(dumped("", merge))
    assert call.same
    assert call.worst <= 1
    assert call.dumped_worst <= 1


@pytest.mark.parametrize(
    ("worst", "sound"), [(0.0, True), (1.0, True), (1.01, False), (float("inf"), False), (float("nan"), False)]
)
def test_a_call_is_sound_within_its_bound(tmp_path, worst, sound):
    assert Replayed(tmp_path, "", "", True, worst, None, "").sound is sound


def test_a_dump_of_a_crash_has_no_outputs_and_still_runs(dumped):
    place = dumped("paged_decode")
    next(place.glob("*/outputs.pt")).unlink()
    (call,) = replay(place)
    assert (call.same, call.dumped_worst, call.sound) == (None, None, True)


def test_what_is_no_dump_is_refused(tmp_path):
    with pytest.raises(errors.ArgumentError, match=r"OPF-E010"):
        replay(tmp_path)
    (tmp_path / "call.json").write_text("{}")
    with pytest.raises(errors.ArgumentError, match=r"OPF-E010"):
        replay(tmp_path)


def test_the_command_prints_one_line_a_call(dumped):
    result = CliRunner().invoke(main, ["replay", str(dumped("merge_states")), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["same"] is True


@pytest.mark.parametrize("device", ["bogus", "meta:x", "cuda:99"])
def test_a_device_that_is_not_here_is_an_error_of_ours(dumped, device):
    with pytest.raises(errors.ArgumentError, match="replay: device expected one of this machine"):
        replay(dumped(OPS[0]), device)


@pytest.mark.parametrize("name", ["inputs.pt", "outputs.pt"])
def test_a_damaged_dump_is_an_error_of_ours(dumped, name):
    place = dumped(OPS[0])
    (path,) = place.glob(f"*/{name}")
    for damaged in (b"", b"x", path.read_bytes()[:-200], path.read_bytes()[:300]):
        path.write_bytes(damaged)
        with pytest.raises(errors.ArgumentError, match="expected a dump"):
            replay(place)


@pytest.mark.parametrize("name", ["inputs.pt", "outputs.pt"])
def test_nothing_but_errors_of_ours_leaves_whatever_byte_is_wrong(dumped, name):
    place, rng = dumped("paged_decode", decode([6, 3])[0]), random.Random(name)
    (path,) = place.glob(f"*/{name}")
    whole = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(errors.OpfacadeError):
            replay(place)


@pytest.mark.parametrize(("name", "operand"), [("inputs.pt", "q"), ("outputs.pt", "o")])
def test_a_dump_without_an_operand_or_of_another_shape_is_refused(dumped, name, operand):
    place = dumped("paged_decode")
    (path,) = place.glob(f"*/{name}")
    whole = torch.load(path, weights_only=True)
    for change in ({operand: whole[operand][:0]}, {operand: whole[operand].double()}, None):
        torch.save(whole | change if change else {n: t for n, t in whole.items() if n != operand}, path)
        with pytest.raises(errors.OpfacadeError, match=r"OPF-(E010|A0)"):
            replay(place)


def test_a_report_beyond_all_bounds_is_valid_json(dumped, monkeypatch):
    place = dumped("paged_decode")
    (path,) = place.glob("*/outputs.pt")
    torch.save({n: torch.full_like(t, float("nan")) for n, t in torch.load(path, weights_only=True).items()}, path)
    output = CliRunner().invoke(main, ["replay", str(place), "--json"]).output
    assert json.loads(output, parse_constant=pytest.fail)["dumped_worst"] == "Infinity"
