"""Signatures of bundles by `ssh-keygen -Y`, over the manifest, which contains the digest of every file.

The key is an SSH key; a file of allowed signers lists the trusted keys (`man ssh-keygen`, ALLOWED SIGNERS).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from opfacade.base import regular_files
from opfacade.errors import CacheError, CacheIntegrityError

NAMESPACE = "opfacade-bundle"
_TOOL = "ssh-keygen"
_MAX_BYTES = 1 << 16
_SECONDS = 60.0


def place(bundle: Path) -> Path:
    """The path of a bundle's signature."""
    return bundle.with_name(f"{bundle.name}.sig")


def sign(manifest: bytes, key: Path) -> bytes:
    """The signature of a manifest by a private key, or by the agent for a public key. Raises CacheError if the tool fails."""
    status, signed, why = _run(["sign", "-n", NAMESPACE, "-f", str(key)], manifest)
    if status or not signed:
        raise CacheError(f"bundle: {key} could not sign the bundle: {why}. Pass a private SSH key. [OPF-J027]", code="OPF-J027")
    return signed


def require(manifest: bytes, bundle: Path, signers: Path) -> str:
    """The signer of a manifest, by its name in the file of allowed signers. Raises CacheIntegrityError if none of them signed
    it."""
    try:
        signature, allowed = regular_files.read(place(bundle), _MAX_BYTES), regular_files.read(signers, _MAX_BYTES)
    except OSError as error:
        raise _untrusted(bundle, signers, f"{error.filename or place(bundle)}: {error.strerror}") from error
    with tempfile.TemporaryDirectory(prefix="opfacade-signature-") as folder:  # both are read once
        mine = {name: Path(folder, name) for name in ("signature", "signers")}
        mine["signature"].write_bytes(signature)
        mine["signers"].write_bytes(allowed)
        files = ["-s", str(mine["signature"]), "-f", str(mine["signers"])]
        _, found, why = _run(["find-principals", *files], b"")
        for signer in found.decode(errors="replace").splitlines():
            status, _, why = _run(["verify", *files, "-n", NAMESPACE, "-I", signer], manifest)
            if not status:
                return signer
    raise _untrusted(bundle, signers, why)


def _run(words: Sequence[str], data: bytes) -> tuple[int, bytes, str]:
    """Status, output, and the last line of stderr."""
    try:
        done = subprocess.run([_TOOL, "-Y", *words], input=data, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"bundle: {_TOOL} expected to sign or verify, got {error}. Install OpenSSH 8.2 or later. [OPF-J027]"
        raise CacheError(message, code="OPF-J027") from error
    told = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return done.returncode, done.stdout, told[-1] if told else f"status {done.returncode}"


def _untrusted(bundle: Path, signers: Path, why: str) -> CacheIntegrityError:
    message = f"{bundle} is not signed by a signer in {signers}: {why.rstrip('.')}. Nothing was imported. [OPF-J028]"
    return CacheIntegrityError(message, code="OPF-J028")
