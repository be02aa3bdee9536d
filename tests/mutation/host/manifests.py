"""Faults in manifests: allowed SKUs, reloading, freezing and comparison."""

from tests.mutation.mutant import host

MANIFEST, DIFFERENCES = "select/manifest.py", "select/sku_differences.py"
MANIFESTS, LOCKED = "tests/select/test_manifest.py", "tests/select/test_locks.py"

FAULTS = (
    host(
        "manifest: it is written in place",
        "base/regular_files.py",
        "        os.replace(name, place)\n",
        "        place.write_text(name.read_text())\n        name.unlink()\n",
        MANIFESTS,
    ),
    host(
        "manifest: a file is not read again",
        MANIFEST,
        "return _read(path, stat.st_mtime_ns, stat.st_size)",
        "return _read(path, 0, 0)",
        LOCKED,
    ),
    host(
        "manifest: freezing is bound by the one in force",
        MANIFEST,
        "    options = survey(checked, prefer, target, NO_PINS)",
        "    from opfacade.select.in_force import in_force\n\n"
        "    options = survey(checked, prefer, target, in_force(checked, prefer, target))",
        MANIFESTS,
    ),
    host(
        "manifest: another kernel is the nearest",
        DIFFERENCES,
        "[o for o in others if same_kernel(sku, o)]",
        "list(others)",
        LOCKED,
    ),
)
