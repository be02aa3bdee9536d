"""One step of the server: append every new row, attend, draw tokens, and check each output against its SKU's bound.

Every few steps the rows go through a whole layer of a model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from examples.demo import plain_layer
from examples.demo.layer import Call, Layer
from examples.demo.problems import Problems
from examples.demo.scheduler import Part, ServingStep
from examples.demo.settings import Settings
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.core.target import Target
from opfacade.errors import UnsupportedDeviceError
from opfacade.plan import Plan
from opfacade.plans.attention import BatchPagedDecodeArgs, BatchPagedPrefillArgs
from opfacade.plans.kv_cache import PagedKvAppendArgs
from opfacade.plans.sampling import SampleArgs
from opfacade.testing import numerics

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ran:
    """One operator call: its inputs, its time, and its largest error over the bound."""

    step: int
    plan: Plan[Any]
    requests: int
    rows: int
    longest: int
    seconds: float
    report: numerics.Report


def target_of(settings: Settings) -> Target:
    if settings.device == "cpu":
        return Target.cpu()
    if Target.current().is_cpu:
        message = "demo.run: device expected a CUDA device, got none on this machine. Use --device cpu. [OPF-S001]"
        raise UnsupportedDeviceError(message, code="OPF-S001", op="demo", stage="run")
    return Target.current()


class Server:
    """The cache and the operators. Slots start as NaN, so a wrong read shows in the results."""

    def __init__(self, settings: Settings, num_pages: int) -> None:
        import torch

        self._settings = settings
        self._target = target_of(settings)
        self._problems = Problems(settings, num_pages)
        shape = [dim.size or 0 for dim in self._problems.cache.pool_spec("inout").shape]
        self._dtype = torch_dtype(settings.dtype)
        self._random = torch.Generator(device=settings.device).manual_seed(settings.seed)
        self.k_data, self.v_data = (torch.full(shape, float("nan"), device=settings.device).to(self._dtype) for _ in range(2))
        self._layer = Layer(settings, self._problems, self._random) if self._problems.has_layer else None
        self._compiled: set[str] = set()

    def run(self, step: ServingStep) -> Iterator[Ran]:
        """Run and check the operators of one step. A prompt's last chunk yields the first token, and decodes yield all
        others."""
        yield self._append(step)
        logits, begins = None, self._problems.begins_block(step)
        if self._layer is not None and begins:
            logits = yield from self._whole_layer(step, self._layer)
        else:
            yield from self._attention(step, self._query(sum(part.rows for part in step.parts)))
        if begins and step.drawing:
            yield self._draw(step, self._random_logits(len(step.drawing)) if logits is None else logits)

    def _attention(self, step: ServingStep, heads: dict[str, Tensor]) -> Iterator[Ran]:
        """Rows of prompts come first."""
        first = sum(part.rows for part in step.prefill)
        if step.prefill:
            yield self._prefill(step, {name: x[:first] for name, x in heads.items()})
        if step.decode:
            yield self._decode(step, {name: x[first:] for name, x in heads.items()})

    def _whole_layer(self, step: ServingStep, layer: Layer) -> Generator[Ran, None, Tensor | None]:
        """Passes the same new rows through a model layer, whose k and v replace those in the pages; returns the step's logits.

        Logits and most likely tokens are compared with the layer in plain torch and f64, over the same keys and values.
        """
        import torch

        new = [range(part.request.cached - part.rows, part.request.cached) for part in step.parts]
        positions = self._int32([position for rows in new for position in rows]).long()
        tables = self._paged(step.parts) | {"append_indptr": self._indptr(part.rows for part in step.parts)}
        x = self._randn(len(positions), 1, layer.hidden)[:, 0]
        given = x.clone()
        _, args = yield from self._calls(step, step.parts, layer.before(x, positions, tables))
        heads = self._query(len(positions)) | {"q": args.q_out}
        yield from self._attention(step, heads)
        ran, args = yield from self._calls(step, step.parts, layer.behind(heads["o"], x))
        if not step.drawing:
            return None
        last = torch.tensor([rows - 1 for rows in accumulate(part.rows for part in step.parts)], device=x.device)
        last = last[[part.request.decodes for part in step.parts]]
        _, tail = yield from self._calls(step, step.drawing, layer.logits(args.out[last]))
        wanted = plain_layer.logits(layer, self._settings, given[last], positions[last], self._cached(step.drawing))
        if (wrong := plain_layer.unequal(tail.out, wanted)) is not None:
            yield _wrong(ran, f"the logits of request {step.drawing[wrong].request.number} are not those of plain torch in f64")
        found: Tensor = tail.out
        return found

    def _calls(self, step: ServingStep, parts: Sequence[Part], calls: Iterable[Call]) -> Generator[Ran, None, tuple[Ran, Any]]:
        """Runs the calls (at least one) in order; returns the last call and its args."""
        for descriptor, args in calls:
            ran = self._measured(step, parts, descriptor, args, numerics.snapshot(descriptor, args))
            yield ran
        return ran, args

    def _cached(self, parts: Sequence[Part]) -> list[tuple[Tensor, Tensor]]:
        """K and V of each request, [tokens, kv_heads, head_dim]."""

        def of(pool: Tensor, part: Part) -> Tensor:
            return pool[part.request.pages].transpose(1, 2).flatten(0, 1)[: part.request.cached]

        return [(of(self.k_data, part), of(self.v_data, part)) for part in parts]

    def _append(self, step: ServingStep) -> Ran:
        rows, s = sum(part.rows for part in step.parts), self._settings
        args = PagedKvAppendArgs(
            k_new=self._randn(rows, s.kv_heads),
            v_new=self._randn(rows, s.kv_heads),
            append_indptr=self._indptr(part.rows for part in step.parts),
            **self._paged(step.parts),
        )
        before = (self.k_data.clone(), self.v_data.clone()) if self._problems.begins_block(step) else None
        return self._measured(step, step.parts, self._problems.append(step.parts), args, before)

    def _prefill(self, step: ServingStep, heads: dict[str, Tensor]) -> Ran:
        q_indptr = self._indptr(part.rows for part in step.prefill)
        args = BatchPagedPrefillArgs(q_indptr=q_indptr, **heads, **self._paged(step.prefill))
        return self._measured(step, step.prefill, self._problems.prefill(step.prefill), args)

    def _decode(self, step: ServingStep, heads: dict[str, Tensor]) -> Ran:
        args = BatchPagedDecodeArgs(**heads, **self._paged(step.decode))
        return self._measured(step, step.decode, self._problems.decode(step.decode), args)

    def _draw(self, step: ServingStep, logits: Tensor) -> Ran:
        """Draws tokens from logits [drawing, vocab], with a seed for each request. Draws again with the requests in reverse
        order, to compare."""
        import torch

        s, parts = self._settings, step.drawing
        descriptor = self._problems.draw(parts)
        args = self._draw_args(parts, logits)
        ran = self._measured(step, parts, descriptor, args)
        order = torch.arange(len(parts) - 1, -1, -1, device=s.device)
        inputs = {name: getattr(args, name)[order] for name in descriptor.operands()}
        ran.plan.run(again := SampleArgs(**inputs))
        if torch.equal(again.token[order], args.token):
            return ran
        return _wrong(ran, "tokens depend on the order of the requests")

    def _random_logits(self, rows: int) -> Tensor:
        return self._randn(rows, 1, self._settings.vocab)[:, 0].mul_(3)

    def _draw_args(self, parts: Sequence[Part], logits: Tensor) -> SampleArgs:
        import torch

        s, count = self._settings, len(parts)
        numbers = [(s.seed + part.request.number, part.request.cached - part.request.length.context) for part in parts]
        seed, offset = torch.tensor(numbers, dtype=torch.int64, device=s.device).t().contiguous()
        shares = torch.linspace(0.0, 1.0, count, device=s.device)  # the first request is greedy
        return SampleArgs(
            logits=logits,
            temperature=shares,
            top_k=self._int32([50] * count),
            top_p=1 - 0.1 * shares,
            seed=seed,
            offset=offset,
            token=self._int32([-2] * count),
            valid=torch.zeros(count, dtype=torch.uint8, device=s.device),
        )

    def _measured(
        self, step: ServingStep, parts: Sequence[Part], descriptor: Descriptor[Any], args: Any, before: Any = None
    ) -> Ran:
        plan: Plan[Any] = Plan.select(descriptor, target=self._target)
        if plan.sku.id not in self._compiled:  # so that no build is timed
            plan.compile()
            self._compiled.add(plan.sku.id)
        seconds = self._timed(plan, args)
        checked_rows, seed = self._settings.checked_rows, self._settings.seed + step.number
        report = numerics.check(plan.descriptor, args, plan.sku, rows=checked_rows, seed=seed, before=before)
        rows, longest = sum(part.rows for part in parts), max(part.request.cached for part in parts)
        return Ran(step.number, plan, len(parts), rows, longest, seconds, report)

    def _timed(self, plan: Plan[Any], args: Any) -> float:
        """Seconds from call to finished outputs: the device is idle before and after."""
        self._wait()
        start = time.perf_counter()
        plan.run(args)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._settings.device == "cuda":
            import torch

            torch.cuda.synchronize()

    # -- operands ---------------------------------------------------------------------------------------------------

    def _paged(self, parts: Sequence[Part]) -> dict[str, Tensor]:
        page_size = self._settings.page_size
        return {
            "k_data": self.k_data,
            "v_data": self.v_data,
            "kv_indptr": self._indptr(len(part.request.pages) for part in parts),
            "kv_indices": self._int32([page for part in parts for page in part.request.pages]),
            "last_page_len": self._int32([(part.request.cached - 1) % page_size + 1 for part in parts]),
        }

    def _query(self, rows: int) -> dict[str, Tensor]:
        import torch

        heads, nan = self._settings.heads, float("nan")
        q = self._randn(rows, heads)
        return {"q": q, "o": torch.full_like(q, nan), "lse": torch.full((rows, heads), nan, device=q.device)}

    def _randn(self, rows: int, heads: int, dim: int | None = None) -> Tensor:
        import torch

        shape = (rows, heads, dim or self._settings.head_dim)
        return torch.randn(shape, generator=self._random, device=self._settings.device).to(self._dtype)

    def _indptr(self, lengths: Iterable[int]) -> Tensor:
        return self._int32([0, *accumulate(lengths)])

    def _int32(self, values: list[int]) -> Tensor:
        import torch

        return torch.tensor(values, dtype=torch.int32, device=self._settings.device)


def _wrong(ran: Ran, where: str) -> Ran:
    """The error for a run whose outputs were correct alone but are wrong together with others."""
    return replace(ran, report=replace(ran.report, worst=math.inf, where=where))
