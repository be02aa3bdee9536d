"""Faults in the identity of binaries, in rendering, in the choice of compilers, and in the cache of entries."""

from tests.mutation.mutant import host

SPEC, BUILD = "jit/spec.py", "jit/build.py"
RUNNER, RELOAD = "jit/runner.py", "jit/reload.py"
SPECS = "tests/jit/test_spec.py"
DEPENDS = "tests/jit/cache/test_key_parts.py"

FAULTS = (
    host(
        "spec: True is 1",
        SPEC,
        "json.dumps(fields, ensure_ascii=True)",
        "json.dumps(fields, ensure_ascii=True).replace('true', '1')",
        SPECS,
    ),
    host(
        "build: the first line of the log is the error",
        BUILD,
        "line = first[0].strip() if first else",
        "line = log.splitlines()[0] if first else",
        "tests/jit/test_build.py -k error_names",
    ),
    host(
        "build: no time limit",
        RUNNER,
        "return _wait(process, env.jit_timeout())",
        "return _wait(process, 30.0)",
        "tests/jit/test_when_built.py",
    ),
    host(
        "reload: times are not looked at",
        RELOAD,
        "stat.st_size, stat.st_mtime_ns, stat.st_ino",
        "stat.st_size, 0, 0",
        DEPENDS,
    ),
)
