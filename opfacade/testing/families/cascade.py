"""Harness of merge_states."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import nbytes
from opfacade.plans.cascade import MAX_LISTED, MergeStatesDescriptor
from opfacade.testing.bounds import Bounded
from opfacade.testing.families.attention import oracle
from opfacade.testing.harness import Amount, Harness, HasLengths
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


class MergeHarness(Harness):
    def draw(self, op: str, rng: random.Random, tokens: int) -> Descriptor[Any]:
        states = rng.choice((1, 2, 3, 8, 40))
        form = rng.choice(("stacked", "list", "ragged")) if states <= MAX_LISTED else rng.choice(("stacked", "ragged"))
        return MergeStatesDescriptor(
            num_states=states,
            total_num_rows=rng.choice((1, 7, 64, 333)),
            num_heads=rng.choice((1, 3, 8, 32)),
            head_dim=rng.choice((64, 65, 80, 128, 256)),
            dtype=rng.choice(("f16", "bf16", "f32")),
            in_place=rng.random() < 0.3 and form != "ragged",
            states=form,
        )

    def small(self, op: str, rng: random.Random) -> Descriptor[Any]:
        form = rng.choice(("stacked", "list", "ragged"))
        return MergeStatesDescriptor(
            num_states=rng.randint(1, 4),
            total_num_rows=rng.randint(1, 9),
            num_heads=rng.choice((1, 1, 2)),
            head_dim=rng.choice((8, 16, 64)),
            dtype=rng.choice(("f16", "bf16", "f32")),
            in_place=rng.random() < 0.3 and form != "ragged",
            states=form,
        )

    def cases(self, op: str) -> dict[str, Any]:
        return {
            "merge-bf16": MergeStatesDescriptor(num_states=5, total_num_rows=33, num_heads=4, head_dim=128, dtype="bf16"),
            "merge-list": MergeStatesDescriptor(
                num_states=7, total_num_rows=21, num_heads=3, head_dim=65, dtype="f16", states="list"
            ),
            "merge-list-in-place": MergeStatesDescriptor(
                num_states=3, total_num_rows=33, num_heads=4, head_dim=128, dtype="bf16", states="list", in_place=True
            ),
            "merge-in-place-odd": MergeStatesDescriptor(
                num_states=6, total_num_rows=19, num_heads=3, head_dim=96, dtype="f16", in_place=True
            ),
            "merge-ragged": MergeStatesDescriptor(
                num_states=90, total_num_rows=29, num_heads=3, head_dim=96, dtype="f16", states="ragged"
            ),
            "merge-odd": MergeStatesDescriptor(num_states=40, total_num_rows=7, num_heads=3, head_dim=65, dtype="f32"),
        }

    def inputs(self, draw: Draw) -> None:
        for pair in draw.descriptor.state_names:
            draw.values.update(_states(draw, *pair))
        if draw.descriptor.states == "ragged":
            indptr = draw.values["states_indptr"].sort().values
            indptr[-1] = draw.descriptor.num_states
            draw.values["states_indptr"] = indptr

    def expected(self, descriptor: MergeStatesDescriptor, args: Args, c: dict[str, float]) -> list[Bounded]:
        """With in_place, state 0 must contain the result, and the other states must be unchanged."""
        merged = oracle.merge(descriptor, args)
        if not descriptor.in_place:
            return merged
        pairs = zip(merged, descriptor.state_names[0], descriptor.states_of(args), strict=True)
        return [_in_state_0(bounded, name, states if descriptor.states == "stacked" else ()) for bounded, name, states in pairs]

    def amount(self, descriptor: MergeStatesDescriptor, lengths: HasLengths) -> Amount:
        """Counts the same bytes with in_place, because only the first state is written."""
        moved = nbytes(list(operands_of(descriptor).values()))
        moved += moved // descriptor.num_states if descriptor.in_place else 0
        return Amount(float(moved), 3.0 * moved / 2)

    def label(self, descriptor: MergeStatesDescriptor, lengths: HasLengths) -> str:
        form = f" {descriptor.states}" * (descriptor.states != "stacked") + " in place" * descriptor.in_place
        return f"{descriptor.op} s{descriptor.num_states} r{descriptor.total_num_rows} {descriptor.dtype}{form}"


def _states(draw: Draw, o: str, lse: str) -> dict[str, Tensor]:
    """Log-sum-exps of ordinary size; some states are empty, and their o is NaN."""
    values = draw.values
    shape = tuple(values[lse].shape)
    drawn = draw.normal(shape) * 3
    empty = draw.uniform(shape) < 0.2
    states_o = values[o].float().masked_fill(empty[..., None], float("nan")).to(values[o].dtype)
    return {lse: drawn.masked_fill(empty, float("-inf")), o: states_o}


def _in_state_0(bounded: Bounded, name: str, stacked: Any) -> Bounded:
    """Expected contents of an operand whose first state is overwritten; the other states are unchanged."""
    import torch

    others = [state.double() for state in stacked[1:]]
    exact = [torch.zeros_like(other) for other in others]
    hard, tight = (torch.stack([own, *exact]) if len(stacked) else own for own in (bounded.hard, bounded.tight))
    want = torch.stack([bounded.want, *others]) if len(stacked) else bounded.want
    return Bounded(name, want, hard, tight)


HARNESSES: dict[str, Harness] = {"merge_states": MergeHarness()}
