"""`python -m tests.dry LIST [--only FILE...] [--compile]`: kernels that the GPU tests ask for; --compile builds them."""

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

ROOT = Path(__file__).resolve().parents[2]
# Only the tests of the cache itself compile what no plan asks for.
ELSEWHERE = ("tests/jit/", "tests/dry/")
SECONDS = 600.0  # for the tests of one file


def files():
    every = (path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py")))
    return [path for path in every if "gpu" in (ROOT / path).read_text() and not str(path).startswith(ELSEWHERE)]


def dry(path, found, scratch):
    """Runs the GPU tests of one file dry. Whether any of them ended otherwise than well: its list may then be short."""
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
            env={**os.environ, "PYTHONPYCACHEPREFIX": scratch, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{path}: more than {SECONDS:g} s"
    # 5: it has no GPU tests
    return "" if done.returncode in (0, 5) else f"{path}: {done.stdout[-2000:]}"


def spec_of(line):
    def tupled(value):
        return tuple(map(tupled, value)) if isinstance(value, list) else value

    name, template, params, arch, flags = json.loads(line)
    return jit.JitSpec(name, template, tupled(params), arch, tuple(flags))


def compile_all(specs):
    started = time.monotonic()

    def build(numbered):
        number, spec = numbered
        jit.build(spec)
        if number % 50 == 0:
            print(f"{number} of {len(specs)}, {time.monotonic() - started:.0f} s", flush=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, enumerate(specs)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("--only", type=Path, nargs="*", help="test files")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    options.list.write_text("")
    failed = []
    for path in options.only or files():
        with tempfile.TemporaryDirectory() as scratch:
            failed += filter(None, [dry(path, options.list.resolve(), scratch)])
    lines = sorted(set(options.list.read_text().splitlines()))
    options.list.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} kernels", *failed, sep="\n", flush=True)
    if options.compile:
        compile_all([spec_of(line) for line in lines])
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
