"""Norms, quantisation, softmax and sums of rows on one GPU: `python -m bench.rows [--only WORD] [--without PEER] [--out FILE]`.

Peers: torch eager, torch.compile, and FlashInfer if it can be imported. Timing, ceilings and the check of results are as in
`bench.maps`: large problems with L2 dirty and clean, up to 128 rows as one launch of a CUDA graph. A record has the machine,
its date and the commit. torch.compile takes seconds per problem; `--without torch.compile` omits it. `--show RECORD --picture
FILE` draws a record instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench import maps, pictures, records
from bench.append import copying
from bench.attention import machine
from bench.decode import shown
from bench.maps import Call, Problem, as_drawn
from opfacade import Preference
from opfacade.plans.norm import NormDescriptor, Quant
from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor
from opfacade.plans.reduction import FoldDescriptor, FoldOutput, Stage
from opfacade.plans.softmax import SoftmaxDescriptor
from opfacade.programs.expression import stage, value
from opfacade.programs.fields import Input

HIDDEN = (1024, 4096, 7168, 8192, 16384)
ROWS = (1, 16, 128, 1024, 8192)
ELEMENTS = 2**26  # rows of a softmax or a sum
WIDTHS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)
LARGEST = 448.0
EPS = 1e-6
PANELS = (
    ("rmsnorm", r"rmsnorm "),
    ("add + rmsnorm, in place", r"add \+ rmsnorm \d"),
    ("layernorm", r"layernorm "),
    ("softmax", r"softmax "),
    ("fp8 with a scale for 128", r"(?:de)?quantise |add \+ rmsnorm \+ fp8"),
    ("sums of rows, columns and segments", r"(?:segment )?sum "),
)


def norm(rows: int, hidden: int, **fields: Any) -> NormDescriptor:
    return NormDescriptor(**({"kind": "rms", "total_num_rows": rows, "hidden": hidden, "dtype": "bf16"} | fields))


def rms(rows: int, hidden: int) -> Problem:
    def flashinfer(package: Any, args: Any) -> Call:
        return lambda: package.norm.rmsnorm(args.x, args.weight, EPS, out=args.out)

    def eager(args: Any) -> torch.Tensor:
        return F.rms_norm(args.x, (hidden,), args.weight, EPS)

    return Problem(f"rmsnorm {rows} x {hidden}", norm(rows, hidden), as_drawn, eager, rows, flashinfer)


def add_rms(rows: int, hidden: int) -> Problem:
    """In place, as in peers: the sum overwrites residual, and the result overwrites x."""

    def flashinfer(package: Any, args: Any) -> Call:
        return lambda: package.norm.fused_add_rmsnorm(args.x, args.residual, args.weight, EPS)

    def eager(args: Any) -> None:
        total = args.x.float() + args.residual.float()
        args.residual.copy_(total)
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS)
        args.x.copy_(total * scale * args.weight.float())

    problem = norm(rows, hidden, residual=True, in_place=True)
    return Problem(f"add + rmsnorm {rows} x {hidden}", problem, as_drawn, eager, rows, flashinfer)


def layer(rows: int, hidden: int) -> Problem:
    def flashinfer(package: Any, args: Any) -> Call:
        return lambda: args.out.copy_(package.norm.layernorm(args.x, args.weight, args.bias, EPS))

    def eager(args: Any) -> torch.Tensor:
        return F.layer_norm(args.x.float(), (hidden,), args.weight, args.bias, EPS).to(args.x.dtype)

    problem = norm(rows, hidden, kind="layer", bias=True, weight_dtype="f32")
    return Problem(f"layernorm {rows} x {hidden}", problem, as_drawn, eager, rows, flashinfer)


def write_groups(args: Any, y: torch.Tensor) -> None:
    """8 bits in groups of 128, by torch."""
    parts = y.unflatten(-1, (-1, 128))
    scale = parts.abs().amax(-1).clamp(min=1e-10) / LARGEST
    args.scale.copy_(scale)
    args.out.copy_((parts / scale[..., None]).clamp(-LARGEST, LARGEST).flatten(1).to(args.out.dtype))


def quantised(rows: int, hidden: int = 7168) -> Iterator[Problem]:
    def fused(args: Any) -> None:
        total = args.x.float() + args.residual.float()
        args.residual.copy_(total)
        write_groups(args, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS) * args.weight.float())

    def back(args: Any) -> torch.Tensor:
        return (args.x.float().unflatten(-1, (-1, 128)) * args.scale[..., None]).flatten(1).bfloat16()

    problem = norm(rows, hidden, residual=True, quant=Quant())
    yield Problem(f"add + rmsnorm + fp8 1x128 {rows} x {hidden}", problem, as_drawn, fused, rows)
    plain = QuantizeDescriptor(total_num_rows=rows, hidden=hidden, dtype="bf16")
    yield Problem(
        f"quantise fp8 1x128 {rows} x {hidden}", plain, as_drawn, lambda args: write_groups(args, args.x.float()), rows
    )
    reverse = DequantizeDescriptor(total_num_rows=rows, hidden=hidden, dtype="bf16")
    yield Problem(f"dequantise fp8 1x128 {rows} x {hidden}", reverse, as_drawn, back, rows)


def softmax(width: int, dtype: Any) -> Problem:
    rows = ELEMENTS // width
    problem = SoftmaxDescriptor(shape=(rows, width), dtype=dtype)
    return Problem(f"softmax {dtype} {rows} x {width}", problem, as_drawn, lambda args: torch.softmax(args.x, -1), rows)


def total(width: int) -> Problem:
    rows = ELEMENTS // width
    problem = FoldDescriptor(
        shape=(rows, width),
        fold=(1,),
        inputs=(Input(name="x", dtype="f32"),),
        stages=(Stage(reducer="sum", value=value("x", "f32")),),
        outputs=(FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),),
    )
    return Problem(f"sum f32 {rows} x {width}", problem, as_drawn, lambda args: args.in_0.sum(-1), max(rows, maps.SMALL + 1))


def down(dtype: Any, rows: int = 8192, width: int = 8192) -> Problem:
    """Along axis 0 of a matrix."""
    problem = FoldDescriptor(
        shape=(rows, width),
        fold=(0,),
        inputs=(Input(name="x", dtype=dtype),),
        stages=(Stage(reducer="sum", value=value("x", "f32")),),
        outputs=(FoldOutput(name="y", dtype=dtype, value=stage(0, "f32"), over=(1,)),),
    )
    return Problem(f"sum of columns {dtype} {rows} x {width}", problem, as_drawn, lambda args: args.in_0.sum(0), rows)


def one_row(dtype: Any, width: int = ELEMENTS) -> Problem:
    """All elements of a tensor."""
    problem = FoldDescriptor(
        shape=(1, width),
        fold=(1,),
        inputs=(Input(name="x", dtype=dtype),),
        stages=(Stage(reducer="sum", value=value("x", "f32")),),
        outputs=(FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),),
        split="auto",
    )
    name = f"sum of one row {dtype} 1 x {width}"
    return Problem(name, problem, as_drawn, lambda args: args.in_0.sum(-1, dtype=torch.float32), maps.SMALL + 1)


def segments(dtype: Any, rows: int = 16384, length: int = 4096) -> Problem:
    """Sums of segments of a flat tensor, of `length` elements on average."""
    elements = rows * length
    problem = FoldDescriptor(
        shape=(rows, elements),
        fold=(1,),
        inputs=(Input(name="x", dtype=dtype, over=(1,)),),
        stages=(Stage(reducer="sum", value=value("x", "f32")),),
        outputs=(FoldOutput(name="y", dtype="f32", value=stage(0, "f32"), over=(0,)),),
        ragged="i64",
    )

    def whole(args: Any) -> Any:
        args.indptr[0], args.indptr[-1] = 0, elements
        return args

    def eager(args: Any) -> torch.Tensor:
        return torch.segment_reduce(args.in_0.float(), "sum", offsets=args.indptr)

    return Problem(f"segment sum {dtype} {rows} of {elements}", problem, whole, eager, rows)


def problems() -> Iterator[Problem]:
    for make in (rms, add_rms, layer):
        for hidden in HIDDEN:
            yield from (make(rows, hidden) for rows in ROWS)
    for rows in (128, 8192):
        yield from quantised(rows)
    for width in WIDTHS:
        yield from (softmax(width, dtype) for dtype in ("bf16", "f32"))
        yield total(width)
    for dtype in ("f32", "bf16"):
        yield from (down(dtype), one_row(dtype), segments(dtype), segments(dtype, 2**20, 64))


def of_ours(problem: Problem, copy_TBs: float) -> tuple[dict[str, Any], list[torch.Tensor], Any]:
    """Our row of the record, the results, and the tensors of the call."""
    args = maps.fresh(problem, "cuda")
    plan, error = maps.checked(problem, args, Preference(backend="cuda"))
    wanted = [tensor.clone() for tensor in maps.results(problem.descriptor, args)]
    moved = maps.moved(problem.descriptor, args)
    row = {"problem": problem.name, "bytes": moved, "model_us": round(1.8 + moved / (0.97 * copy_TBs) * 1e-6, 2)}
    row |= {"who": "opfacade", "sku": plan.sku.id, "error_over_bound": error}
    row |= maps.timed(problem, lambda: plan.run(args), row["model_us"])
    if "dirty_us" in row:
        rate = moved / min(row["dirty_us"]["median"], row["clean_us"]["median"]) * 1e-6
        row |= {"TBs": round(rate, 3), "of_copying": round(rate / copy_TBs, 3)}
    return row, wanted, args


def agrees(problem: Problem, call_of: Callable[[Any], Call], wanted: list[torch.Tensor], device: str) -> bool:
    """Whether a peer's result equals ours up to rounding; an 8-bit element may be the adjacent value."""
    args = maps.fresh(problem, device)
    made = call_of(args)()
    found = [made] if isinstance(made, torch.Tensor) and len(wanted) == 1 else maps.results(problem.descriptor, args)
    return all(_near(got, want) for got, want in zip(found, wanted, strict=True))


def _near(got: torch.Tensor, want: torch.Tensor) -> bool:
    """No element is farther than a few roundings of its dtype."""
    step = 2.0**-3 if want.itemsize == 1 else 2.0**-6
    least = 2.0**-12 * max(1.0, float(want.float().abs().max()))
    return got.shape == want.shape and bool(((got.float() - want.float()).abs() <= step * want.float().abs() + least).all())


def measured(problem: Problem, copy_TBs: float, without: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    ours, wanted, args = of_ours(problem, copy_TBs)
    yield ours
    row = {name: ours[name] for name in ("problem", "bytes", "model_us")}
    for name, call_of in maps.peers(problem, "cuda"):
        if without(name):
            continue
        if not agrees(problem, call_of, wanted, "cuda"):
            yield row | {"who": name, "refused": "its result is not ours"}
            continue
        yield row | {"who": name} | maps.timed(problem, call_of(args), ours["model_us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="problems whose name has this word, such as rmsnorm, layernorm, fp8, softmax or sum")
    parser.add_argument("--without", action="append", default=[], help="a peer that is not timed; may be repeated")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "rows")
    pictures.add_options(parser)
    options = parser.parse_args()
    if pictures.shown(options, PANELS):
        return
    out = records.place(options.out, "rows", not options.only and not options.without)
    record: dict[str, Any] = {"machine": machine(), "ceilings": {"copy_TBs": round(copying(), 3)}, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(record["ceilings"]), flush=True)
    for problem in problems():
        if options.only and options.only not in problem.name:
            continue
        for row in measured(problem, record["ceilings"]["copy_TBs"], lambda name: name in options.without):
            record["rows"].append(row)
            print(shown(row), flush=True)
        torch.cuda.empty_cache()
        torch.compiler.reset()
        records.write(out, record)
    if options.picture:
        pictures.picture(record, PANELS, options.picture)


if __name__ == "__main__":
    main()
