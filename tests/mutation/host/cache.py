"""Faults in the cache on disk: entries, locks, modes, syncs, upkeep, bundles."""

from tests.mutation.mutant import host

STORE, FILES, LOCKS, UPKEEP = "jit/cache/store.py", "jit/cache/files.py", "jit/cache/locks.py", "jit/cache/upkeep.py"
BUNDLE, TAR, STALE, CACHE = "jit/cache/bundle.py", "jit/cache/ustar.py", "jit/cache/stale_entries.py", "jit/cache/__init__.py"
ENTRIES = "tests/jit/test_store.py"
SECURE, KEPT, BUNDLES = "tests/jit/test_cache_security.py", "tests/jit/test_cache_upkeep.py", "tests/jit/test_cache_bundle.py"
MEMBERS = "tests/jit/test_bundle_members.py"
WHOLE, PRIVATE = "tests/jit/test_cache.py", "tests/jit/test_cache_private.py"

FAULTS = (
    host(
        "entry: another key is taken",
        STORE,
        '(meta["schema"], meta["key"]) != (SCHEMA, key) or not',
        "not",
        f"{ENTRIES} {SECURE}",
    ),
    host(
        "entry: another schema is taken", STORE, '(meta["schema"], meta["key"]) != (SCHEMA, key)', 'meta["key"] != key', ENTRIES
    ),
    host(
        "entry: a digest is not compared",
        STORE,
        'intact = got == wanted and name == f"kernel-{got[:16]}.so"',
        "intact = True",
        ENTRIES,
    ),
    host("entry: a library of another name is taken", STORE, ' and name == f"kernel-{got[:16]}.so"', "", ENTRIES),
    host("entry: a linked directory is taken", STORE, "if directory.is_symlink():", "if False:", f"{ENTRIES} {SECURE}"),
    host("entry: a name may be a path", STORE, " or not _LIBRARY.fullmatch(name):", ":", ENTRIES),
    host("publish: the library is not synced", STORE, "        files.fsync(built / name)\n", "", ENTRIES),
    host("publish: the record is not synced", STORE, '        files.fsync(built / "meta.json")\n', "", ENTRIES),
    host("publish: the staging directory is not synced", STORE, "        files.fsync(built)\n", "", ENTRIES),
    host("publish: the shard is not synced", STORE, "        files.fsync(final.parent)\n", "", ENTRIES),
    host(
        "publish: the rename comes before the sync",
        STORE,
        '        files.fsync(built)\n        faults.at("staging.synced")\n        final = self.entry(key)\n',
        "        final = self.entry(key)\n        files.make_private(final.parent)\n        built = built.rename(final)\n"
        "        files.fsync(built)\n",
        ENTRIES,
    ),
    host(
        "publish: what is there afterwards is not looked at",
        STORE,
        "        if found.library is None:\n",
        "        if False:\n",
        "tests/jit/test_faults.py -k lies",
    ),
    host(
        "publish: modes are those of the compilers", STORE, "        files.close_to_others(built)\n", "", f"{ENTRIES} {SECURE}"
    ),
    host("publish: no hint is left", STORE, "        self._hint(portable, key)\n", "", ENTRIES),
    host(
        "find: any entry of a hint is taken",
        STORE,
        'if meta.get("portable") == portable and fits(meta) and',
        "if fits(meta) and",
        f"{ENTRIES} {SECURE}",
    ),
    host("find: what does not fit is taken", STORE, "== portable and fits(meta) and (so", "== portable and (so", ENTRIES),
    host(
        "find: entries without a hint are not found",
        STORE,
        "return self._first(self.published(), portable, fits)",
        "return None",
        ENTRIES,
    ),
    host(
        "staging: it is not locked",
        STORE,
        "                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "                pass\n",
        f"{ENTRIES} tests/jit/test_cache_races.py -k leftovers",
    ),
    host(
        "staging: what is left stays",
        STORE,
        "            shutil.rmtree(directory, ignore_errors=True)\n",
        "            pass\n",
        ENTRIES,
    ),
    host(
        "quarantine: a broken entry stays",
        STORE,
        '        leftovers.set_aside(self.entry(key), self.root / "quarantine")\n',
        "",
        WHOLE,
    ),
    host(
        "private: parents are not looked at",
        FILES,
        "for part in (*reversed(path.parents), path):",
        "for part in (path,):",
        SECURE,
    ),
    host(
        "private: the group may write",
        FILES,
        "if info.st_mode & 0o022 and",
        "if info.st_mode & 0o002 and",
        f"{SECURE} {ENTRIES}",
    ),
    host(
        "private: others may write", FILES, "if info.st_mode & 0o022 and", "if info.st_mode & 0o020 and", f"{SECURE} {ENTRIES}"
    ),
    host(
        "private: any sticky file is safe",
        FILES,
        "sticky_directory = stat.S_ISDIR(info.st_mode) and",
        "sticky_directory =",
        ENTRIES,
    ),
    host("private: another owner is safe", FILES, "if info.st_uid not in (0, os.geteuid()):", "if False:", SECURE),
    host(
        "private: links in the cache are followed",
        FILES,
        "_judge(part, may_be_link=False)",
        "_judge(part, may_be_link=True)",
        SECURE,
    ),
    host(
        "private: a file that others may write is read",
        FILES,
        "if (why := exposed(os.fstat(file.fileno()))) and not env.allow_shared_cache():",
        "if False:",
        SECURE,
    ),
    host(
        "private: directories have the mode of the umask",
        FILES,
        "                part.mkdir(mode=0o700)\n                part.chmod(0o700)",
        "                part.mkdir()",
        f"{SECURE} {WHOLE}",
    ),
    host("private: files have the mode of the umask", FILES, "        os.fchmod(fd, 0o600)\n", "", SECURE),
    host(
        "lock: it is never taken",
        LOCKS,
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            return True",
        "            return True",
        WHOLE,
    ),
    host("lock: a file that was replaced counts", LOCKS, "if not locked or _same_file(fd, path):", "if True:", WHOLE),
    host("lock: it waits for ever", LOCKS, "if now > deadline:", "if False:", f"{WHOLE} -k timeout"),
    host(
        "lock: links are followed",
        LOCKS,
        " | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)",
        " | os.O_NONBLOCK, 0o600)",
        f"{SECURE} {WHOLE}",
    ),
    host(
        "lock: a child keeps that of its parent",
        LOCKS,
        "    while _held:\n",
        "    while False:\n",
        "tests/jit/test_cache_races.py -k fork",
    ),
    host(
        "gc: sizes are not looked at",
        UPKEEP,
        "too_much = max_bytes is not None and total > max_bytes",
        "too_much = False",
        KEPT,
    ),
    host(
        "gc: what is left is counted without what was removed",
        UPKEEP,
        "            total -= entry.size\n",
        "            total -= 0\n",
        f"{KEPT} {ENTRIES}",
    ),
    host(
        "gc: the size of an entry is that of its library",
        UPKEEP,
        "size = sum(path.lstat().st_size for path in directory.iterdir())",
        'size = next(directory.glob("*.so")).lstat().st_size',
        f"{KEPT} {ENTRIES}",
    ),
    host(
        "gc: the most recently used goes first", UPKEEP, "key=lambda entry: entry.age)", "key=lambda entry: -entry.age)", KEPT
    ),
    host(
        "gc: ages are not looked at", UPKEEP, "too_old = max_age is not None and entry.age > max_age", "too_old = False", KEPT
    ),
    host("gc: a use does not count", CACHE, "                os.utime(note)\n", "                pass\n", KEPT),
    host("gc: an entry under its lock goes", UPKEEP, "        with store.lock(key, patience):\n", "        if True:\n", KEPT),
    host(
        "gc: failed builds stay for ever",
        UPKEEP,
        '(store.root / "quarantine", store.root / "failed", store.root / FOLDER):\n        for path',
        '(store.root / "quarantine", store.root / FOLDER):\n        for path',
        KEPT,
    ),
    host(
        "verify: broken entries are sound",
        UPKEEP,
        "for key, finding in found.items() if finding.library is None}",
        "for key, finding in found.items() if False}",
        KEPT,
    ),
    host(
        "clear: hints stay",
        UPKEEP,
        'store.root / "failed", store.root / "by-source", store.root / FOLDER',
        'store.root / "failed", store.root / FOLDER',
        f"{KEPT} {ENTRIES}",
    ),
    host(
        "stale staging: living builds go",
        STALE,
        "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        return",
        "        return",
        ENTRIES,
    ),
    host("stale staging: a directory made just now goes", STALE, "> _UNLOCKED_GRACE_SECONDS", "> -1", ENTRIES),
    host("stale staging: nothing goes", STALE, "            if _abandoned(path):\n", "            if False:\n", ENTRIES),
    host("quarantine: it grows for ever", STALE, "[: -_MAX_QUARANTINED + 1]", "[:0]", KEPT),
    host(
        "obtain: an entry is built that is there",
        CACHE,
        "return store.valid(key) or _build_in(store, key, output, make)",
        "return _build_in(store, key, output, make)",
        WHOLE,
    ),
    host(
        "obtain: a broken entry is built for ever",
        CACHE,
        "            if failed:\n                raise\n",
        "",
        "tests/jit/test_faults.py -k lying",
    ),
    host(
        "obtain: a full disk is an error of the compiler",
        CACHE,
        "if any(text in error.log_tail for text in _DISK_FULL) or _full(directory.parent):",
        "if False:",
        PRIVATE,
    ),
    host("bundle: members of any kind are read", TAR, "if header[156:157] not in _REGULAR:", "if False:", MEMBERS),
    host(
        "bundle: a member of another size is read",
        BUNDLE,
        "if wanted is None or member.size != wanted[0]:",
        "if wanted is None:",
        MEMBERS,
    ),
    host("bundle: a size in the manifest has no limit", BUNDLE, "not 0 <= size <= files.MAX_BYTES:", "not 0 <= size:", MEMBERS),
    host(
        "bundle: a size may be negative", BUNDLE, "not 0 <= size <= files.MAX_BYTES:", "not size <= files.MAX_BYTES:", MEMBERS
    ),
    host("bundle: a size may be a bool", BUNDLE, "type(size) is not int", "not isinstance(size, int)", MEMBERS),
    host(
        "bundle: any name is joined to a path",
        BUNDLE,
        "KEY.fullmatch(key) and _NAME.fullmatch(name) and KEY",
        "KEY.fullmatch(key) and KEY",
        MEMBERS,
    ),
    host("bundle: any key is joined to a path", BUNDLE, "sound = KEY.fullmatch(key) and _NAME", "sound = _NAME", MEMBERS),
    host("bundle: a digest is not compared", BUNDLE, "        if _digest(data) != wanted:\n", "        if False:\n", MEMBERS),
    host("bundle: a member may be missing", BUNDLE, "    if todo:\n", "    if False:\n", MEMBERS),
    host(
        "bundle: a member may come twice",
        BUNDLE,
        "wanted = todo.pop(member.name, None)",
        "wanted = todo.get(member.name, None)",
        MEMBERS,
    ),
    host("bundle: another format is read", BUNDLE, 'if told["format"] != FORMAT:', "if False:", MEMBERS),
    host(
        "bundle: a manifest of any size is read",
        BUNDLE,
        "member.name != _MANIFEST or member.size > _MAX_MANIFEST_BYTES:",
        "member.name != _MANIFEST:",
        MEMBERS,
    ),
    host(
        "bundle: an entry that is not whole is published",
        BUNDLE,
        "metas = {key: _examined(place / key, key, path) for key in manifest}",
        "metas = {key: examine(place / key, key).meta for key in manifest}",
        MEMBERS,
    ),
    host(
        "bundle: what is there is stated as new",
        BUNDLE,
        "        if store.valid(key):\n            return False\n",
        "        if store.valid(key):\n            return True\n",
        BUNDLES,
    ),
    host("bundle: files are not synced", BUNDLE, "            files.fsync(file)\n", "            pass\n", MEMBERS),
    host("bundle: the written file is not synced", BUNDLE, "        files.fsync(aside)\n", "", MEMBERS),
    host("bundle: broken entries are exported", BUNDLE, "return found.library is not None and (arch", "return (arch", BUNDLES),
    host("bundle: other architectures are exported", BUNDLE, 'found.meta.get("arch") in (arch, HOST_ARCH))', "True)", BUNDLES),
    host(
        "bundle: the sum of a header is not looked at",
        TAR,
        'header[257:265] != _MAGIC or _number(header[148:156]) != sum(header[:148] + b" " * 8 + header[156:])',
        "header[257:265] != _MAGIC",
        MEMBERS,
    ),
    host(
        "bundle: a tar without an end is whole",
        TAR,
        "if len(header) < BLOCK:",
        "if not header:\n            return None\n        if len(header) < BLOCK:",
        MEMBERS,
    ),
)
