"""Faults in what reads names, files and JSON that come from outside, and in what says which kernel would run."""

from tests.mutation.mutant import cpu

INPUT_FAULTS = (
    cpu(
        "explain: what is locked and measured is left out",
        "opfacade/selection.py",
        "given = in_force(checked, preference, target) if pins is None else pins",
        'given = pins or (NO_PINS if name == "explain" else in_force(checked, preference, target))',
        "tests/test_explain.py",
    ),
    cpu(
        "files: what is no regular file is opened",
        "opfacade/regular_files.py",
        "if not stat.S_ISREG(info.st_mode):",
        "if False:",
        "tests/test_regular_files.py",
    ),
    cpu(
        "files: a size has no bound",
        "opfacade/regular_files.py",
        "if info.st_size > most:",
        "if False:",
        "tests/test_regular_files.py",
    ),
    cpu(
        "json: the last of two equal names wins",
        "opfacade/strict_json.py",
        "if len(found) != len(pairs):",
        "if False:",
        "tests/test_strict_json.py",
    ),
    cpu(
        "json: depth has no bound of its own",
        "opfacade/strict_json.py",
        "for _ in range(MAX_DEPTH + 1):",
        "for _ in range(10 * MAX_DEPTH):",
        "tests/test_strict_json.py",
    ),
    cpu(
        "json: a model takes what is no strict JSON",
        "opfacade/model.py",
        "strict_json.loads(json_data)  # pydantic",
        "pass  # pydantic",
        "tests/test_descriptor.py",
    ),
    cpu(
        "errors: an integer without end is printed",
        "opfacade/errors.py",
        "    except ValueError:  # Python prints",
        "    except KeyError:  # Python prints",
        "tests/test_descriptor.py",
    ),
    cpu(
        "tune store: SQLite opens what is no regular file",
        "opfacade/autotune_store.py",
        'for name in ("", "-wal", "-shm", "-journal"):',
        'for name in ("-wal", "-shm"):',
        "tests/test_autotune_store.py",
    ),
    cpu(
        "bundle: a header's kind is not looked at",
        "opfacade/jit/ustar.py",
        "if header[156:157] not in _REGULAR:",
        "if False:",
        "tests/jit/test_cache_bundle.py",
    ),
    cpu(
        "bundle: a number of a header may have a sign",
        "opfacade/jit/ustar.py",
        'rb"[0-7]{1,11}[ \\0]*"',
        'rb"-?[0-7]{1,11}[ \\0]*"',
        "tests/jit/test_cache_bundle.py",
    ),
    cpu(
        "cache: what an entry says is read from whatever lies there",
        "opfacade/jit/store.py",
        'regular_files.read(directory / "meta.json", MAX_META_BYTES)',
        '(directory / "meta.json").read_bytes()',
        "tests/jit/test_cache_security.py",
    ),
    cpu(
        "cache: counts of an entry are believed",
        "opfacade/jit/upkeep.py",
        " if isinstance(used, dict)}",
        "}",
        "tests/jit/test_cache_security.py",
    ),
)
