"""Harness of top-k."""

from __future__ import annotations

import random
from typing import Any

from opfacade.plans.sampling import TopKDescriptor
from opfacade.testing.bounds import Bounded
from opfacade.testing.families.sampling.sample import logits
from opfacade.testing.harness import Harness
from opfacade.testing.inputs import Draw


class TopKHarness(Harness):
    unit = "total_num_rows"

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return TopKDescriptor(
            total_num_rows=rng.choice((1, 2, 5, 9)),
            vocab=rng.choice((1, 5, 64, 1000, 5000, 12801)),
            k=rng.choice((1, 2, 8, 50, 333, 2048, 5000)),
            dtype=rng.choice(("f32", "bf16", "f16")),
            num_valid=rng.random() < 0.3,
            windows=rng.random() < 0.3,
        )

    def small(self, op: str, rng: random.Random) -> Any:
        sizes = {"total_num_rows": rng.randint(0, 3), "vocab": rng.randint(1, 40), "k": rng.randint(1, 9)}
        return TopKDescriptor(**sizes, dtype=rng.choice(("f32", "bf16", "f16")), windows=rng.random() < 0.3)

    def inputs(self, draw: Draw) -> None:
        draw.values["x"] = logits(draw, draw.values["x"]).to(draw.values["x"].dtype)
        if "starts" in draw.values:
            self._windows(draw)

    def _windows(self, draw: Draw) -> None:
        """Random windows: most cover a part of the row, some are empty, and some cover the whole row."""
        import torch

        starts, ends, vocab = draw.values["starts"], draw.values["ends"], draw.values["x"].shape[1]
        for row in range(len(starts)):
            kind = draw.rng.random()
            first, last = sorted((draw.rng.randint(0, vocab), draw.rng.randint(0, vocab)))
            first, last = (0, vocab) if kind < 0.2 else (last, first) if kind < 0.3 else (first, last)
            starts[row], ends[row] = torch.tensor(first), torch.tensor(last)

    def expected(self, descriptor: TopKDescriptor, args: Any, c: dict[str, float]) -> list[Bounded]:
        """The expected values, from a stable sort in numpy."""
        import numpy as np
        import torch

        x = args.x.double().cpu().numpy()
        x = np.where(np.isnan(x), -np.inf, x)
        if descriptor.windows:
            for row, (first, last) in enumerate(zip(args.starts.tolist(), args.ends.tolist(), strict=True)):
                x[row, :first], x[row, last:] = -np.inf, -np.inf
        at = np.argsort(-x, axis=-1, kind="stable")[:, : descriptor.k]
        values = np.take_along_axis(x, at, -1)
        missing = ((0, 0), (0, descriptor.k - at.shape[1]))
        at = np.pad(np.where(values == -np.inf, -1, at), missing, constant_values=-1)
        found = [torch.from_numpy(part).to(args.x.device) for part in (np.pad(values, missing, constant_values=-np.inf), at)]
        zero = torch.zeros_like(found[0])
        return [Bounded("values", found[0], zero, zero), Bounded("positions", found[1].int(), zero, zero)]
