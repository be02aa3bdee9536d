"""A signed bundle is imported only if a trusted key signed all of it."""

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from opfacade import errors, jit
from opfacade.cli.main import main
from opfacade.jit import cache
from opfacade.jit.cache import bundle, signature
from tests.jit.conftest import TINY

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen to sign with")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """{name: private key}, and a file that trusts only the key "ours"."""
    folder = tmp_path_factory.mktemp("keys")
    found = {name: folder / name for name in ("ours", "theirs")}
    for name, path in found.items():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
    public = (folder / "ours.pub").read_text()
    (folder / "allowed").write_text(f'builder@example.org namespaces="{signature.NAMESPACE}" {public}')
    (folder / "of_mail").write_text(f'builder@example.org namespaces="mail" {public}')
    return found | {"allowed": folder / "allowed", "of mail alone": folder / "of_mail"}


@pytest.fixture
def signed(toolkit, tmp_path, keys):
    """A bundle that the key "ours" has signed, and an empty cache."""
    jit.build(TINY)
    bundle.export(cache.shared(), tmp_path / "b.tar", sign=keys["ours"])
    for folder in ("obj", "by-source"):
        shutil.rmtree(cache.root() / folder)
    return tmp_path / "b.tar"


def refused(path, trust, match):
    with pytest.raises(errors.CacheIntegrityError, match=match) as caught:
        bundle.import_(cache.shared(), path, trust)
    assert not jit.is_built(TINY)
    return caught.value


def test_a_bundle_of_a_trusted_signer_is_imported(signed, keys):
    assert signature.place(signed).read_text().startswith("-----BEGIN SSH SIGNATURE-----")
    assert bundle.import_(cache.shared(), signed, keys["allowed"]) == [jit.key(TINY)]
    assert jit.is_built(TINY)


def test_verification_returns_the_name_of_the_signer(signed, keys):
    text = signed.read_bytes()[512:]
    manifest = text[: text.index(b"\0")]
    assert signature.require(manifest, signed, keys["allowed"]) == "builder@example.org"


def test_a_bundle_without_a_signature_is_not_imported(signed, keys):
    signature.place(signed).unlink()
    assert refused(signed, keys["allowed"], "b.tar.sig").code == "OPF-J028"


def test_a_bundle_signed_by_an_untrusted_key_is_not_imported(signed, keys, tmp_path):
    shutil.copy(signed, tmp_path / "c.tar")
    text = signed.read_bytes()[512:]
    signature.place(tmp_path / "c.tar").write_bytes(signature.sign(text[: text.index(b"\0")], keys["theirs"]))
    refused(tmp_path / "c.tar", keys["allowed"], "is not signed by a signer in")


def test_a_key_trusted_for_another_purpose_is_not_trusted(signed, keys):
    refused(signed, keys["of mail alone"], "OPF-J028")


def test_the_signature_of_another_bundle_is_refused(signed, keys, tmp_path):
    signature.place(signed).write_bytes(signature.sign(b"{}", keys["ours"]))
    refused(signed, keys["allowed"], "OPF-J028")


@pytest.mark.parametrize("text", [b"opfacade-bundle-1", b"source_digest", b"\x7fELF"], ids=["manifest", "meta.json", "library"])
def test_a_byte_changed_after_signing_is_detected(signed, keys, text):
    data = bytearray(signed.read_bytes())
    data[data.index(text) + 2] ^= 1
    signed.write_bytes(data)
    refused(signed, keys["allowed"], r"OPF-J02[68]")


def test_a_missing_file_of_signers_trusts_no_key(signed, tmp_path):
    refused(signed, tmp_path / "none", "No such file")
    (tmp_path / "empty").write_text("")
    refused(signed, tmp_path / "empty", "OPF-J028")


def test_a_key_that_cannot_sign_writes_no_bundle(toolkit, tmp_path):
    jit.build(TINY)
    (tmp_path / "key").write_text("no key")
    with pytest.raises(errors.CacheError, match="OPF-J027"):
        bundle.export(cache.shared(), tmp_path / "b.tar", sign=tmp_path / "key")
    assert not (tmp_path / "b.tar").exists()


def test_without_ssh_keygen_nothing_is_imported(signed, keys, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(errors.CacheError, match=r"Install OpenSSH.*OPF-J027"):
        bundle.import_(cache.shared(), signed, keys["allowed"])


def test_the_commands_export_and_import_signed_bundles(toolkit, tmp_path, keys):
    jit.build(TINY)
    file = str(tmp_path / "b.tar")
    assert CliRunner().invoke(main, ["cache", "export", file, "--sign", str(keys["ours"])]).exit_code == 0
    shutil.rmtree(cache.root() / "obj")
    shown = CliRunner().invoke(main, ["cache", "import", file, "--trust", str(keys["of mail alone"])])
    assert shown.exit_code != 0
    assert "OPF-J028" in shown.output
    shown = CliRunner().invoke(main, ["cache", "import", file, "--trust", str(keys["allowed"])])
    assert "1 entries imported" in shown.output, shown.output
