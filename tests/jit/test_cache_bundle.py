"""A bundle brings kernels to a machine that can build none, whole and unchanged, or brings nothing."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from opfacade import errors, jit
from opfacade.jit import bundle, cache, store, upkeep

from .conftest import TINY

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def packed(toolkit, tmp_path):
    """A bundle with one entry, and an empty cache in force."""
    jit.build(TINY)
    bundle.export(cache.shared(), tmp_path / "b.tar")
    shutil.rmtree(cache.root() / "obj")
    shutil.rmtree(cache.root() / "by-source")
    return tmp_path / "b.tar"


def test_the_same_entries_make_the_same_bundle(toolkit, tmp_path):
    jit.build(TINY)
    jit.build(type(TINY).of("tiny", "testing/tiny", "sm_90a", value=1))
    for name in "ab":
        assert len(bundle.export(cache.shared(), tmp_path / name)) == 2
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert len(bundle.export(cache.shared(), tmp_path / "c", "sm_90a")) == 1
    assert {p.name for p in tmp_path.iterdir() if p.name.startswith(".")} == set()


def test_a_broken_entry_is_not_exported(toolkit, tmp_path):
    so = jit.build(TINY)
    so.write_bytes(so.read_bytes()[:-1])
    assert bundle.export(cache.shared(), tmp_path / "b") == []


def test_an_imported_entry_is_the_exported_one(packed):
    assert bundle.import_(cache.shared(), packed) == [jit.key(TINY)]
    assert jit.is_built(TINY)
    assert bundle.import_(cache.shared(), packed) == []
    assert upkeep.verify(cache.shared()) == {}


ELSEWHERE = """
import sys
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "socket.connect") else None)
from click.testing import CliRunner
from opfacade.cli import main
result = CliRunner().invoke(main, ["cache", "import", sys.argv[1]])
assert result.exit_code == 0 and "entries imported" in result.output, result.output
from opfacade import errors, jit
from opfacade.jit import cache, toolchain
toolchain._nvidia_packages, toolchain._DEFAULT = list, toolchain.Path("/nowhere/nvcc")
try:
    toolchain.find(cache.toolchain_memo())
    raise SystemExit("a compiler was found")
except errors.ToolchainError:
    pass
import torch
scale = jit.JitSpec.of("scale", "testing/scale", "sm_90a", threads=256)
module = jit.load(scale)
try:
    module.run(torch.ones(4), torch.ones(4), 2.0)
    raise SystemExit("a CPU tensor was taken")
except ValueError as error:
    assert "[OPF-C004]" in str(error), error
try:
    jit.load(jit.JitSpec.of("scale", "testing/scale", "sm_80", threads=256))
    raise SystemExit("something was built")
except errors.ToolchainError:
    pass
assert started == [], started
print("ran")
"""


def test_a_machine_without_compiler_and_network_runs_what_another_built(built, tmp_path, monkeypatch):
    jit.build(built)
    bundle.export(cache.shared(), tmp_path / "b.tar", "sm_90a")
    env = {"PATH": "", "HOME": "/nowhere", "OPFACADE_CACHE_DIR": str(tmp_path / "other"), "PYTHONPATH": str(REPO)}
    env["OPFACADE_SOURCE_ROOT"] = os.environ["OPFACADE_SOURCE_ROOT"]
    words = [shutil.which("unshare"), "-n"] if os.geteuid() == 0 and shutil.which("unshare") else []
    done = subprocess.run(
        [*words, sys.executable, "-c", ELSEWHERE, tmp_path / "b.tar"], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "ran\n", done.stderr


def rewrite(path, change):
    """The bundle with its members changed: `change({name: (TarInfo, bytes)})` edits the dict."""
    with tarfile.open(path) as tar:
        members = {m.name: (m, tar.extractfile(m).read()) for m in tar}
    members = change(members) or members
    with tarfile.open(path, "w:") as tar:
        for info, data in members.values() if isinstance(members, dict) else members:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))


def library(members):
    return next(name for name in members if name.endswith(".so"))


def flip(members):
    info, data = members[library(members)]
    members[info.name] = info, data[:-1] + bytes([data[-1] ^ 1])


def longer(members):
    info, data = members[library(members)]
    members[info.name] = info, data + b"x"


def drop(members):
    del members[library(members)]


def link(kind):
    def change(members):
        info, data = members[library(members)]
        info.type, info.linkname = kind, "/etc/passwd"
        members[info.name] = info, data

    return change


def stranger(name):
    def change(members):
        members[name] = tarfile.TarInfo(name), b"x"

    return change


def twice(members):
    return [*members.values(), members[library(members)]]


def late(members):
    return list(reversed(members.values()))


def manifest(edit):
    def change(members):
        info, data = members["manifest.json"]
        told = json.loads(data)
        members["manifest.json"] = info, json.dumps(edit(told) or told).encode()

    return change


def rename_key(told):
    (own,) = told["entries"].values()
    told["entries"] = {"../" + "a" * 61: own}


def rename_file(told):
    (own,) = told["entries"].values()
    own["../../x"] = own.pop("meta.json")


def huge(told):
    (own,) = told["entries"].values()
    own["meta.json"] = [1 << 60, own["meta.json"][1]]


def other_key(members):
    """Everything agrees, but the entry is filed under another key than its own."""
    info, data = members["manifest.json"]
    told = json.loads(data)
    ((key, own),) = told["entries"].items()
    renamed = {"manifest.json": (info, json.dumps({**told, "entries": {"0" * 64: own}}).encode())}
    for name, (member, content) in members.items():
        if name.startswith(key):
            member.name = name.replace(key, "0" * 64)
            renamed[member.name] = member, content
    return renamed


BAD = {
    "flipped": flip, "longer": longer, "missing": drop, "symlink": link(tarfile.SYMTYPE), "hard link": link(tarfile.LNKTYPE),
    "device": link(tarfile.CHRTYPE), "fifo": link(tarfile.FIFOTYPE), "sparse": link(tarfile.GNUTYPE_SPARSE),
    "traversal": stranger("../../evil"), "absolute": stranger("/tmp/evil"), "extra": stranger("extra"), "twice": twice,
    "late manifest": late, "key": manifest(rename_key), "file": manifest(rename_file), "huge": manifest(huge),
    "format": manifest(lambda told: told.update(format="x")), "list": manifest(lambda told: [1]), "other key": other_key,
    "no entries": manifest(lambda told: {"format": told["format"]}),
}  # fmt: skip


@pytest.mark.parametrize("how", BAD)
def test_a_bundle_that_is_not_as_it_says_brings_nothing(packed, how, tmp_path):
    rewrite(packed, BAD[how])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(errors.CacheIntegrityError, match="not a sound bundle"):
        bundle.import_(cache.shared(), packed)
    assert cache.shared().published() == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 700, 5000])
def test_a_truncated_bundle_brings_nothing(packed, cut):
    packed.write_bytes(packed.read_bytes()[:cut])
    with pytest.raises(errors.CacheIntegrityError):
        bundle.import_(cache.shared(), packed)
    assert cache.shared().published() == []


def test_a_bundle_that_is_not_there_keeps_its_errno(packed, tmp_path):
    with pytest.raises(errors.CacheError) as caught:
        bundle.import_(cache.shared(), tmp_path / "none")
    assert caught.value.errno == 2


def test_a_broken_entry_is_replaced_by_an_imported_one(packed):
    bundle.import_(cache.shared(), packed)
    so = cache.valid(jit.key(TINY))
    so.write_bytes(b"")
    assert bundle.import_(cache.shared(), packed) == [jit.key(TINY)]
    assert cache.valid(jit.key(TINY)) == so


def test_two_hundred_entries_do_not_slow_a_load_without_compiler(packed, monkeypatch):
    bundle.import_(cache.shared(), packed)
    so = cache.valid(jit.key(TINY))
    meta = json.loads((so.parent / "meta.json").read_text())
    for number in range(200):
        key = f"{number:064x}"
        copy = cache.shared().entry(key)
        shutil.copytree(so.parent, copy)
        (copy / "meta.json").write_text(json.dumps({**meta, "key": key, "portable": key}))
        (copy / "meta.json").chmod(0o600)
        cache.shared()._hint(key, key)
    monkeypatch.setenv("OPFACADE_NVCC", "/nowhere/nvcc")
    found = []
    for _ in range(5):
        started = time.process_time()
        assert jit.build(TINY) == so
        found.append(time.process_time() - started)
    assert min(found) < 0.02
    assert len(store.Store(cache.shared().base).published()) == 201
