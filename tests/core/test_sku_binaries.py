"""A SKU id names one binary and one guarantee: over the grid of specialisations, ids and (binary, guarantee) pairs match."""

import itertools

import pytest

from opfacade import KernelSku, Target, jit
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.select.registry import candidates_for

ARCHS = ("sm_80", "sm_90a")


def grid(**axes):
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def caches(dtypes, head_dims):
    for point in grid(dtype=dtypes, head_dim=head_dims, page_size=(16, 64, 5), layout=("HND", "NHD")):
        yield PagedKvCacheDescriptor(num_total_pages=99, num_kv_heads=2, **point)


SCORES = {"window_left": (-1, 0, 9), "logits_soft_cap": (0.0, 5.0, 30.0), "return_lse": (True, False), "sm_scale": (None, 0.5)}


def prefill():
    for cache in caches(("f16", "bf16"), (64, 128)):
        for point in grid(
            batch_size=(1, 7), num_qo_heads=(2, 14), causal=(True, False), kv_split=("off", 64), page_table=("csr", "block")
        ):
            yield BatchPagedPrefillDescriptor(paged_kv=cache, total_num_rows=50, **point)
    for cache in caches(("bf16",), (128,)):
        for point in grid(total_num_rows=(1, 50, 20000), **SCORES):
            yield BatchPagedPrefillDescriptor(paged_kv=cache, batch_size=2, num_qo_heads=4, causal=True, **point)


def decode():
    for cache in caches(("f16", "bf16", "f32"), (64, 128, 256)):
        for point in grid(
            batch_size=(1, 7), num_qo_heads=(2, 14), kv_split=("auto", "off", 64, 128), page_table=("csr", "block")
        ):
            yield BatchPagedDecodeDescriptor(paged_kv=cache, **point)
    for cache in caches(("bf16",), (128,)):
        for point in grid(**SCORES):
            yield BatchPagedDecodeDescriptor(paged_kv=cache, batch_size=2, num_qo_heads=4, **point)


def ragged():
    axes = {"num_kv_heads": (1, 2), "head_dim": (64, 256), "causal": (True, False), "dtype": ("f16", "bf16")}
    for point in grid(**axes, total_kv_rows=(10, 9000), batch_size=(1, 3)):
        yield BatchRaggedPrefillDescriptor(total_num_rows=40, num_qo_heads=8, **point)
    for point in grid(**axes | {"head_dim": (128, 192), "head_dim_vo": (None, 64, 128)}, total_kv_rows=(10, 9000)):
        yield BatchRaggedPrefillDescriptor(total_num_rows=40, num_qo_heads=8, batch_size=1, **point)


def others():
    for cache in caches(("f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"), (64, 65)):
        for point in grid(batch_size=(1, 3), page_table=("csr", "block")):
            yield PagedKvAppendDescriptor(paged_kv=cache, total_num_rows=9, **point)
    for point in grid(num_states=(2, 3), num_heads=(1, 4), head_dim=(64, 80), dtype=("f16", "bf16", "f32")):
        yield MergeStatesDescriptor(total_num_rows=5, **point)
    for point in grid(num_states=(2, 8), head_dim=(64, 80), states=("stacked", "list"), in_place=(False, True)):
        yield MergeStatesDescriptor(total_num_rows=5, num_heads=4, dtype="bf16", **point)
    for cache in caches(("f16", "f32"), (64,)):
        for point in grid(rope=("half", "interleaved"), rope_dtype=("f32", "bf16", "f16")):
            yield PagedKvAppendDescriptor(paged_kv=cache, total_num_rows=9, batch_size=2, **point)


def identities(descriptors):
    """(SKU, binary and guarantee) of every candidate that accepts a descriptor, on every architecture."""
    digests = {}
    for descriptor in descriptors:
        for arch in ARCHS:
            target = Target.parse(arch)
            for candidate in candidates_for(type(descriptor)):
                if candidate.declines(descriptor, target):
                    continue
                sku = candidate.sku(descriptor, target)
                specs = candidate.jit_specs(descriptor, target)
                digests |= {spec: jit.source_digest(spec) for spec in specs if spec not in digests}
                binary = tuple(digests[spec] for spec in specs) or (candidate.backend, candidate.impl, descriptor.op, arch)
                yield sku, (binary, sku.precision_guarantee)


@pytest.mark.parametrize("descriptors", [prefill, decode, ragged, others])
def test_ids_and_binaries_with_promises_match_one_to_one(descriptors):
    meaning_of, id_of, seen = {}, {}, 0
    for sku, meaning in identities(descriptors()):
        if sku.backend == "reference":  # one function for all: its SKUs differ only in their guarantees
            continue
        assert meaning_of.setdefault(sku.id, meaning) == meaning, f"two binaries or promises share {sku.id}"
        assert id_of.setdefault(meaning, sku.id) == sku.id, f"one binary and promise has two ids: {sku.id} and {id_of[meaning]}"
        seen += 1
    assert len(meaning_of) > 10
    assert seen > len(meaning_of)


@pytest.mark.parametrize("descriptors", [prefill, decode, ragged, others])
def test_every_sku_of_the_grid_survives_json(descriptors):
    distinct = {sku.id: sku for sku, _ in identities(descriptors())}
    for sku in distinct.values():
        again = KernelSku.model_validate_json(sku.model_dump_json())
        assert again == sku
        assert again.id == sku.id
    assert len({sku.id for sku in distinct.values()}) == len(set(distinct.values()))


def test_no_sku_mentions_the_size_of_a_call():
    for sku, _ in identities(itertools.chain(prefill(), decode(), ragged(), others())):
        assert not {"batch_size", "total_num_rows", "num_total_pages", "page_size"} & {name for name, _ in sku.spec}


def test_a_part_of_an_architecture_with_other_shared_memory_has_ids_of_its_own_where_binaries_differ():
    """Each id still has one binary, and the usual part keeps its ids."""
    found, usual = {}, Target.parse("sm_90a")
    for descriptor in itertools.islice(decode(), 0, None, 7):
        for candidate in candidates_for(BatchPagedDecodeDescriptor):
            for memory in (232448, 166912, 101376, 49152):
                target = Target("sm_90a", 132, memory)
                if candidate.jit_spec is None or candidate.declines(descriptor, target):
                    continue
                sku, binary = candidate.sku(descriptor, target), candidate.jit_spec(descriptor, target)
                assert found.setdefault(sku.id, binary) == binary, sku.id
                assert ("stages" in dict(sku.spec)) <= (target != usual)
    assert any("stages=" in sku for sku in found)
