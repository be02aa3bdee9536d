"""Digests of the output bits of kernels over small fixed problems, by SKU id, and the rule that an id keeps its bits.

`python -m tests.support.fingerprints` records those of the emulator in tests/data/fingerprints.json, and with `--gpu` those of
this GPU. It adds ids and problems that are not there; it never replaces the bits of an id, whose implementation then needs a
new `revision`. Only other inputs of a problem (a test's draw changed) replace an entry.
"""

import argparse
import ctypes
import ctypes.util
import hashlib
import json
import platform
import struct
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

from opfacade import jit
from opfacade.testing import inputs, matrix, prebuilt
from opfacade.testing.bits import bits
from opfacade.testing.subject import Subject
from tests.support import fingerprint_problems

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/data/fingerprints.json"
EMULATOR = "emulator"
SEED = 11


@dataclass(frozen=True)
class Fingerprint:
    """Digests of one call: of everything that it reads, and of everything that it writes."""

    problem: str
    sku: str
    inputs: str
    bits: str


def taken(problem, subject, lengths=None):
    """Runs one call. Its inputs are drawn on the CPU, so that every device has the same inputs."""
    drawn = inputs.make_args(subject.descriptor, SEED, "cpu", lengths)
    operands = subject.descriptor.operands()
    read = _digest({name: getattr(drawn, name) for name, spec in operands.items() if spec.role != "out"})
    args = type(drawn)(**{name: _on(subject.device, getattr(drawn, name, None)) for name in type(drawn).__slots__})
    subject.run(args, subject.workspace(0xA5))
    wrote = _digest({name: getattr(args, name) for name, spec in operands.items() if spec.written})
    return Fingerprint(problem, subject.plan.sku.id, read, wrote)


def _on(device, value):
    if isinstance(value, list | tuple):
        return type(value)(_on(device, part) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _digest(tensors):
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(bits(tensor).cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def wrong(found, new, command):
    """Why a fingerprint contradicts those on record; "" if it does not."""
    same = [old for old in found if (old.problem, old.sku) == (new.problem, new.sku)]
    if not same:
        return f"no fingerprint of {new.sku} for {new.problem}. `{command}` records it."
    (old,) = same
    if old.inputs != new.inputs:
        return f"{new.problem} has other inputs than on record, so its bits cannot be compared. `{command}` records them."
    if old.bits == new.bits:
        return ""
    name, revision = new.sku.split("/")[4].split("@")
    return (
        f"{new.sku} writes other bits for {new.problem} than on record. If that is meant, set the revision of cuda/{name} to "
        f"{int(revision) + 1} in {' or '.join(places(name))}, then `{command}` records it; an id keeps its bits."
    )


def places(impl):
    """Files of the CUDA backend that name an implementation and its revision."""
    files = sorted((ROOT / "opfacade/backends/cuda").rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    signs = ("REVISION", "impl=", "impl, ")
    return [name for name, text in texts.items() if f'"{impl}"' in text and any(sign in text for sign in signs)]


def merged(found, new):
    """The record with new fingerprints. ValueError if one has other bits for the same id and inputs."""
    kept = {(old.problem, old.sku): old for old in found}
    for fingerprint in new:
        old = kept.get((fingerprint.problem, fingerprint.sku))
        if old and old.inputs == fingerprint.inputs and old.bits != fingerprint.bits:
            raise ValueError(wrong(found, fingerprint, "this command"))
        kept[fingerprint.problem, fingerprint.sku] = fingerprint
    return sorted(kept.values(), key=lambda one: (one.problem, one.sku))


def host():
    """Facts of a host that change drawn inputs or emulated arithmetic."""
    return {"machine": platform.machine(), "torch": torch.__version__.partition("+")[0], "libm": _libm()}


def _libm():
    """Digest of this C library's functions that emulated kernels call."""
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    digest = hashlib.sha256()
    for name in ("exp2f", "logf", "log2f", "expf", "tanhf", "cosf", "sinf", "powf"):
        function = getattr(library, name)
        function.restype = ctypes.c_float
        for i in range(1, 2000):
            more = (ctypes.c_float(1.7),) if name == "powf" else ()
            digest.update(struct.pack("f", function(ctypes.c_float(i * 0.013), *more)))
    return digest.hexdigest()[:16]


@cache
def device_name():
    """This GPU and the compilers of its kernels: another compiler may give other bits."""
    spec = next(iter(gpu_problems().values())).plan.jit_spec
    return f"{torch.cuda.get_device_name()}, compilers {jit.compiler_digest(spec)[:16]}"


def gpu_problems():
    subjects = {name: Subject(descriptor, "cuda", "cuda") for name, descriptor in matrix.matrix().items()}
    return {name: subject for name, subject in subjects.items() if not subject.declined}


def on_gpu():
    """One fingerprint for each case that has a kernel here; the kernels are compiled in parallel first."""
    problems = gpu_problems()
    prebuilt.build(subject.descriptor for subject in problems.values())
    for name, subject in problems.items():
        yield taken(name, subject)


def emulated():
    for name, (subject, lengths) in fingerprint_problems.emulated().items():
        yield taken(name, subject, lengths)


def read(place):
    """(facts of the recording host, its fingerprints); (None, []) if there are none."""
    known = json.loads(FILE.read_text()).get(place)
    return (known["host"], [Fingerprint(**one) for one in known["fingerprints"]]) if known else (None, [])


def write(place, facts, fingerprints):
    """One line per fingerprint, so that a diff of the file shows each."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[place] = {"host": facts, "fingerprints": [asdict(one) for one in fingerprints]}
    parts = []
    for name, one in sorted(known.items()):
        lines = ",\n".join(f"   {json.dumps(line)}" for line in one["fingerprints"])
        parts.append(f' {json.dumps(name)}: {{\n  "host": {json.dumps(one["host"])},\n  "fingerprints": [\n{lines}\n  ]\n }}')
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def command(place):
    return "python -m tests.support.fingerprints" + ("" if place == EMULATOR else " --gpu")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    place = device_name() if parser.parse_args().gpu else EMULATOR
    if place == EMULATOR:
        with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
            new = list(emulated())
    else:
        new = list(on_gpu())
    found = read(place)[1] if FILE.exists() else []
    try:
        write(place, host(), merged(found, new))
    except ValueError as error:
        raise SystemExit(f"{error} Nothing was written.") from None
    print(f"{len(new)} fingerprints of {place} in {FILE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
