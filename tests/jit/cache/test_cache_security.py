"""Hostile and careless directories: files that other users could replace are refused, and planted files are never loaded."""

import json
import os
import shutil
import stat

import pytest
from click.testing import CliRunner

from opfacade import errors, jit
from opfacade.cli.main import main
from opfacade.jit import cache
from opfacade.jit.cache import files, locks, store, upkeep
from opfacade.jit.rendered import FOLDER
from opfacade.tools import warmup
from tests.jit.conftest import TINY

OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def published(tiny_built):
    """The directory of a published entry."""
    return tiny_built.parent


def refused(match):
    return pytest.raises(errors.CacheSecurityError, match=match)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o702])
@pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["shard", "obj", "v1", "base"])
def test_a_directory_that_others_can_write_is_refused_with_a_chmod_command(published, level, mode):
    exposed = published.parents[level]
    exposed.chmod(mode)
    with refused(f"chmod go-w {exposed}") as caught:
        jit.build(TINY)
    assert (caught.value.errno, caught.value.filename) == (1, str(exposed))
    exposed.chmod(0o700)
    assert jit.is_built(TINY)


def test_a_parent_that_others_can_write_is_refused_unless_it_is_sticky(published, tmp_path):
    tmp_path.chmod(0o777)
    with refused("OPF-J023"):
        jit.build(TINY)
    tmp_path.chmod(0o1777)
    assert jit.build(TINY).parent == published


@as_root
@pytest.mark.parametrize("level", [1, 3], ids=["obj", "base"])
def test_a_directory_of_another_user_is_refused(published, level):
    os.chown(published.parents[level], OTHER, OTHER)
    with refused(f"belongs to uid {OTHER}"):
        jit.build(TINY)


def test_a_shared_cache_can_be_trusted_explicitly(published, monkeypatch):
    published.parents[3].chmod(0o777)
    monkeypatch.setenv("OPFACADE_ALLOW_SHARED_CACHE", "1")
    assert jit.build(TINY).parent == published


def plant(published, content=b"\x7fELF planted"):
    """Plants an entry that is consistent with itself but not with the build."""
    import hashlib

    digest = hashlib.sha256(content).hexdigest()
    meta = json.loads((published / "meta.json").read_text())
    (published / meta["so"]).unlink()
    meta |= {"so": f"kernel-{digest[:16]}.so", "size": len(content), "sha256": digest}
    (published / meta["so"]).write_bytes(content)
    (published / "meta.json").write_text(json.dumps(meta))
    return published / meta["so"], published / "meta.json"


@as_root
@pytest.mark.parametrize("which", [0, 1], ids=["library", "meta"])
def test_a_planted_entry_of_another_user_is_set_aside(published, which):
    before = jit.build(TINY).read_bytes()
    os.chown(plant(published)[which], OTHER, OTHER)
    assert jit.build(TINY).read_bytes() == before


@pytest.mark.parametrize("which", [0, 1], ids=["library", "meta"])
def test_a_planted_entry_that_others_can_write_is_set_aside(published, which):
    before = jit.build(TINY).read_bytes()
    plant(published)[which].chmod(0o666)
    assert jit.build(TINY).read_bytes() == before


def test_an_entry_copied_to_another_key_is_never_loaded(published):
    other = type(TINY).of("tiny", "testing/tiny", "sm_80", value=43)
    place = cache.entry(jit.key(other))
    cache.make_private(place.parent)
    shutil.copytree(published, place)
    assert not jit.is_built(other)
    assert jit.load(other) is not jit.load(TINY)
    assert jit.build(other).read_bytes() != jit.build(TINY).read_bytes()


@pytest.mark.parametrize("part", ["v1", "v1/obj", "v1/tmp", "v1/locks", "shard"])
def test_a_symbolic_link_to_a_directory_is_refused(toolkit, part, tmp_path):
    """The target of the link, a canary, is neither written nor emptied."""
    base = tmp_path / "cache"
    link = base / (f"v1/obj/{jit.key(TINY)[:2]}" if part == "shard" else part)
    shutil.rmtree(base, ignore_errors=True)
    cache.make_private(link.parent)
    (tmp_path / "canary").mkdir()
    link.symlink_to(tmp_path / "canary")
    with refused("symbolic link"):
        jit.build(TINY)
    assert list((tmp_path / "canary").iterdir()) == []


@pytest.mark.parametrize("what", ["entry", "library", "meta"])
def test_a_symbolic_link_to_an_entry_is_rebuilt_and_its_target_is_unchanged(published, what, tmp_path):
    so = jit.build(TINY)
    link = {"entry": published, "library": so, "meta": published / "meta.json"}[what]
    canary = tmp_path / "canary"
    link.rename(canary)
    link.symlink_to(canary)
    before = sorted((p.name, p.read_bytes()) for p in ([canary] if canary.is_file() else canary.iterdir()))
    assert jit.build(TINY) == so
    assert not link.is_symlink()
    assert sorted((p.name, p.read_bytes()) for p in ([canary] if canary.is_file() else canary.iterdir())) == before


def test_a_symbolic_link_to_a_lock_is_refused_and_its_target_is_unchanged(toolkit, tmp_path):
    canary, lock = tmp_path / "canary", cache.root() / "locks" / f"{jit.key(TINY)}.lock"
    canary.write_text("precious")
    cache.make_private(lock.parent)
    lock.symlink_to(canary)
    with pytest.raises(errors.CacheError, match="cannot lock"):
        jit.build(TINY)
    assert canary.read_text() == "precious"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
@pytest.mark.parametrize("what", ["library", "meta", "entry"])
def test_an_irregular_file_in_an_entry_neither_blocks_nor_is_read(published, what, kind):
    so = jit.build(TINY)
    place = {"entry": published, "library": so, "meta": published / "meta.json"}[what]
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if kind == "directory":
        place.mkdir()
    else:
        os.mknod(place, stat.S_IFIFO | 0o600 if kind == "fifo" else stat.S_IFSOCK | 0o600)
    assert jit.build(TINY) == so


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "device"])
def test_an_irregular_file_does_not_block_a_scan_of_the_cache(published, make):
    """Each scan reads the file at this path, and could wait for a writer or read forever."""
    other = cache.shared().entry("f" * 64)
    cache.make_private(other)
    make(other / "meta.json")
    cache.toolchain_memo().unlink(missing_ok=True)
    make(cache.toolchain_memo())
    for path in [*(cache.root() / FOLDER).iterdir()]:
        path.unlink()
        make(path)
    assert cache.find("0" * 64, lambda meta: True) is None
    assert "f" * 64 in upkeep.verify(cache.shared())
    assert {entry.key for entry in upkeep.entries(cache.shared())} == {jit.key(TINY), "f" * 64}
    assert warmup._expectation([TINY])(TINY) > 0
    assert jit.is_built(TINY)
    assert locks.holder(other / "meta.json") == "an unknown process"


HOSTILE_META = {
    "deep": "[" * 100_000,
    "a list": "[]",
    "a name twice": '{"key": 1, "key": 2}',
    "resources": '{"resources": {"k": 1, "l": {"registers": "many"}}, "seconds": 1e308, "spec": "[0, [0]]"}',
    "long seconds": '{"seconds": ' + "9" * 40 + ', "spec": "[0, 0]"}',
    "digits": '{"seconds": ' + "9" * 400 + "}",
    "spec": '{"seconds": 1, "spec": "' + "[" * 100_000 + '"}',
}


@pytest.mark.parametrize("text", HOSTILE_META.values(), ids=HOSTILE_META)
def test_any_content_of_a_record_does_not_stop_a_scan_of_the_cache(published, text):
    other = cache.shared().entry("f" * 64)
    cache.make_private(other)
    files.write_private(other / "meta.json", text.encode())
    assert cache.find("0" * 64, lambda meta: True) is None
    assert "f" * 64 in upkeep.verify(cache.shared())
    assert warmup._expectation([TINY])(TINY) > 0
    result = CliRunner().invoke(main, ["cache", "ls", "--resources"])
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize(
    "facts", [{"resources": {"k": 1, "l": {"registers": "many", "shared": 7}}}, {"resources": [1]}, {"seconds": "x"}]
)
def test_invalid_counts_in_a_record_are_not_shown(published, facts):
    meta = published / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | facts))
    result = CliRunner().invoke(main, ["cache", "ls", "--resources"])
    assert result.exit_code == 0, result.exception
    assert "1 entries" in result.output


def test_a_fifo_for_a_lock_is_refused(toolkit):
    lock = cache.root() / "locks" / f"{jit.key(TINY)}.lock"
    cache.make_private(lock.parent)
    os.mkfifo(lock)
    with refused("not a regular file"):
        jit.build(TINY)


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o027, 0o022])
def test_file_modes_do_not_depend_on_the_umask(toolkit, umask):
    old = os.umask(umask)
    try:
        so = jit.build(TINY)
    finally:
        os.umask(old)
    made = [so.parent, *so.parent.parents][:5]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in so.parent.iterdir()} == {0o600}


def test_a_forged_hint_is_checked_like_any_entry(published, monkeypatch):
    """The index of a machine without a compiler may be forged; the entry that it names is checked like any other."""
    (hints,) = (cache.root() / "by-source").iterdir()
    for name in ("../../../etc", "x" * 64, "0" * 64):
        if "/" not in name:
            (hints / name).touch()
    monkeypatch.setenv("OPFACADE_NVCC", "/nowhere/nvcc")
    assert jit.build(TINY).parent == published
    shutil.rmtree(hints.parent)
    assert jit.build(TINY).parent == published
    assert store.examine(published, jit.source_digest(TINY)).library is None
