"""A time model for ops over ranks: `python -m bench.ranks.model [--record FILE]`.

A round takes a1 + bytes received / b if it is alone in its launch, and a2 + bytes received / b after another round. The probe
p2_rounds fits a1, a2 and b on the GPUs of a record. Figures for other numbers of ranks and for several hosts are predictions
and have not been measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from bench import records
from opfacade.plans.collective import (
    AllReduceNormDescriptor,
    CollectiveDescriptor,
    MergeAcrossDescriptor,
    SampleAcrossDescriptor,
)

US_OF_A_PEER = 0.16  # us that each additional peer adds to a round: an assumption, not a measurement
RECORD = records.RESULTS / "distributed_links.json"


class Wire(NamedTuple):
    """For two ranks: us of a round alone in its launch, and after another round; GB/s that a GPU receives."""

    alone: float
    behind: float
    gb_per_s: float


class Network(NamedTuple):
    """us of a message between hosts, and GB/s that a GPU receives from other hosts: the user's to say."""

    us: float = 10.0
    gb_per_s: float = 45.0


class Host(NamedTuple):
    """world: the number of ranks, distributed evenly over the hosts."""

    world: int
    hosts: int = 1


def rounds_of(d: Any) -> list[int]:
    """The bytes that a rank sends to each other rank, for each round of a call."""
    if isinstance(d, AllReduceNormDescriptor):
        row = d.hidden * {"f32": 4}.get(d.dtype, 2)
        made = row * (2 if d.residual == "replicated" else 1)
        return [d.own_rows * row, d.own_rows * made] if d.two_shot else [d.total_num_rows * row]
    if isinstance(d, SampleAcrossDescriptor):
        return [d.total_num_rows * (8 * d.listed or 16)]
    if isinstance(d, MergeAcrossDescriptor):
        return [d.states * d.total_num_rows * d.kept_heads * (d.head_dim * {"f32": 4}.get(d.dtype, 2) + 4)]
    assert isinstance(d, CollectiveDescriptor)
    return [max(d.counts) * d.width * {"f32": 4}.get(d.dtype, 2)]


def us_of(payloads: list[int], at: Host, wire: Wire, network: Network = Network()) -> float:  # noqa: B008 - a value
    """The time of the rounds in us, without the kernel's other work."""
    near, far = at.world // at.hosts - 1, at.world - at.world // at.hosts
    total = 0.0
    for number, payload in enumerate(payloads):
        first = (wire.behind if number else wire.alone) + US_OF_A_PEER * max(0, near - 1)
        here = first + 1e-3 * near * payload / wire.gb_per_s
        there = network.us + 1e-3 * far * payload / network.gb_per_s if far else 0.0
        total += max(here, there)
    return total


def descriptors(world: int) -> dict[str, Any]:
    norm: dict[str, Any] = {"world": world, "hidden": 4096, "dtype": "bf16", "residual": "replicated"}
    merge: dict[str, Any] = {"world": world, "dtype": "bf16", "scatter": "heads"}
    return {
        "all_reduce_norm, 1 row of 8 KB, one step": AllReduceNormDescriptor(**norm, total_num_rows=1, steps="one_shot"),
        "all_reduce_norm, 32 rows, one step": AllReduceNormDescriptor(**norm, total_num_rows=32, steps="one_shot"),
        "all_reduce_norm, 32 rows, two steps": AllReduceNormDescriptor(**norm, total_num_rows=32, steps="two_shot"),
        "merge_across, 1 latent token": MergeAcrossDescriptor(**merge, total_num_rows=1, num_heads=128, head_dim=512),
        "merge_across, 8 latent tokens": MergeAcrossDescriptor(**merge, total_num_rows=8, num_heads=128, head_dim=512),
        "sample_across, 64 rows, top_k 50": SampleAcrossDescriptor(
            world=world, total_num_rows=64, vocab=131072, shard=131072 // world, top_k=True, max_top_k=50, top_p=True
        ),
    }


PLACES = {"2 GPUs": Host(2), "4 GPUs": Host(4), "8 GPUs": Host(8), "2 hosts of 8": Host(16, 2)}


def table(wire: Wire) -> dict[str, dict[str, float]]:
    """The us of each op's rounds, by number of ranks and hosts."""
    found: dict[str, dict[str, float]] = {}
    for place, at in PLACES.items():
        for name, d in descriptors(at.world).items():
            found.setdefault(name, {})[place] = round(us_of(rounds_of(d), at, wire), 1)
    return found


def wire_of(record: dict[str, Any]) -> Wire:
    """The fit of a record of the probe p2_rounds."""
    fit = record["probes"]["p2_rounds"]["fit"]
    return Wire(fit["a1"], fit["a2"], fit["b of a2"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=RECORD, help="with the probe p2_rounds")
    given = parser.parse_args()
    record = json.loads(given.record.read_text())
    wire = wire_of(record)
    print(f"{record['machine']['device']}, {record['machine']['gpus']} GPUs: {wire}")
    for name, times in table(wire).items():
        print(f"{name}: " + ", ".join(f"{place} {us} us" for place, us in times.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
