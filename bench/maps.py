"""Maps, gated activations and rotations on one GPU: `python -m bench.maps [--only WORD] [--out FILE]`.

Peers: torch eager, torch.compile, and FlashInfer if it can be imported. Large problems: microseconds with L2 cold, dirty and
clean, bytes read and written per second as a fraction of the rate of a tensor copy in this run, and the ratio to a time model,
1.8 us + bytes / (0.97 of the copy rate). Small ones: microseconds of one launch in a CUDA graph with many launches. Our result
is checked against its error bound before it is timed, and a wrong result ends the run; a peer with a different result gets no
time. `--show RECORD --picture FILE` draws a record instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from bench import pictures, records
from bench.append import copying
from bench.attention import machine
from bench.decode import IN_A_GRAPH, shown, time_graph, timings
from opfacade import Plan, Preference
from opfacade.core.descriptor import operands_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.rotary import RotaryDescriptor, rotary_table
from opfacade.programs.activations import silu
from opfacade.programs.expression import value
from opfacade.programs.fields import Input, Output
from opfacade.testing import inputs, numerics

SMALL = 128  # problems with fewer rows are timed in a graph
SAMPLED = 2048  # rows of different lengths that are checked, one by one
WIDTH, HEADS, KV_HEADS, DIM, POSITIONS = 14336, 32, 8, 128, 16384
ROWS = (1, 16, 64, 128, 1024, 8192)
Call = Callable[[], Any]
X, Y = value("x", "f32"), value("y", "f32")
PANELS = (
    ("maps", r"map "),
    ("silu_and_mul", r"silu_and_mul "),
    ("swiglu_oai", r"swiglu_oai"),
    ("rotary positions", r"rope "),
)


@dataclass(frozen=True)
class Problem:
    """A descriptor, the layout of its tensors, and the function that peers compute: (args) -> the result, or None if in
    place."""

    name: str
    descriptor: Any
    laid_out: Callable[[Any], Any]
    eager: Callable[[Any], Any]
    rows: int
    flashinfer: Callable[[Any, Any], Call] | None = None  # (package, args) -> a call that writes to our outputs


def as_drawn(args: Any) -> Any:
    return args


def elementwise(rows: int, width: int, value: Any, y_over: tuple[int, ...] | None = None, unary: bool = False) -> MapDescriptor:
    read = (Input(name="x", dtype="bf16"), *(() if unary else (Input(name="y", dtype="bf16", over=y_over),)))
    return MapDescriptor(shape=(rows, width), inputs=read, outputs=(Output(name="z", dtype="bf16", value=value),))


def with_input(args: Any, tensor: torch.Tensor) -> Any:
    return type(args)(inputs=[tensor, *([] if args.in_1 is None else [args.in_1])], outputs=[args.out_0])


def turned(args: Any) -> Any:
    """x with its rows contiguous along the other axis."""
    return with_input(args, args.in_0.T.contiguous().T)


def padded(args: Any) -> Any:
    """x as part of wider rows."""
    rows, width = args.in_0.shape
    wide = torch.empty(rows, width + 64, dtype=args.in_0.dtype, device=args.in_0.device)
    return with_input(args, wide[:, :width].copy_(args.in_0))


def maps(size: int = 8192) -> Iterator[Problem]:
    silu_of, add = elementwise(size, size, silu(X), unary=True), elementwise(size, size, X + Y)
    yield Problem("map flat: silu", silu_of, as_drawn, lambda a: F.silu(a.in_0), size)
    yield Problem("map flat: x + y", add, as_drawn, lambda a: a.in_0 + a.in_1, size)
    yield Problem("map rows: x + y of padded rows", add, padded, lambda a: a.in_0 + a.in_1, size)
    bias = elementwise(size, size, X + Y, (1,))
    yield Problem("map rows: x + bias", bias, as_drawn, lambda a: a.in_0 + a.in_1, size)
    yield Problem("map transposed: silu", silu_of, turned, lambda a: F.silu(a.in_0).contiguous(), size)
    yield Problem("map transposed: x + y", add, turned, lambda a: a.in_0 + a.in_1, size)


def gates(rows: int, width: int = WIDTH) -> Iterator[Problem]:
    def eager(args: Any) -> torch.Tensor:
        gate, up = args.x.chunk(2, -1)
        return F.silu(gate) * up

    def pairs(args: Any) -> torch.Tensor:
        gate, up = args.x[:, ::2].clamp(max=7.0), args.x[:, 1::2].clamp(-7.0, 7.0)
        return gate * torch.sigmoid(gate * 1.702) * (up + 1)

    def flashinfer(package: Any, args: Any) -> Call:
        return lambda: package.activation.silu_and_mul(args.x, out=args.out)

    plain = GatedActivationDescriptor(total_num_rows=rows, width=width, dtype="bf16")
    yield Problem(f"silu_and_mul {rows} x {width}", plain, as_drawn, eager, rows, flashinfer)
    oai = GatedActivationDescriptor(total_num_rows=rows, width=width, dtype="bf16", activation="swiglu_oai", interleaved=True)
    yield Problem(f"swiglu_oai, alternating {rows} x {width}", oai, as_drawn, pairs, rows)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def ropes(rows: int) -> Iterator[Problem]:
    def in_rows(args: Any) -> Any:
        """q and k as views of one qkv, with a model's table."""
        device, qk = args.q.device, HEADS + KV_HEADS
        qkv = torch.empty(rows, qk + KV_HEADS, DIM, dtype=args.q.dtype, device=device)
        at = torch.arange(rows, device=device) * 7 % POSITIONS
        table = rotary_table(rotary_dim=DIM, max_positions=POSITIONS, base=500000.0, device=device)
        q, k = qkv[:, :HEADS].copy_(args.q), qkv[:, HEADS:qk].copy_(args.k)
        return type(args)(q=q, k=k, positions=at, cos_sin_cache=table)

    def eager(args: Any) -> None:
        cos, sin = args.cos_sin_cache[args.positions][:, None].chunk(2, -1)
        args.q.copy_(rotated(args.q, cos, sin))
        args.k.copy_(rotated(args.k, cos, sin))

    def flashinfer(package: Any, args: Any) -> Call:
        flat = [args.q.flatten(1), args.k.flatten(1)]
        return lambda: package.rope.apply_rope_with_cos_sin_cache_inplace(args.positions, *flat, DIM, args.cos_sin_cache, True)

    problem = RotaryDescriptor(
        total_num_rows=rows, num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, rotary_dim=DIM, dtype="bf16"
    )
    yield Problem(f"rope {rows} x ({HEADS} + {KV_HEADS}) x {DIM}", problem, in_rows, eager, rows, flashinfer)


def problems() -> Iterator[Problem]:
    yield from maps()
    for rows in ROWS:
        yield from gates(rows)
    for rows in ROWS:
        yield from ropes(rows)


def moved(descriptor: Any, args: Any) -> int:
    """The bytes that must be read and written: each element once, an overwritten element twice; for a table, one row per
    row."""
    found = 0
    for name, spec in operands_of(descriptor).items():
        tensor = getattr(args, name)
        count = tensor.numel() if name != "cos_sin_cache" else min(tensor.shape[0], descriptor.total_num_rows) * tensor.shape[1]
        found += count * tensor.element_size() * (2 if spec.role == "inout" else 1)
    return found


def results(descriptor: Any, args: Any) -> list[torch.Tensor]:
    """Tensors that a call writes."""
    return [getattr(args, name) for name, spec in operands_of(descriptor).items() if spec.written]


def checked(problem: Problem, args: Any, prefer: Preference | None) -> tuple[Plan[Any], float]:
    plan: Plan[Any] = Plan.select(problem.descriptor, prefer)
    before = numerics.snapshot(problem.descriptor, args)
    plan.run(args)
    rows = SAMPLED if getattr(problem.descriptor, "ragged", None) else None
    report = numerics.check(problem.descriptor, args, plan.sku, rows, before=before)
    if not report.worst <= 1:
        raise SystemExit(f"{problem.name}: wrong result, not timed: {report}")
    return plan, round(report.worst, 3)


def fresh(problem: Problem, device: str) -> Any:
    return problem.laid_out(inputs.make_args(problem.descriptor, seed=1, device=device))


def peers(problem: Problem, device: str) -> Iterator[tuple[str, Callable[[Any], Call]]]:
    """The name, and a function from args to the call that is timed."""
    yield "torch eager", lambda args: lambda: problem.eager(args)
    compiled = torch.compile(problem.eager, dynamic=False)
    yield "torch.compile", lambda args: lambda: compiled(args)
    if problem.flashinfer is not None and device == "cuda":
        try:
            import flashinfer
        except ImportError:
            return
        build = problem.flashinfer
        yield "flashinfer", lambda args: build(flashinfer, args)


def agrees(problem: Problem, call_of: Callable[[Any], Call], wanted: list[torch.Tensor], device: str) -> bool:
    """Whether a peer's result equals ours up to rounding; a peer may round more often."""
    args = fresh(problem, device)
    made = call_of(args)()
    found = [made] if isinstance(made, torch.Tensor) else results(problem.descriptor, args)
    scale = [max(1.0, float(want.float().abs().max())) for want in wanted]
    return all(
        got.shape == want.shape
        and bool(((got.float() - want.float()).abs() <= 2.0**-6 * want.float().abs() + 2.0**-12 * size).all())
        for got, want, size in zip(found, wanted, scale, strict=True)
    )


def timed(problem: Problem, run: Call, floor_us: float) -> dict[str, Any]:
    if problem.rows <= SMALL:
        return {"graph_us": time_graph([run] * IN_A_GRAPH)}
    row = timings(run)
    best = min(row["dirty_us"]["median"], row["clean_us"]["median"])
    return row | {"over_model": round(best / floor_us, 3)}


def measured(problem: Problem, copy_TBs: float) -> Iterator[dict[str, Any]]:
    args = fresh(problem, "cuda")
    plan, error = checked(problem, args, Preference(backend="cuda"))
    wanted = [tensor.clone() for tensor in results(problem.descriptor, args)]
    bytes_moved = moved(problem.descriptor, args)
    model_us = 1.8 + bytes_moved / (0.97 * copy_TBs) * 1e-6
    row: dict[str, Any] = {"problem": problem.name, "bytes": bytes_moved, "model_us": round(model_us, 2)}
    ours = (
        row
        | {"who": "opfacade", "sku": plan.sku.id, "error_over_bound": error}
        | timed(problem, lambda: plan.run(args), model_us)
    )
    if "dirty_us" in ours:
        rate = bytes_moved / min(ours["dirty_us"]["median"], ours["clean_us"]["median"]) * 1e-6
        ours |= {"TBs": round(rate, 3), "of_copying": round(rate / copy_TBs, 3)}
    yield ours
    for name, call_of in peers(problem, "cuda"):
        if not agrees(problem, call_of, wanted, "cuda"):
            yield row | {"who": name, "refused": "its result is not ours"}
            continue
        yield row | {"who": name} | timed(problem, call_of(args), model_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="problems whose name has this word: map, silu, swiglu or rope")
    parser.add_argument("--commit", help="recorded in place of git's answer")
    records.add_out(parser, "maps")
    pictures.add_options(parser)
    options = parser.parse_args()
    if pictures.shown(options, PANELS):
        return
    out = records.place(options.out, "maps", not options.only)
    record: dict[str, Any] = {"machine": machine(), "ceilings": {"copy_TBs": round(copying(), 3)}, "rows": []}
    record["machine"]["commit"] = options.commit or record["machine"]["commit"]
    print(json.dumps(record["ceilings"]), flush=True)
    for problem in problems():
        if options.only and options.only not in problem.name:
            continue
        for row in measured(problem, record["ceilings"]["copy_TBs"]):
            record["rows"].append(row)
            print(shown(row), flush=True)
        torch.cuda.empty_cache()
        torch.compiler.reset()
        records.write(out, record)
    if options.picture:
        pictures.picture(record, PANELS, options.picture)


if __name__ == "__main__":
    main()
