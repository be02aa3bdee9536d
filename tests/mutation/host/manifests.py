"""Faults in manifests: what they allow, when they are read again, how they are frozen and compared."""

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
        "manifest: it allows what the preference leaves out",
        MANIFEST,
        "self.skus if prefer.allow is None else tuple(sku for sku in self.skus if sku in prefer.allow)",
        "self.skus",
        MANIFESTS,
    ),
    host(
        "manifest: an empty list of allowed SKUs allows all of it",
        MANIFEST,
        "self.skus if prefer.allow is None else",
        "self.skus if not prefer.allow else",
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
        "manifest: a file of another size is not read again",
        MANIFEST,
        "stat.st_mtime_ns, stat.st_size)",
        "stat.st_mtime_ns, 0)",
        LOCKED,
    ),
    host(
        "manifest: a file of another time is not read again",
        MANIFEST,
        "stat.st_mtime_ns, stat.st_size)",
        "0, stat.st_size)",
        LOCKED,
    ),
    host(
        "manifest: a file that is not there allows all",
        MANIFEST,
        "        if is_sku_id(value):\n",
        "        if True:\n",
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
    host("manifest: ids need no order", MANIFEST, "if list(values) != sorted(set(values)):", "if False:", MANIFESTS),
    host("manifest: any text is an id", MANIFEST, "if not is_sku_id(value):", "if False:", MANIFESTS),
    host(
        "manifest: what was added is not reported",
        MANIFEST,
        "added, removed = sorted(set(other.skus) - set(self.skus)),",
        "added, removed = sorted(set(other.skus) & set(self.skus)),",
        MANIFESTS,
    ),
    host(
        "manifest: nothing is said of the reference in it",
        MANIFEST,
        "        if not target.is_cpu:\n            _warn_of_references(chosen)\n",
        "",
        MANIFESTS,
    ),
    host(
        "manifest: another kernel is the nearest",
        DIFFERENCES,
        "[o for o in others if same_kernel(sku, o)]",
        "list(others)",
        LOCKED,
    ),
    host(
        "manifest: a change of dtype is a change of one kernel",
        DIFFERENCES,
        "return a[:4] == b[:4] and a[5] == b[5]",
        "return a[:4] == b[:4]",
        LOCKED,
    ),
    host(
        "manifest: a difference is no difference",
        MANIFEST,
        "return bool(self.added or self.removed or self.changed or self.rebuilt)",
        "return bool(self.added or self.removed or self.rebuilt)",
        MANIFESTS,
    ),
    host(
        "manifest: facts of one side alone are not reported",
        DIFFERENCES,
        "for fact in sorted(old.keys() | new.keys()):",
        "for fact in sorted(old.keys() & new.keys()):",
        MANIFESTS,
    ),
    host(
        "manifest: check names what is allowed", MANIFEST, "if not manifest.allows(sku))", "if manifest.allows(sku))", MANIFESTS
    ),
    host(
        "manifest: two SKUs that went are paired with one that came",
        MANIFEST,
        "                added.remove(new)\n",
        "",
        f"{MANIFESTS} -k one_pair",
    ),
    host(
        "manifest: a SKU that changed is one that went too",
        MANIFEST,
        "                removed.remove(old)\n",
        "",
        f"{MANIFESTS} -k one_pair",
    ),
)
