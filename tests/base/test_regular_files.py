"""Only regular files are read, up to a size limit; everything else is an OSError immediately."""

import errno
import io
import os
import threading

import pytest

from opfacade.base import regular_files


def refused(path, **how):
    """The errno of a refusal. A read that waits for a writer would exceed the time limit."""
    found = []

    def read():
        try:
            regular_files.read(path, **how)
        except OSError as error:
            found.append(error.errno)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert found, f"reading {path!r} gave something or hangs"
    return found[0]


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert regular_files.read(path, 5) == b"12345"
    assert refused(path, most=4) == errno.EFBIG


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    assert refused(tmp_path / "fifo") == errno.EINVAL
    assert refused(tmp_path / "link") == errno.EINVAL
    assert refused("/dev/full") == errno.EINVAL
    assert refused("/dev/zero") == errno.EINVAL
    assert refused(tmp_path) == errno.EISDIR
    assert refused(tmp_path / "absent") == errno.ENOENT
    assert refused("a\0b") == errno.EINVAL
    assert refused("half \ud800") == errno.EINVAL


def test_a_size_is_looked_at_before_a_byte_is_read(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    for look in (regular_files.open_regular, regular_files.require_regular, regular_files.read):
        with pytest.raises(OSError, match="larger than") as caught:
            look(path)
        assert caught.value.errno == errno.EFBIG


def test_a_link_is_followed_unless_told_otherwise(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert regular_files.read(tmp_path / "link") == b"x"
    with pytest.raises(OSError, match="not a regular file"):
        regular_files.open_regular(tmp_path / "link", follow=False)


def test_a_stream_without_a_size_is_read_up_to_its_bound():
    assert regular_files.read_bounded(io.BytesIO(b"123"), 3) == b"123"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        regular_files.read_bounded(io.BytesIO(b"123"), 2)


def test_a_regular_file_is_told_from_what_is_none(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    assert regular_files.is_regular(tmp_path / "file")
    assert not any(map(regular_files.is_regular, (tmp_path / "fifo", tmp_path, tmp_path / "absent", "a\0b")))
