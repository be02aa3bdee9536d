"""`python -m tests.dry LIST [--only FILE...] [--compile]`: kernels that the GPU tests build; --compile builds them.

Exit status 1: a kernel may be missing; stderr names the files, or the kernels that were not built. Exit status 2: nothing was
run, because the arguments are wrong or there is no compiler.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opfacade import jit
from opfacade.errors import OpfacadeError, ToolchainError
from opfacade.jit import cache, toolchain

ROOT = Path(__file__).resolve().parents[2]
# Only the tests of the cache itself compile kernels that no plan requests.
ELSEWHERE = ("tests/jit/", "tests/dry/")
SECONDS = 600.0  # seconds for the tests of one file


def files():
    every = (path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py")))
    return [path for path in every if "gpu" in (ROOT / path).read_text() and not str(path).startswith(ELSEWHERE)]


def dry(path, found, scratch):
    """Runs the GPU tests of one file dry. Returns whether any of them failed: its list may then be incomplete."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.dry.plugin",
        "--dry-list",
        str(found),
        "--assert=plain",
        "-m",
        "gpu",
    ]
    command += ["-q", "--heavy", "--tb=line", "-o", "addopts=", "-o", "cache_dir=" + scratch, str(path)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{path}: more than {SECONDS:g} s"
    # 5: the file has no GPU tests
    return "" if done.returncode in (0, 5) else f"{path}: {done.stdout[-2000:]}"


def spec_of(line):
    def tupled(value):
        return tuple(map(tupled, value)) if isinstance(value, list) else value

    name, template, params, arch, flags = json.loads(line)
    return jit.JitSpec(name, template, tupled(params), arch, tuple(flags))


def built(spec):
    """The reason if a kernel was not built: one that does not compile does not stop the others."""
    try:
        jit.build(spec)
    except OpfacadeError as error:
        return f"{spec.identity}: {str(error)[:2000]}"
    return ""


def compile_all(specs):
    """The failure, in words."""
    started = time.monotonic()

    def build(numbered):
        number, spec = numbered
        wrong = built(spec)
        if number % 50 == 0:
            print(f"{number} of {len(specs)}, {time.monotonic() - started:.0f} s", flush=True)
        return wrong

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(filter(None, pool.map(build, enumerate(specs))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("--only", type=Path, nargs="*", help="test files")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.compile:
        try:
            toolchain.find(cache.toolchain_memo())  # now, before the many minutes of tests
        except ToolchainError as error:
            parser.error(str(error))
    options.list.write_text("")
    failed = {}
    for path in options.only or files():
        with tempfile.TemporaryDirectory() as scratch:
            if told := dry(path, options.list.resolve(), scratch):
                failed[path] = told
    lines = sorted(set(options.list.read_text().splitlines()))
    options.list.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} kernels", *failed.values(), sep="\n", flush=True)
    unbuilt = compile_all([jit.HOST, *map(spec_of, lines)]) if options.compile else []
    missing = [f"not built: {told}" for told in unbuilt]
    missing += [f"kernels that only {path} asks for may be missing: not all of its tests ended well" for path in failed]
    print(*missing, sep="\n", end="\n" if missing else "", file=sys.stderr)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
