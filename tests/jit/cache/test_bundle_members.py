"""No entry of a bundle is published if any member differs from its manifest. These tests need no compiler."""

import io
import json
import tarfile

import pytest

from opfacade import errors
from opfacade.jit.cache import bundle, files
from opfacade.jit.cache.store import Store
from tests.jit.cache.test_store import KEYS, published

KEY, OTHER = KEYS[0], KEYS[1]


@pytest.fixture
def contents(tmp_path):
    """(name, bytes) of every member of a valid bundle with one entry; the manifest is the first member."""
    tmp_path.chmod(0o700)
    place = Store(tmp_path / "here")
    published(place, KEY)
    bundle.export(place, tmp_path / "sound.tar")
    with tarfile.open(tmp_path / "sound.tar") as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]


def packed(path, members, **kinds):
    """A tar of these members. `kinds` contains types of some members, by the last part of their names."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            info.type = kinds.get(name.rpartition("/")[2].partition(".")[0].partition("-")[0], tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(data))
    return path


def manifest_of(members, change):
    told = json.loads(members[0][1])
    change(told)
    return [("manifest.json", json.dumps(told).encode()), *members[1:]]


def refused(tmp_path, path, match="not a sound bundle"):
    place = Store(tmp_path / "there")
    with pytest.raises(errors.CacheIntegrityError, match=match):
        bundle.import_(place, path)
    return place.published() == [] and not (place.root / "obj").exists() and list((place.root / "tmp").iterdir()) == []


def test_the_same_members_are_a_sound_bundle(contents, tmp_path):
    assert bundle.import_(Store(tmp_path / "there"), packed(tmp_path / "b.tar", contents)) == [KEY]


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"7", b"x"]
)
@pytest.mark.parametrize("name", ["kernel", "meta", "manifest"])
def test_a_member_that_is_no_regular_file_is_refused(contents, tmp_path, name, kind):
    """The size, digest and checksum are right; only the member type is wrong."""
    assert refused(tmp_path, packed(tmp_path / "b.tar", contents, **{name: kind}))


def resized(members, index, data):
    return [*members[:index], (members[index][0], data), *members[index + 1 :]]


@pytest.mark.parametrize(
    "change", [lambda data: data + b"\0", lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:]]
)
@pytest.mark.parametrize("index", [1, 2])
def test_a_member_of_other_bytes_is_refused(contents, tmp_path, index, change):
    name, data = contents[index]
    assert refused(tmp_path, packed(tmp_path / "b.tar", resized(contents, index, change(data))), name)


def test_a_member_of_another_size_is_refused_before_it_is_read(contents, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        bundle.ustar.Reader,
        "read",
        lambda self, member, old=bundle.ustar.Reader.read: (read.append(member.name), old(self, member))[1],
    )
    assert refused(tmp_path, packed(tmp_path / "b.tar", resized(contents, 1, b"x" * 10**6)))
    assert read == ["manifest.json"]


@pytest.mark.parametrize("size", [files.MAX_BYTES + 1, 2**63, -1, True, 4.0, "4", None])
def test_a_size_that_is_none_or_too_large_is_refused(contents, tmp_path, size):
    def change(told):
        own = told["entries"][KEY]
        name = next(name for name in own if name.startswith("kernel-"))
        own[name][0] = size

    assert refused(tmp_path, packed(tmp_path / "b.tar", manifest_of(contents, change)), "its manifest")


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", ".x", "x..y", ""])
def test_a_name_that_is_no_plain_one_is_refused(contents, tmp_path, name):
    def change(told):
        told["entries"][KEY][name] = bundle._digest(b"x")

    members = [*manifest_of(contents, change), (f"{KEY}/{name}", b"x")]
    assert refused(tmp_path, packed(tmp_path / "b.tar", members), "its manifest lists")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("key", ["..", "../../x", KEY[:-1], KEY.upper(), ""])
def test_a_key_that_is_none_is_refused(contents, tmp_path, key):
    def change(told):
        told["entries"][key] = {"file": bundle._digest(b"x")}

    members = [*manifest_of(contents, change), (f"{key}/file", b"x")]
    assert refused(tmp_path, packed(tmp_path / "b.tar", members), "its manifest lists")


def test_members_that_are_missing_twice_or_of_no_manifest_are_refused(contents, tmp_path):
    for number, members in enumerate((contents[:-1], [*contents, contents[-1]], [*contents, ("x", b"")], contents[1:], [])):
        assert refused(tmp_path, packed(tmp_path / f"{number}.tar", members))


def test_another_format_is_refused(contents, tmp_path):
    assert refused(
        tmp_path,
        packed(tmp_path / "b.tar", manifest_of(contents, lambda told: told.update(format="opfacade-bundle-2"))),
        "format",
    )


def test_a_manifest_that_is_too_large_is_not_read(contents, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_MAX_MANIFEST_BYTES", 100)
    assert refused(tmp_path, packed(tmp_path / "b.tar", contents), "begin with a manifest")


def test_an_entry_that_is_not_whole_is_refused_though_its_digests_are_right(contents, tmp_path):
    """meta.json and the manifest agree with the bytes, but the record belongs to another key."""
    index = next(i for i, (name, _) in enumerate(contents) if name.endswith("meta.json"))
    data = json.dumps(json.loads(contents[index][1]) | {"key": OTHER}).encode()

    def change(told):
        told["entries"][KEY]["meta.json"] = bundle._digest(data)

    members = manifest_of(resized(contents, index, data), change)
    assert refused(tmp_path, packed(tmp_path / "b.tar", members), "is incomplete")


def test_a_header_with_a_wrong_sum_is_refused(contents, tmp_path):
    path = packed(tmp_path / "b.tar", contents)
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # the mode field, which no other check reads
    path.write_bytes(data)
    assert refused(tmp_path, path, "header is damaged")


def test_a_file_that_ends_without_an_end_is_refused(contents, tmp_path):
    path = packed(tmp_path / "b.tar", contents)
    data = path.read_bytes()
    end = len(data.rstrip(b"\0")) + 511 & -512
    path.write_bytes(data[:end])
    assert refused(tmp_path, path, "the end is missing")


def test_a_file_that_only_the_manifest_has_is_missing(contents, tmp_path):
    """The library and the record exist, so a check of the entry alone would pass."""

    def change(told):
        told["entries"][KEY]["build.log"] = bundle._digest(b"log")

    assert refused(tmp_path, packed(tmp_path / "b.tar", manifest_of(contents, change)), "build.log is missing")
