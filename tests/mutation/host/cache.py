"""Faults in the cache on disk: entries, locks, modes, syncs, upkeep, bundles."""

from tests.mutation.mutant import host

STORE, LOCKS, UPKEEP = "jit/cache/store.py", "jit/cache/locks.py", "jit/cache/upkeep.py"
BUNDLE, TAR = "jit/cache/bundle.py", "jit/cache/ustar.py"
ENTRIES = "tests/jit/cache/test_store.py"
MEMBERS, USED = "tests/jit/cache/test_bundle_members.py", "tests/jit/cache/test_store_use.py"

FAULTS = (
    host(
        "staging: it is not locked while a clean-up tests it",
        "jit/cache/store.py",
        "fcntl.flock(fd, fcntl.LOCK_EX)  # waits",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # waits",
        "tests/jit/cache/test_store.py -k staging",
    ),
    host(
        "publish: the rename comes before the sync",
        STORE,
        '        files.fsync(built)\n        faults.at("staging.synced")\n        final = self.entry(key)\n',
        "        final = self.entry(key)\n        files.make_private(final.parent)\n        built = built.rename(final)\n"
        "        files.fsync(built)\n",
        ENTRIES,
    ),
    host("lock: it waits 10 s longer", LOCKS, "if now > deadline:", "if now > deadline + 10:", USED),
    host(
        "gc: the size of an entry is that of its library",
        UPKEEP,
        "size = sum(path.lstat().st_size for path in directory.iterdir())",
        'size = next(directory.glob("*.so")).lstat().st_size',
        f"{ENTRIES} {USED}",
    ),
    host(
        "gc: the most recently used goes first", UPKEEP, "key=lambda entry: entry.age)", "key=lambda entry: -entry.age)", USED
    ),
    host("bundle: a size may be a bool", BUNDLE, "type(size) is not int", "not isinstance(size, int)", MEMBERS),
    host(
        "bundle: an entry that is not whole is published",
        BUNDLE,
        "metas = {key: _examined(place / key, key, path) for key in manifest}",
        "metas = {key: examine(place / key, key).meta for key in manifest}",
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
