"""A bundle brings complete and unchanged kernels to a machine without a compiler, or nothing at all."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from opfacade import errors, jit
from opfacade.jit import cache
from opfacade.jit.cache import bundle, store, upkeep
from tests.jit.conftest import TINY
from tests.support.python_path import python_path

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def packed(toolkit, tiny_built, tmp_path):
    """A bundle with one entry, and an empty cache."""
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
from opfacade.cli.main import main
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
assert jit.load(jit.HOST).cached_launches() == 0
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


def without_network():
    """The command prefix that disables the network, or an empty list if this machine does not permit it."""
    words = [shutil.which("unshare") or "", "-n"]
    return words if words[0] and subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []


def test_a_machine_without_compiler_and_network_runs_what_another_built(built, tmp_path, monkeypatch):
    jit.build_for_plan(built)
    bundle.export(cache.shared(), tmp_path / "b.tar", "sm_90a")
    env = {"PATH": "", "HOME": "/nowhere", "OPFACADE_CACHE_DIR": str(tmp_path / "other"), "PYTHONPATH": python_path(REPO)}
    env["OPFACADE_SOURCE_ROOT"] = os.environ["OPFACADE_SOURCE_ROOT"]
    words = [*without_network(), sys.executable, "-c", ELSEWHERE, tmp_path / "b.tar"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout == "ran\n", done.stderr


def rewrite(path, change):
    """Rewrites the bundle with changed members; `change({name: (TarInfo, bytes)})` edits the dict."""
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
    """Manifest, record and bytes agree, but the entry is stored under another key."""
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


def block(kind, size, data=b"", name="x", pad=True):
    """A header as an attacker may write it, with a right checksum, and the data after it."""
    info = tarfile.TarInfo(name)
    raw = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    raw[124:136], raw[156:157] = size, kind
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw) + data + (b"\0" * (-len(data) % 512) if pad else b"")


def octal(number):
    return b"%011o\0" % number


PAX = b"30 GNU.sparse.map=0,1,2,x,,,,\n"
SPARSE = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n34 GNU.sparse.realsize=" + b"9" * 12 + b"\n"
HOSTILE = {
    "sparse map of no numbers": block(b"x", octal(len(PAX)), PAX) + block(b"0", octal(0)),
    "sparse size beyond memory": block(b"x", octal(len(SPARSE)), SPARSE) + block(b"0", octal(3), b"9\n9"),
    "record length that is no number": block(b"x", octal(9), b"xx path=y") + block(b"0", octal(0)),
    "record length of 0": block(b"x", octal(9), b"0 path=y\n") + block(b"0", octal(0)),
    "record length beyond the header": block(b"x", octal(20), b"999999999 path=y\n\n\n") + block(b"0", octal(0)),
    "size of a record": block(b"x", octal(20), b"20 size=-99999999999\n") + block(b"0", octal(0)),
    "8 GB of pax": block(b"x", octal(2**33 - 1)),
    "8 GB of a long name": block(b"L", octal(2**33 - 1)),
    "8 GB of a file": block(b"0", octal(2**33 - 1), name="manifest.json"),
    "a binary size": block(b"0", b"\x80" + b"\xff" * 11, name="manifest.json"),
    "a negative size": block(b"0", b"\xff" * 12, name="manifest.json"),
    "a size that is no number": block(b"0", b"12345678901x", name="manifest.json"),
    "a size with a sign": block(b"0", b"-0000000001\0", name="manifest.json"),
    "old sparse": block(b"S", octal(512), b"\xff" * 512),
    "global header": block(b"g", octal(9), b"9 a=b\n\n\n\n"),
    "volume": block(b"V", octal(0)),
    "no checksum": b"\xff" * 512,
    "no text in the name": block(b"0", octal(0), name="\udcff"),
    "a manifest of deep JSON": block(b"0", octal(10_000), b"[" * 10_000, name="manifest.json"),
    "a manifest with a name twice": block(b"0", octal(34), b'{"format": "x", "format": "y"}    ', name="manifest.json"),
}


@pytest.mark.parametrize("place", ["alone", "after the manifest"])
@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_header_is_an_unsound_bundle(packed, how, place):
    whole = packed.read_bytes()
    first = 512 + -(-int(whole[124:135], 8) // 512) * 512
    packed.write_bytes((whole[:first] if place == "after the manifest" else b"") + HOSTILE[how] + whole[first:])
    with pytest.raises(errors.CacheIntegrityError, match="not a sound bundle"):
        bundle.import_(cache.shared(), packed)
    assert cache.shared().published() == []


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir], ids=["fifo", "device", "dir"]
)
def test_what_is_no_regular_file_is_no_bundle(toolkit, tmp_path, make):
    make(tmp_path / "b.tar")
    with pytest.raises(errors.CacheError, match="cannot import"):
        bundle.import_(cache.shared(), tmp_path / "b.tar")


def test_random_damage_is_an_unsound_bundle_or_changes_nothing(packed):
    """The damage changes bytes, loses or repeats blocks, or swaps numbers in headers. Every error must be typed, with the
    expected code."""
    whole, key = packed.read_bytes(), jit.key(TINY)
    with tarfile.open(packed) as tar:
        library = tar.extractfile(next(name for name in tar.getnames() if name.endswith(".so"))).read()
    refused = 0
    for seed in range(400):
        packed.write_bytes(damaged(random.Random(seed), whole))
        try:
            bundle.import_(cache.shared(), packed)
        except errors.CacheIntegrityError:
            refused += 1
        assert set(cache.shared().published()) <= {key}
        if cache.shared().published():
            assert cache.valid(key).read_bytes() == library
            shutil.rmtree(cache.root() / "obj")
    assert 200 < refused < 400


def damaged(rng, whole):
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) // 512 or 1) * 512
        what = rng.random()
        if what < 0.3:
            place = at + rng.randrange(512)
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif what < 0.5:
            data[at + 124 : at + 136] = rng.choice((octal(2**33 - 1), b"\x80" + b"\xff" * 11, octal(rng.randrange(5000))))
        elif what < 0.65:
            data[at + 156 : at + 157] = rng.choice((b"x", b"g", b"L", b"S", b"1", b"2", b"5", b"7", b"\0"))
        elif what < 0.75:
            data[at:at] = rng.choice(list(HOSTILE.values()))
        elif what < 0.85:
            del data[at : at + 512]
        elif what < 0.95:
            data[at:at] = data[at : at + 512]
        else:
            del data[at + rng.randrange(512) :]
        if rng.random() < 0.7 and len(data) >= at + 512:  # an attacker also corrects the checksum
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


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
