"""Harness of attention over a KV cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import operands_of
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.operands import nbytes
from opfacade.plans._attention.work import first_hidden, requests_of, rows_each
from opfacade.testing.batches import Batches, Campaign, changed
from opfacade.testing.bounds import Report, compare, constants, join
from opfacade.testing.families._requests import RequestsHarness
from opfacade.testing.families.attention import inputs, metamorphic, oracle, structural
from opfacade.testing.families.attention import problems as drawn
from opfacade.testing.families.attention.cases import cases
from opfacade.testing.families.attention.peers import PEERS, usual
from opfacade.testing.families.attention.population import population
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample
from opfacade.testing.inputs import Draw, DrawnLengths

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor
    from opfacade.testing.families.attention.call import Problem
    from opfacade.testing.subject import Subject

# The operands of which a call reads only the parts that belong to requests.
_KEYS = ("k_data", "v_data", "k", "v", "ckv", "kpe")


class AttentionHarness(RequestsHarness):
    """The harness of ops whose requests have rows that attend to keys."""

    has_special, peers = True, PEERS
    checks = (*structural.CHECKS, *metamorphic.CHECKS)

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        return self.draws.plain(rng, tokens)

    def small(self, op: str, rng: random.Random) -> Any:
        return self.draws.small(rng)

    def special(self, rng: random.Random, plain: Any) -> dict[str, Any]:
        return self.draws.special(rng, plain)

    def cases(self, op: str) -> dict[str, Any]:
        return {name: descriptor for name, descriptor in cases().items() if descriptor.op == op}

    def short_lengths(self, descriptor: Any) -> DrawnLengths:
        """Some requests are empty and some span several pages; in large batches, most are short."""
        cache, batch = getattr(descriptor, "paged_kv", None), descriptor.batch_size
        pages, size = (cache.num_total_pages, cache.page_size) if cache else (2**31, 1)
        kv = []
        for r in range(batch):
            wanted = (0, 1, 17, 150, 65, 400)[r % 6] if r < 12 else r % 2
            kv.append(wanted if -(-wanted // size) <= pages else 0)
            pages -= -(-kv[-1] // size)
        if not self.rows:
            return DrawnLengths(kv=kv)
        rows = descriptor.total_num_rows
        return DrawnLengths(q=[rows // batch] * (batch - 1) + [rows - rows // batch * (batch - 1)], kv=kv)

    def request_inputs(self, draw: Draw, requests: Sequence[tuple[int, int]]) -> None:
        inputs.fill(draw, requests)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        worst, rng = Report(0.0, 0.0, "", 0), random.Random(sample.seed)
        for bounded, got, place, index_of in oracle.attention(ran.descriptor, ran.args, constants(ran.sku), sample.rows, rng):
            worst = join(worst, compare(bounded, got, place, index_of))
        return worst

    def in_any_batch(self, descriptor: Problem) -> Any:
        """Returns the descriptor with a split that does not depend on the batch."""
        return changed(descriptor, kv_split="off") if descriptor.kv_split == "auto" else descriptor

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        return population(subject, campaign, rng)

    def peer_outputs(self, descriptor: Descriptor[Any]) -> tuple[str, ...]:
        """Only `o`, because a peer's lse has another base or is missing."""
        return ("o",)

    def peer_guarantee(self, descriptor: Any) -> PrecisionGuarantee:
        return usual(descriptor.output_dtype)

    def amount(self, descriptor: Problem, lengths: HasLengths) -> Amount:
        others = [spec for name, spec in operands_of(descriptor).items() if name not in _KEYS]
        plain = nbytes([spec for spec in others if all(dim.size is not None for dim in spec.shape)])
        requests = requests_of(descriptor, lengths)
        keys = sum(_visible_keys(descriptor, q, kv) for q, kv in requests)
        pairs = sum(_pairs(descriptor, q, kv) for q, kv in requests)
        moved = plain + keys * float(descriptor.kv_elements) * ITEMSIZE[descriptor.kv_dtype]
        return Amount(moved, 2.0 * pairs * descriptor.num_qo_heads * descriptor.pair_elements)

    def label(self, descriptor: Descriptor[Any], lengths: HasLengths) -> str:
        return super().label(descriptor, lengths) + (" causal" if _hides_later_keys(descriptor) else "")

    def heads(self, descriptor: Any, lengths: HasLengths) -> Iterator[str]:
        yield f"h{descriptor.num_qo_heads}/{descriptor.kv_heads} d{descriptor.dim}"
        if rows_each(descriptor) > 1:
            yield f"q{rows_each(descriptor)}"
        yield from super().heads(descriptor, lengths)


@dataclass(frozen=True)
class Draws:
    """The functions that draw problems of an op: any problem, a tiny problem, and special fields for a plain problem."""

    plain: Callable[[random.Random, int], Any]
    small: Callable[[random.Random], Any]
    special: Callable[[random.Random, Any], dict[str, Any]]


class PrefillHarness(AttentionHarness):
    rows = "q_indptr"


def _hides_later_keys(descriptor: Descriptor[Any]) -> bool:
    return getattr(descriptor, "causal", False) and getattr(descriptor, "q_len", 2) > 1


def _visible_keys(d: Problem, q: int, kv: int) -> float:
    """The number of keys that at least one row of a request attends to."""
    return max(0.0, kv - first_hidden(d, 0, q, kv)) if q else 0.0


def _pairs(d: Problem, q: int, kv: int) -> float:
    """The number of unmasked (row, key) pairs: the mean number of visible keys times the rows."""
    causal = getattr(d, "causal", False)
    seen = kv - (min(q, kv) - 1) / 2 * (min(q, kv) / q) if causal and q else float(kv)
    return q * max(0.0, min(seen, d.window_left + 1.0) if d.window_left >= 0 else seen)


HARNESSES: dict[str, Harness] = {
    "paged_prefill": PrefillHarness(Draws(drawn.prefill, drawn.small_prefill, drawn.prefill_more)),
    "paged_decode": AttentionHarness(Draws(drawn.decode, drawn.small_decode, drawn.attention_more)),
    "ragged_prefill": PrefillHarness(Draws(drawn.ragged, drawn.small_ragged, drawn.ragged_more)),
}
