"""Dumps on disk; tests/tools/test_replay.py tests their replay."""

import json
import os
import stat

import pytest
import torch

from opfacade import Plan, Target, errors
from opfacade.observe import call_pages, dump_files, dumps
from opfacade.plans.cascade import EXAMPLES
from tests.observe.test_call_pages import tensors_of
from tests.support.problems import append, decode


@pytest.fixture(autouse=True)
def _room(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    monkeypatch.setattr(dump_files, "_used", [0, 0])


def dumper_of(descriptor):
    return dumps.Dumper.of(descriptor, Plan.select(descriptor, target=Target.cpu()).sku)


TENSORS = {"states_o": torch.arange(8.0).view(2, 4).t()}


@pytest.fixture
def place():
    return dumper_of(EXAMPLES[0]).begin(TENSORS, 7, None).place


def test_what_is_saved_is_read_back(place):
    dumper_of(EXAMPLES[0]).finish(dumps.Started(place, None), {"o": torch.ones(2)})
    found = dumps.load(place)
    assert torch.equal(found.inputs["states_o"], torch.arange(8.0).view(2, 4).t())
    assert torch.equal(found.outputs["o"], torch.ones(2))
    assert (found.device, dumps.find(place.parent), dumps.find(place)) == ("cpu", (place,), (place,))


def test_a_dump_belongs_to_its_user_whatever_the_umask(monkeypatch):
    before = os.umask(0)
    try:
        place = dumper_of(EXAMPLES[0]).begin(TENSORS, 7, None).place
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}


def test_a_process_with_the_same_id_and_call_gets_a_directory_of_its_own():
    names = {dumper_of(EXAMPLES[0]).begin(TENSORS, 7, None).place.name for _ in range(3)}
    assert len(names) == 3
    assert {name.rpartition("-")[0] for name in names} == {f"{os.getpid()}-000007"}


@pytest.mark.parametrize("problem", [decode([9, 0, 30]), append([2, 3], [9, 6], page_table="block")])
def test_a_dump_keeps_only_the_pages_that_a_call_names(problem):
    descriptor, args = problem
    tensors, dumper = tensors_of(args), dumper_of(descriptor)
    pages = call_pages.pages(descriptor, tensors)
    found = dumps.load(dumper.begin(tensors, 0, pages).place)
    kept = pages.ids.numel()
    assert kept < descriptor.paged_kv.num_total_pages
    assert found.inputs["k_data"].shape[0] == json.loads(found.descriptor)["paged_kv"]["num_total_pages"] == kept
    name = call_pages.table_name(descriptor)
    assert torch.equal(found.inputs[name], call_pages.renumbered(tensors[name], pages))
    read = found.inputs[name][found.inputs[name] >= 0]
    assert sorted(set(read.tolist())) == list(range(kept))
    assert json.loads((found.place / "call.json").read_text())["pages"] == pages.ids.tolist()
    assert json.loads(found.descriptor)["max_kv_indices"] == descriptor.paged_kv.num_total_pages
    size = sum(t.nbytes for t in found.inputs.values())
    written = [name for name, spec in descriptor.operands().items() if spec.written]
    assert dump_files._used == [1, size + sum(found.inputs[name].nbytes for name in written)]


@pytest.mark.parametrize(("more", "narrowed"), [({}, False), ({"max_kv_indices": 99}, True)])
def test_a_pool_stays_whole_where_its_size_may_not_be_the_bound_of_the_call(more, narrowed):
    """Requests that share pages name more entries than the pool has pages: only the descriptor's own bound limits them."""
    descriptor, _ = decode([6, 8], **more)
    ids = torch.arange(4)
    many = call_pages.Pages(ids, ids + 1, torch.ones(2, descriptor.paged_kv.num_total_pages, dtype=torch.bool))
    few = call_pages.Pages(ids, ids + 1, torch.ones(2, 2, dtype=torch.bool))
    assert dumps._narrowable(descriptor, many) is narrowed
    assert dumps._narrowable(descriptor, few) is True
    assert dumps._narrowable(descriptor, None) is False


def test_a_dump_that_fails_leaves_nothing_and_takes_no_room(monkeypatch, tmp_path):
    def fail(*given):
        raise RuntimeError("no space")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="no space"):
        dumper_of(EXAMPLES[0]).begin(TENSORS, 0, None)
    assert list((tmp_path / "dumps").iterdir()) == []
    assert dump_files._used == [0, 0]


def test_a_limit_is_told_by_its_name(monkeypatch):
    monkeypatch.setenv("OPFACADE_DUMP_MAX_COUNT", "1")
    dumper = dumper_of(EXAMPLES[0])
    dumper.begin(TENSORS, 0, None)
    with pytest.raises(OSError, match="OPFACADE_DUMP_MAX_COUNT=1 is used up"):
        dumper.begin(TENSORS, 1, None)


def test_a_dump_saves_elements_and_not_the_storage_behind_a_view():
    place = dumper_of(EXAMPLES[0]).begin({"states_o": torch.zeros(1 << 20)[:4]}, 0, None).place
    assert (place / "inputs.pt").stat().st_size < 10_000


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", '{"sku": "x", "device": "cpu"}', "[" * 9999, '{"a": 1, "a": 2}'])
def test_a_damaged_dump_is_an_error_of_ours(place, text):
    (place / "call.json").write_text(text)
    with pytest.raises(errors.ArgumentError, match="OPF-E010"):
        dumps.load(place)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["call.json", "inputs.pt", "outputs.pt"])
def test_a_fifo_in_place_of_a_file_is_refused_at_once(place, name):
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    with pytest.raises(errors.ArgumentError, match=r"not a regular file.*OPF-E010"):
        dumps.load(place)


@pytest.mark.parametrize("content", [[1, 2], {"x": 3}, {7: torch.ones(1)}, None])
def test_a_file_of_something_else_is_no_dump(place, content):
    torch.save(content, place / "inputs.pt")
    with pytest.raises(errors.ArgumentError, match="OPF-E010"):
        dumps.load(place)
