"""Files of dumps: limits that all threads share, and files that are complete or absent."""

import os
import threading

import pytest
import torch

from opfacade.observe import dump_files
from opfacade.observe.dump_files import Limits


@pytest.fixture(autouse=True)
def _room(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "deep" / "dumps"))
    monkeypatch.setattr(dump_files, "_used", [0, 0])


def test_threads_together_take_no_more_than_there_is():
    limits, taken = Limits(50, 10**6), []

    def work():
        for _ in range(20):
            try:
                limits.take(1)
                taken.append(1)
            except OSError:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(taken) == 50


def test_megabytes_are_those_of_all_dumps_together():
    limits = Limits(100, 3)
    limits.take(2_000_000)
    with pytest.raises(OSError, match="OPFACADE_DUMP_MAX_MB=3 does not permit 1000001 more bytes"):
        limits.take(1_000_001)
    limits.take(1_000_000)


def _interrupted(content, file):
    """As by Ctrl-C, whichever handler the process has."""
    file.write(b"half")
    raise KeyboardInterrupt


def test_a_file_is_there_in_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            dump_files.save(path, {})
    assert list(tmp_path.iterdir()) == []
    dump_files.save(path, {"x": torch.ones(2)})
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_a_link_that_lies_in_wait_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".x").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        dump_files.write(tmp_path / "x", b"theirs")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_directory_of_a_name_nobody_foresees_is_made_with_its_parents(tmp_path):
    made = []
    for _ in range(2):
        with dump_files.new_directory("op-", Limits(9, 9), 1) as place:
            made.append(place)
    assert made[0] != made[1]
    assert {place.stat().st_mode & 0o777 for place in made} == {0o700}
    assert os.stat(made[0].parent).st_mode & 0o777 == 0o700


class Runs:
    """A pickle that creates a directory when it is loaded."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_file_of_tensors_runs_no_code(tmp_path):
    torch.save({"q": Runs(tmp_path / "made")}, tmp_path / "inputs.pt")
    with pytest.raises(dump_files.UNREADABLE):
        dump_files.load(tmp_path / "inputs.pt", "cpu")
    assert not (tmp_path / "made").exists()
