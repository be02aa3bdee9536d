"""`python -m examples.demo`: serve requests with continuous batching, every step checked."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from opfacade.errors import OpfacadeError


class _Command(click.Command):
    """Errors of the library, of a trace, and of files end the demo with a message and status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (OpfacadeError, OSError, ValueError) as error:
            click.echo(str(error), err=True)
            ctx.exit(2)


@click.command(cls=_Command)
@click.option(
    "--model",
    type=click.Choice(["tiny-llama"]),
    help="Instead: transformers generates on opfacade and on sdpa, and the tokens are compared.",
)
@click.option("--ranks", type=click.IntRange(1, 8), help="Instead: this number of processes decodes over a sharded cache.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV of real request lengths, with columns ContextTokens and GeneratedTokens.",
)
@click.option("--requests", type=int, help="How many requests to serve. [default: 64]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there is one]")
@click.option("--heads", type=int, help="Query heads of the layer. [default: 4 on a CPU, 32 on a GPU]")
@click.option("--kv-heads", type=int, help="Key and value heads. [default: 1, 8]")
@click.option("--head-dim", type=int, help="Elements of a head. [default: 64, 128]")
@click.option("--dtype", help="Element type of rows and cache: bf16, f16 or f32. [default: bf16]")
@click.option("--page-size", type=int, help="Tokens in a page. [default: 16]")
@click.option(
    "--pages", type=int, help="Pages in the pool; with fewer pages, requests wait. [default: half of the pages of all requests]"
)
@click.option("--chunk", type=int, help="Largest number of tokens per step; longer prompts are split. [default: 512, 2048]")
@click.option("--max-generated", type=int, help="Largest number of tokens per answer. [default: 256 on a CPU, none on a GPU]")
@click.option("--max-steps", type=int, help="Largest number of steps. [default: until all requests are served]")
@click.option("--checked-rows", type=int, help="Query rows per call that are compared with an fp64 oracle. [default: 4, 16]")
@click.option("--vocab", type=int, help="Tokens of the vocabulary of the sampler. [default: 1003, 32003]")
@click.option(
    "--every",
    type=int,
    help="Steps between two passes through a whole layer; --verbose prints a block after each. [default: 32]",
)
@click.option("--seed", type=int, help="Seed of lengths and tensors. [default: 0]")
@click.option("--verbose", is_flag=True, help="Print a line for each kernel and block of steps, SKUs, counters and totals.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Also write settings, totals, SKUs and every call to this file.",
)
@click.option(
    "--record",
    "recording",
    type=click.Path(path_type=Path),
    help="Also write the problems that were solved to this file, for warmup, tune, bench and verify.",
)
@click.pass_context
def main(
    ctx: click.Context,
    /,
    trace: Path | None,
    device: str | None,
    json_path: Path | None,
    recording: Path | None,
    verbose: bool,
    **given: Any,
) -> None:
    """Serve requests with continuous batching over a paged cache, and check every step against an fp64 oracle.

    Compiles every kernel first, on all cores; then serves, with a line of progress; then prints a table of the operators, the
    tokens per second, and PASS or FAIL. If an option has two defaults, the second is for a GPU.
    """
    import torch

    ranks = given.pop("ranks")
    if ranks is not None:
        from examples.demo.ranks import serve

        ctx.exit(0 if serve(ranks) else 1)
    if given.pop("model") is not None:
        from examples.demo import model

        ctx.exit(0 if model.run(device or ("cuda" if torch.cuda.is_available() else "cpu"), click.echo, json_path) else 1)

    from examples.demo.lengths import drawn, from_trace
    from examples.demo.main import Output, run
    from examples.demo.progress import Progress
    from examples.demo.settings import settings
    from opfacade import record

    chosen = settings(device, **given)
    if chosen.device == "cpu":
        # The shapes are small, so more threads gain little, and they lose much if other processes use the cores.
        torch.set_num_threads(1)
    lengths = from_trace(trace, chosen.requests) if trace else drawn(chosen.requests, chosen.seed)
    click.echo(f"request lengths: {trace or 'drawn, in the shape of a conversation service'}")
    with record(recording, lengths=True) if recording else nullcontext():
        out = Output(click.echo, Progress(sys.stderr, sys.stderr.isatty()), verbose, json_path)
        sound = run(chosen, lengths, out)
    ctx.exit(0 if sound else 1)


if __name__ == "__main__":
    main(prog_name="python -m examples.demo")
