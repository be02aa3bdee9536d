"""Tests facts about tensor cores on which the matrix product kernels rely: `python -m bench.matmul_probes [--out FILE]`.

Bits: random tiles of 64 x 256 x 4 k-steps are multiplied by wgmma of each width, with A in registers, with the operands
exchanged, in each layout, onto a sum of 0, with k permuted inside a k-step, and by mma.sync; elements with other bits than
wgmma of 256 columns are counted. A sixth of the tiles has exact sums, in which nothing may differ; two k-steps exchanged are
the control that must differ. Time: the sum of a split product over a cluster through distributed shared memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch

from bench import records
from opfacade.jit import toolchain
from opfacade.tools.machine import machine

HERE = Path(__file__).parent / "probes"
KINDS = {"BF16": ("k16.f32.bf16.bf16", 0), "F16": ("k16.f32.f16.f16", 1), "E4M3": ("k32.f32.e4m3.e4m3", 2)}
WIDTHS = range(8, 257, 8)
IN_REGISTERS = (8, 64, 128, 256)  # widths that are also tested with A in registers
LAYOUTS = {"ts": "1, 0", "st": "0, 1", "tt": "1, 1"}  # which operands are k-major


def product(name: str, parameters: str, operands: str, flags: str, given: str, registers: int) -> str:
    """One wrapper of an instruction. Its last operand says whether the previous sum is added."""
    count = len(given.split("), ")) - 1  # operands before that flag
    sums = ", ".join(f"%{i}" for i in range(registers))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(registers))
    return (
        f"  static __device__ __forceinline__ void {name}(float (&d)[{registers}], {parameters}, int add) {{\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{registers + count}, 0;\\n'
        f'@KIND {{{sums}}}, {operands}, p, {flags};\\n}}" : {outputs} : {given} : "memory");\n  }}\n'
    )


def instruction(kind: str, tag: str, width: int) -> str:
    """The products of one width: with operands in shared memory, and if probed, with A in registers and with other layouts."""
    n, sixteen = width // 2, tag != "E4M3"
    shared = ("uint64_t a, uint64_t b", f"%{n}, %{n + 1}", '"l"(a), "l"(b), "r"(add)')
    found = product("ss", shared[0], shared[1], "1, 1, 0, 0" if sixteen else "1, 1", shared[2], n)
    if width in IN_REGISTERS:
        words, given = ", ".join(f"%{n + i}" for i in range(4)), ", ".join(f'"r"(a[{i}])' for i in range(4))
        flags = "1, 1, 0" if sixteen else "1, 1"
        found += product(
            "rs", "const uint32_t* a, uint64_t b", f"{{{words}}}, %{n + 4}", flags, f'{given}, "l"(b), "r"(add)', n
        )
    if sixteen and width == 64:
        found += "".join(product(name, shared[0], shared[1], f"1, 1, {flag}", shared[2], n) for name, flag in LAYOUTS.items())
    found = found.replace("@KIND", f"wgmma.mma_async.sync.aligned.m64n{width}{kind}")
    return f"template <> struct W<{tag}, {width}> {{\n{found}}};\n"


def build(tag: str, folder: Path) -> Path:
    kind, number = KINDS[tag]
    header, made = folder / f"{tag}.cuh", folder / f"bits_{tag}"
    header.write_text("template <class T, int N> struct W;\n" + "".join(instruction(kind, tag, n) for n in WIDTHS))
    facts = [f"-DTYPE={tag}", f"-DTYPE_ID={number}", f'-DTYPE_NAME="{tag}"', f'-DHEADER="{header}"']
    return compile_cuda(HERE / "product_bits.cu", made, facts)


def compile_cuda(source: Path, made: Path, facts: list[str]) -> Path:
    nvcc = str(toolchain.find().nvcc)
    words = [nvcc, "-gencode", "arch=compute_90a,code=sm_90a", "-O3", "-std=c++17", *facts, "-o", str(made), str(source)]
    subprocess.run(words, check=True, timeout=300)
    return made


def run(program: Path, *words: str) -> object:
    done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=1_000_000)
    parser.add_argument("--dry", action="store_true", help="only print the instructions; needs no GPU")
    records.add_out(parser, "matmul_probes")
    records.add_commit(parser)
    options = parser.parse_args()
    if options.dry:
        print("".join(instruction(kind, tag, n) for tag, (kind, _) in KINDS.items() for n in WIDTHS))
        return
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU; --dry needs none")
    with tempfile.TemporaryDirectory() as work:
        bits = [run(build(tag, Path(work)), str(options.tiles)) for tag in KINDS]
        cluster = run(compile_cuda(HERE / "cluster_sum.cu", Path(work, "cluster_sum"), []))
    record = {"machine": machine("cuda") | {"commit": records.commit(options.commit)}, "bits": bits, "cluster_sum": cluster}
    records.write(records.place(options.out, "matmul_probes"), record)
    print(json.dumps(bits, indent=1))


if __name__ == "__main__":
    main()
