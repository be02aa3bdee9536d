"""`scripts/mutate --host | --cpu | --gpu | --emulated`: plants each fault in a copy of the sources and records which test
caught it.

These are the faults that no operator creates (tests/mutation/operators has the others). A fault is caught if a test fails or
the tests do not end in time. Writes bench/results/mutation.json; `scripts/docs` makes a page of it. --host: faults of Python
that decides or judges (tests/mutation/host), each with the test files that must catch it.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import gpus
from tests.mutation import warm
from tests.mutation.mutants import CPU, GPU, HOST, Mutant

ROOT = Path(__file__).parents[2]
FOCUSED = "tests/mutation/focus.py"
RESULTS = ROOT / "bench/results/mutation.json"
ASIDE = ".mutation.*"  # a record while it is written; another thread may copy the sources at that time
COPIED = ("bench", "csrc", "docs", "kernels", "opfacade", "tests", "pyproject.toml")
SOUND_KINDS = 6  # number of tests in parallel, so that unchanged sources take no longer than a fault
TIMEOUT = {"gpu": 150, "cpu": 500, "emulated": 500, "host": 100}
LISTS = {"gpu": GPU, "cpu": CPU, "host": HOST}  # those of "gpu" also run "emulated"
# An error by name, and the output of g++ and nvcc.
REFUSED_BY_A_COMPILER = re.compile(r"CompileError|\.(?:cuh?|h|cc)(?::\d+(?::\d+)?|\(\d+\)): (?:fatal )?error:")


@dataclass(frozen=True)
class Place:
    """Location of mutants: a folder for copies, a kernel cache that they share, and the device they run on."""

    folder: Path
    device: str


def mutated(mutant: Mutant, root: Path) -> None:
    """Plants a fault. Each old text must occur exactly once."""
    path = root / mutant.file
    text = path.read_text() if mutant.edits else ""
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(f"{mutant.name}: {old!r} occurs {text.count(old)} times in {mutant.file}")
        text = text.replace(old, new)
        path.write_text(text)


def copied(into: Path, bytecode: bool = False) -> None:
    """bytecode: reuse that of the unchanged sources; a file with a fault is newer, and compiled again."""
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns(ASIDE, *([] if bytecode else ["__pycache__"]))
        shutil.copytree(source, into / name, ignore=ignored) if source.is_dir() else shutil.copy(source, into / name)


def command(mutant: Mutant, device: str, marked: str = "") -> list[str]:
    """The pytest command for the tests of a mutant, with its -k at the end. marked: only tests with this marker."""
    files, _, words = mutant.tests.partition(" -k ")
    chosen = ["-m", marked or ("gpu or not gpu" if device == "gpu" or "focus" in files else "not gpu")]
    quiet = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    return [sys.executable, "-m", "pytest", *quiet, *files.split(), *chosen, *(["-k", words] if words else [])]


def arch_of(mutant: Mutant) -> str:
    """The architecture for which the kernel with the fault is selected. Faults of the general prefill run for sm_90, which has
    no wgmma; on a GPU, tests/mutation/focus.py forbids the wgmma prefills instead.
    """
    return "sm_90" if mutant.name.startswith(("prefill", "fp8 prefill")) else "sm_90a"


def environment(mutant: Mutant, root: Path, place: Place, number: int) -> dict[str, str]:
    """number: index of the run, because runs share the GPUs of a machine."""
    own = {
        "OPFACADE_SOURCE_ROOT": str(root),
        "OPFACADE_FOCUS": place.device,
        "OPFACADE_FOCUS_KINDS": mutant.kinds,
        "OPFACADE_FOCUS_ARCH": arch_of(mutant),
        "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    on_gpu = place.device == "gpu"
    own["CUDA_VISIBLE_DEVICES"] = gpus.environment(number)["CUDA_VISIBLE_DEVICES"] if on_gpu else ""
    if place.device == "host":  # a faulty cache must not be shared with other runs
        return {name: value for name, value in os.environ.items() if name != "OPFACADE_CACHE_DIR"} | own
    # Kernels are cached by their content, so kernels of unchanged sources may have been compiled before.
    return dict(os.environ) | own | {"OPFACADE_CACHE_DIR": os.environ.get("OPFACADE_CACHE_DIR") or str(place.folder / "cache")}


def caught(subject: Mutant, status: int | None, output: str) -> str:
    """The first test that failed, or another sign that the fault was detected; "" if there is none."""
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    by = "no end within the time" if status is None else found[1] if found else f"exit {status}" if status else ""
    if status in (4, 5) or (status and not found and "error" in output.lower() and "FAILED" not in output):
        by = f"exit {status}: " + " ".join(output.split())[-200:]
    if status in (4, 5) and subject.edits:
        return ""  # no test ran
    if REFUSED_BY_A_COMPILER.search(output) and subject.edits:
        # A compiler error for a fault shows nothing about the tests.
        print(f"does not compile: {subject.name}: {output[-1500:]}", flush=True)
        return ""
    return by


def caught_on_host(subject: Mutant, status: int | None, output: str) -> str:
    """The first failed test, or "". A fault that only prevents the import of a module shows nothing about the tests."""
    if status is None:
        return "no end within the time"
    found = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
    if status and not found:
        print(f"no test failed: {subject.name}: {output[-1500:]}", flush=True)
    return found[1] if found else "" if subject.edits or not status else f"exit {status}"


_own = threading.local()


@contextmanager
def tree(subject: Mutant, place: Place, number: int) -> Iterator[Path]:
    """A copy of the sources with a fault in it. On the host each thread has one copy, whose file is restored."""
    if place.device != "host":
        root = place.folder / str(number)
        root.mkdir()
        copied(root)
        mutated(subject, root)
        yield root
        shutil.rmtree(root)
        return
    if not hasattr(_own, "root"):
        _own.root = Path(tempfile.mkdtemp(dir=place.folder))
        copied(_own.root, bytecode=True)
    path = _own.root / (subject.file or "pyproject.toml")
    content, stat = path.read_bytes(), path.stat()
    try:
        mutated(subject, _own.root)
        yield _own.root
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # its bytecode has the current time


def tried(subject: Mutant, place: Place, number: int) -> dict[str, object]:
    """The test that caught a mutant. A mutant without edits is the sound source, which must pass everything."""
    end = warm.ended if place.device == "host" else ended
    with tree(subject, place, number) as root:
        started = time.monotonic()
        words, env = command(subject, place.device), environment(subject, root, place, number)
        status, output = end(words, root, env, TIMEOUT[place.device])
    by = (caught_on_host if place.device == "host" else caught)(subject, status, output)
    row = {"fault": subject.name, "file": subject.file, "where": place.device, "caught_by": by, "blind": subject.blind}
    said = ("caught" if by else "MISSED") if subject.edits else ("FAILED" if by else "sound")
    print(f"{said:7} {time.monotonic() - started:5.1f} s  {subject.name}: {by}", flush=True)
    return row | {"seconds": round(time.monotonic() - started, 1), "ran": status not in (4, 5)}


def sound(mutants: list[Mutant], device: str) -> list[Mutant]:
    """Runs the tests of these mutants on unchanged sources. If one fails, the run shows nothing."""
    if device not in ("cpu", "host"):
        by_arch: dict[str, list[Mutant]] = {}
        for mutant in mutants:
            by_arch.setdefault(arch_of(mutant), []).append(mutant)
        prefix = {"sm_90": "prefill: ", "sm_90a": ""}
        return [replace(run, name=prefix[arch] + run.name) for arch, some in by_arch.items() for run in sound(some, "cpu")]
    files = (word for m in mutants if " -k " not in m.tests for word in m.tests.split() if word != FOCUSED)
    chosen = dict.fromkeys([*(m.tests for m in mutants if " -k " in m.tests), *files])
    runs = [Mutant(f"sources as they are: {tests}", "", (), "", tests) for tests in chosen]
    kinds = list(dict.fromkeys(kind for m in mutants for kind in m.kinds.split()))
    for some in (kinds[at : at + SOUND_KINDS] for at in range(0, len(kinds), SOUND_KINDS)):
        runs.append(Mutant(f"sources as they are: {' '.join(some)}", "", (), " ".join(some), FOCUSED))
    return runs


def ended(words: list[str], root: Path, env: dict[str, str], limit: float) -> tuple[int | None, str]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, cwd=root, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = None
        log.seek(0)
        return status, log.read()


def origin(device: str, commit: str | None) -> dict[str, object]:
    """The machine with its commit, and the digest of the kernels, as in other records (bench/records.py)."""
    from bench import records
    from opfacade.tools import kernel_digests

    facts = machine(device) | {"commit": records.commit(commit)}
    return {"machine": facts, "kernels": kernel_digests.stamp(), "listed": len(LISTS.get(device, GPU))}


def machine(device: str) -> dict[str, object]:
    from opfacade.tools import machine as known

    facts = known.machine("cuda" if device == "gpu" else "cpu")
    name = facts["device"] if device == "gpu" else platform.processor() or platform.machine()
    return facts | {"device": name, "date": time.strftime("%Y-%m-%d")}


def sign(by: str) -> str:
    """The name of a test, or the exit of a process that ended without its last crash message."""
    return by.partition(":")[0] if by.startswith("exit -") else by


def page(results: dict[str, dict]) -> str:
    """The table of faults and the tests that caught them."""
    from bench.reliability import untried

    lines = ["# Mutation score", "", "Written by `scripts/docs` from `bench/results/mutation.json`.", ""]
    lines += ["A planted fault, in a copy of the sources, and the first test that failed on it.", ""]
    lines += ["HOST: faults of Python that decides or judges, each with the test files that must catch it.", ""]
    for where, result in sorted(results.items()):
        rows = result["mutants"]
        caught = sum(bool(row["caught_by"]) for row in rows)
        facts = result["machine"]
        lines += [f"## {where.upper()}: {caught} of {len(rows)} caught", ""]
        commit = f", commit {facts['commit']}" if facts.get("commit") else ""
        lines += [f"{facts['device']}, torch {facts['torch']}, {facts['date']}{commit}, {result['seconds']} s.", ""]
        lines += [f"Listed and not tried: {untried(result)}.", ""] if untried(result) else []
        lines += ["| fault | file | caught by |", "|---|---|---|"]
        for row in rows:
            missed = f"**missed**{': ' + row['blind'] if row['blind'] else ''}"
            by = f"`{sign(row['caught_by'])}`" if row["caught_by"] else missed
            lines.append(f"| {row['fault']} | `{row['file']}` | {by.replace('|', '/')} |")
        lines.append("")
    return "\n".join(lines)


def chosen(words: argparse.Namespace) -> list[Mutant]:
    device = "host" if words.host else "cpu" if words.cpu else "gpu"
    mutants = LISTS[device]
    mutants = tuple(m for m in mutants if words.only in m.name and (not words.emulated or m.tests == FOCUSED))
    if words.again:
        seen = {row["fault"] for row in recorded(device, words.out) if row["caught_by"]}
        mutants = tuple(m for m in mutants if m.name not in seen)[: words.again]
    return list(mutants)


def begun(pool: ThreadPoolExecutor, runs: list[Mutant], place: Place) -> list[Future[dict[str, object]]]:
    """Runs on the unchanged sources."""
    return [pool.submit(tried, run, place, -i - 1) for i, run in enumerate(runs)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpu", action="store_true")
    where.add_argument("--cpu", action="store_true")
    where.add_argument("--host", action="store_true", help="faults of Python that decides or judges")
    where.add_argument("--emulated", action="store_true", help="faults of kernels, without a GPU: slow, and blind to races")
    parser.add_argument("--jobs", type=int, default=0, help="mutants at a time; default 8 on a GPU, 2 on the CPU")
    parser.add_argument("--only", default="", help="faults whose name has this text; nothing is written")
    parser.add_argument("--again", type=int, default=0, help="so many of those that the record lacks or has as missed")
    parser.add_argument("--commit", help="recorded in place of git's answer, where the sources are no checkout")
    parser.add_argument("--out", type=Path, help="a folder for mutation.json in place of the repository's")
    words = parser.parse_args()
    device = next(name for name in TIMEOUT if getattr(words, name))
    started, before = time.monotonic(), loaded(words.out)
    of = origin(device, words.commit)  # before the run: the sources may change meanwhile
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        place = Place(Path(folder), device)
        with ThreadPoolExecutor(words.jobs or (8 if words.gpu else 2)) as pool:
            proofs = sound(chosen(words), device)
            sources = [] if words.again else begun(pool, proofs, place)
            jobs = [pool.submit(tried, mutant, place, i + 1) for i, mutant in enumerate(chosen(words))]
            sources = sources or begun(pool, proofs, place)  # last, so that an interrupted run has recorded rows
            for job in as_completed(jobs) if words.again else ():
                merge(device, job.result(), of, words.out)
            rows = [job.result() for job in jobs]
    unsound = [run.result()["fault"] for run in sources if run.result()["caught_by"]]
    if unsound:
        if words.again:  # restores the record, to which rows were added during the run
            write(before, words.out)
        print(f"nothing is recorded, because the sources as they are fail: {unsound}")
        return 2
    missed = [row["fault"] for row in rows if not row["caught_by"]]
    if not words.only and not words.again:
        record(device, of | summary(rows, round(time.monotonic() - started)), words.out)
    print(f"{len(rows) - len(missed)} of {len(rows)} caught; missed: {missed}")
    return 1 if any(not row["caught_by"] and not row["blind"] for row in rows) else 0


def summary(rows: list[dict], seconds: int) -> dict[str, object]:
    return {"seconds": seconds, "mutants": rows}


def merge(device: str, row: dict, of: dict[str, object], out: Path | None) -> None:
    """Put one row into the record, in the order of the list; rows of faults that are no longer listed are removed.

    of: the origin of the row. A record of other sources keeps its own origin, because most of its rows have that origin.
    """
    known = loaded(out).get(device, of)
    rows = {row["fault"]: row for row in recorded(device, out)} | {row["fault"]: row}
    rows = [rows[m.name] for m in LISTS.get(device, GPU) if m.name in rows]
    kept = {name: known[name] for name in ("machine", "kernels") if name in known} | {"listed": len(LISTS.get(device, GPU))}
    record(device, kept | summary(rows, round(sum(row["seconds"] for row in rows))), out)


def place_of(out: Path | None) -> Path:
    """The record, in a folder or in the repository."""
    return out / "mutation.json" if out else RESULTS


def loaded(out: Path | None = None) -> dict[str, dict]:
    """The record in the folder `out`, or that of the repository if the folder has none yet."""
    place = next((path for path in (place_of(out), RESULTS) if path.exists()), None)
    return json.loads(place.read_text()) if place else {}


def recorded(device: str, out: Path | None) -> list[dict]:
    return loaded(out).get(device, {}).get("mutants", [])


def record(device: str, result: dict, out: Path | None) -> None:
    write(loaded(out) | {device: result}, out)


def write(results: dict[str, dict], out: Path | None) -> None:
    path = place_of(out)
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(results, indent=1) + "\n")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
