"""Lines are written to a file completely or not at all, and writing never blocks."""

import errno
import io
import os
import sys

import pytest

from opfacade.base.line_file import LineFile, Stream


def test_a_file_is_for_its_user_and_named_by_process(tmp_path):
    LineFile(str(tmp_path / "log-%p")).append("x\n")
    path = tmp_path / f"log-{os.getpid()}"
    assert path.read_text() == "x\n"
    assert path.stat().st_mode & 0o777 == 0o600


def fill(file):
    for _ in range(1000):
        file.append("y" * 4000 + "\n")


@pytest.mark.timeout(120)
def test_a_fifo_takes_what_its_reader_has_room_for_and_nothing_waits(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    file = LineFile(str(path))
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        file.append("nobody reads\n")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file.append("one\n")
    with pytest.raises(OSError, match=r"whole line|unavailable"):
        fill(file)
    assert os.read(reader, 4) == b"one\n"
    os.close(reader)


def test_a_full_device_is_an_error():
    with pytest.raises(OSError, match="No space"):
        LineFile("/dev/full").append("x\n")


def test_the_rest_of_a_torn_line_spoils_no_other(tmp_path, monkeypatch):
    file, write = LineFile(str(tmp_path / "log")), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, line: write(handle, line[:3]))
        with pytest.raises(OSError, match="whole line"):
            file.append("first\n")
    file.append("second\n")
    assert (tmp_path / "log").read_text() == "fir\nsecond\n"


def test_a_stream_that_is_closed_or_absent_is_an_error_and_one_in_its_place_is_used(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(OSError, match="stderr is closed"):
        Stream("stderr").append("x\n")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Stream("stderr").append("x\n")
    assert sys.stderr.getvalue() == "x\n"
    sys.stderr.close()
    with pytest.raises(ValueError, match="closed"):
        Stream("stderr").append("x\n")
