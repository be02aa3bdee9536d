"""A file that transfers compiled kernels to a machine without compiler or network.

It is an uncompressed tar file: first `manifest.json` with the size and SHA-256 of every file, then the files. Digests detect
damage, not malice: a kernel is code, so import only bundles from trusted sources or signed ones (`signature`); a signature of
the manifest covers everything. Reading an invalid bundle is harmless: no header is trusted (`ustar`), and no file is read
beyond its size in the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import uuid
from pathlib import Path
from typing import Any

from opfacade.base import regular_files, strict_json
from opfacade.errors import CacheError, CacheIntegrityError
from opfacade.jit.cache import files, signature, ustar
from opfacade.jit.cache.store import KEY, Store, examine
from opfacade.jit.spec import HOST_ARCH

FORMAT = "opfacade-bundle-1"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_BUNDLE_BYTES = 1 << 40
_LOCK_SECONDS = 60.0

Digest = tuple[int, str]
Manifest = dict[str, dict[str, Digest]]


def export(store: Store, path: Path, arch: str | None = None, sign: Path | None = None) -> list[str]:
    """Write all intact entries to the bundle `path`, atomically. Returns their keys.

    arch: only entries of this architecture, and libraries without device code. sign: an SSH key; the signature is written to
    `<path>.sig`.
    """
    store.require_private()
    keys = [key for key in store.published() if _wanted(store, key, arch)]
    content = {key: _content(store.entry(key)) for key in keys}
    manifest = _manifest(content)
    signed = None if sign is None else signature.sign(manifest, sign)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with tarfile.open(aside, "x:", format=tarfile.USTAR_FORMAT) as tar:
            _add(tar, _MANIFEST, manifest)
            for key, own in content.items():
                for name, data in own.items():
                    _add(tar, f"{key}/{name}", data)
        files.fsync(aside)
        aside.replace(path)
        if signed is not None:
            signature.place(path).write_bytes(signed)
    except OSError as error:
        raise CacheError.of(f"cannot write {path}: {error.strerror}. [OPF-J020]", error) from error
    finally:
        aside.unlink(missing_ok=True)
    return keys


def import_(store: Store, path: Path, trust: Path | None = None) -> list[str]:
    """Publish all entries of a bundle after checking the whole bundle. Returns the keys that are new.

    trust: a file of allowed signers, one of whom must have signed the bundle. Raises CacheIntegrityError and publishes nothing
    if none has signed it, or if any byte, path, size or file type differs from the manifest.
    """
    files.make_private(store.root)
    try:
        with store.staging() as place, regular_files.open_regular(path, _MAX_BUNDLE_BYTES) as file:
            tar = ustar.Reader(file)
            text = _manifest_text(tar, path)
            if trust is not None:
                signature.require(text, path, trust)
            manifest = _read_manifest(text, path)
            _unpack(tar, manifest, place, path)
            metas = {key: _examined(place / key, key, path) for key in manifest}
            return [key for key, meta in metas.items() if _publish(store, key, place / key, str(meta.get("portable", "")))]
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    except CacheError:
        raise
    except OSError as error:
        raise CacheError.of(f"cannot import {path}: {error.strerror}. [OPF-J020]", error) from error


def architectures(store: Store) -> list[str]:
    """Architectures of the kernels in a store, sorted."""
    found = {examine(store.entry(key), key).meta.get("arch") for key in store.published()}
    return sorted(str(arch) for arch in found - {HOST_ARCH, None})


def _wanted(store: Store, key: str, arch: str | None) -> bool:
    found = examine(store.entry(key), key)
    return found.library is not None and (arch is None or found.meta.get("arch") in (arch, HOST_ARCH))


def _content(directory: Path) -> dict[str, bytes]:
    return {path.name: files.read_private(path) for path in sorted(directory.iterdir()) if _NAME.fullmatch(path.name)}


def _manifest(content: dict[str, dict[str, bytes]]) -> bytes:
    listed = {key: {name: _digest(data) for name, data in own.items()} for key, own in content.items()}
    return json.dumps({"format": FORMAT, "entries": listed}, indent=1, sort_keys=True).encode()


def _digest(data: bytes) -> Digest:
    return len(data), hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no owner and no time, so that equal entries give equal bundles
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


def _manifest_text(tar: ustar.Reader, path: Path) -> bytes:
    member = tar.next()
    if member is None or member.name != _MANIFEST or member.size > _MAX_MANIFEST_BYTES:
        raise _damaged(path, "it does not begin with a manifest")
    return tar.read(member)


def _read_manifest(text: bytes, path: Path) -> Manifest:
    try:
        told = strict_json.loads(text)
        if told["format"] != FORMAT:
            raise _damaged(path, f"format {FORMAT} expected, got {str(told['format'])[:40]!r}")
        return {key: _listed(path, key, own) for key, own in told["entries"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its manifest is invalid: {error}") from error


def _listed(path: Path, key: str, own: dict[str, Any]) -> dict[str, Digest]:
    for name, (size, digest) in own.items():
        sound = KEY.fullmatch(key) and _NAME.fullmatch(name) and KEY.fullmatch(digest)
        if not sound or type(size) is not int or not 0 <= size <= files.MAX_BYTES:
            raise _damaged(path, f"its manifest lists {key[:80]!r}/{name[:80]!r}")
    return {name: (size, digest) for name, (size, digest) in own.items()}


def _unpack(tar: ustar.Reader, manifest: Manifest, place: Path, path: Path) -> None:
    todo = {f"{key}/{name}": digest for key, own in manifest.items() for name, digest in own.items()}
    for key in manifest:
        os.mkdir(place / key, 0o700)
    while (member := tar.next()) is not None:
        # Only names in the manifest are joined to a path, each once.
        wanted = todo.pop(member.name, None)
        if wanted is None or member.size != wanted[0]:
            raise _damaged(path, f"{member.name[:200]!r} differs from the manifest")
        data = tar.read(member)
        if _digest(data) != wanted:
            raise _damaged(path, f"{member.name}: sha256 {wanted[1]} expected, {_digest(data)[1]} read")
        files.write_private(place / member.name, data)
    if todo:
        raise _damaged(path, f"{min(todo)} is missing")


def _examined(directory: Path, key: str, path: Path) -> dict[str, Any]:
    found = examine(directory, key)
    if found.library is None:
        raise _damaged(path, f"entry {key} is incomplete: {found.why}")
    return found.meta


def _publish(store: Store, key: str, built: Path, portable: str) -> bool:
    with store.lock(key, _LOCK_SECONDS):
        if store.valid(key):
            return False
        store.quarantine(key)
        for file in built.iterdir():
            files.fsync(file)
        store.adopt(key, built, portable)
        return True


def _damaged(path: Path, why: str) -> CacheIntegrityError:
    return CacheIntegrityError(f"{path} is not a sound bundle: {why}. Nothing was imported; copy it again. [OPF-J026]")
