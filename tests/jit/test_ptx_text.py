"""The wrappers of single PTX instructions, which the emulator does not run: the text with its operands agrees with the PTX
manual.

Each entry was written from the syntax and the order of operands in the manual (PTX ISA 8.7). For wgmma products,
tests/families/attention/test_products.py tests the compiled code.
"""

from collections import defaultdict
from itertools import chain

import pytest

from tests.support.ptx_text import ROOT, statements

# A vector load or store lists its registers from the lowest address on; a `cvt` to two halves takes the upper half first.
HEADERS = {
    "cluster": {
        "cluster_address": "mapa.shared::cluster.u32 out, address, rank",
        "cluster_load": "ld.shared::cluster.f32 value, [address]",
        "cluster_load_word": "ld.shared::cluster.b32 value, [address]",
        "cluster_load_two_words": "ld.shared::cluster.b64 value, [address]",
        "cluster_load_4": "ld.shared::cluster.v4.f32 {v.x, v.y, v.z, v.w}, [address]",
    },
    "cluster_aligned": {
        "aligned_cluster_sync": "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned",
        "aligned_cluster_arrive": "barrier.cluster.arrive.relaxed.aligned",
        "aligned_cluster_publish": "barrier.cluster.arrive.release.aligned",
        "aligned_cluster_wait": "barrier.cluster.wait.aligned",  # without a qualifier it has acquire semantics
    },
    "cluster_store": {"cluster_store_two_words": "st.shared::cluster.b64 [address], value"},
    "compute_here": {
        "compute_here": ".reg .pred p; setp.lt.s32 p, size, 0; "
        "@p st.volatile.shared.v4.b32 [shared], {words[0], words[1], words[2], words[3]}"
    },
    "counter": {
        "store_counter": "st.relaxed.gpu.global.u64 [counter], value",
        "fence_device": "fence.acq_rel.gpu",
        "add_one": "atom.add.acq_rel.gpu.global.u64 before, [counter], 1",
        "exchange_if": "atom.cas.acq_rel.gpu.global.b64 before, [counter], expected, value",
    },
    "cp_async": {
        "store_shared_16": "st.shared.v4.b32 [dst], {v.x, v.y, v.z, v.w}",
        "store_shared_4": "st.shared.u32 [dst], v",
        "load_shared_4": "ld.shared.u32 v, [src]",
        "load_shared_16": "ld.shared.v4.b32 {v.x, v.y, v.z, v.w}, [src]",
        "load_shared_8": "ld.shared.v2.b32 {v.x, v.y}, [src]",
        "cp_async_16": "cp.async.cg.shared.global.L2::128B [dst], [src], 16, valid ? 16 : 0",
        "load_to_l1": "ld.global.u8 unused, [byte]",
        "prefetch_l2": "prefetch.global.L2 [line]",
        "prefetch_l2_span": "cp.async.bulk.prefetch.L2.global [__cvta_generic_to_global(from)], bytes",
        "cp_async_commit": "cp.async.commit_group",
        "cp_async_wait": "cp.async.wait_group kPending",
    },
    "cp_async_part": {
        "cp_async_part": "cp.async.cg.shared.global.L2::128B [dst], [src], 16, bytes",
        "cp_async_16_if": ".reg .pred any; setp.ne.b32 any, static_cast<int>(any), 0; "
        "@any cp.async.cg.shared.global.L2::128B [dst], [src], 16",
    },
    "dependent_launch": {
        "allow_dependents": "griddepcontrol.launch_dependents",
        "wait_for_previous": "griddepcontrol.wait",
    },
    "float_math": {
        "max_nan": "max.NaN.f32 y, a, b",
        "min_nan": "min.NaN.f32 y, a, b",
        "quotient_full": "div.full.f32 y, a, b",
        "quotient_plain": "rcp.approx.ftz.f32 y, b",
        "rsqrt_approx": "rsqrt.approx.f32 y, a",
        "sqrt_approx": "sqrt.approx.f32 y, a",
    },
    "forget": {"forget_origin": ""},
    "mbarrier": {
        "mbarrier_init": "mbarrier.init.shared::cta.b64 [barrier], arrivals",
        "mbarrier_init_fence": "fence.mbarrier_init.release.cluster",
        "mbarrier_arrive": "mbarrier.arrive.shared::cta.b64 _, [barrier]",
        "mbarrier_arrive_if": ".reg .pred p; setp.ne.u32 p, static_cast<uint32_t>(any), 0; "
        "@p mbarrier.arrive.shared::cta.b64 _, [barrier]",
        "mbarrier_arrive_remote_if": ".reg .pred p; setp.ne.u32 p, static_cast<uint32_t>(any), 0; "
        "@p mbarrier.arrive.shared::cluster.b64 _, [barrier]",
        "mbarrier_arrive_expect": "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes",
        "mbarrier_arrive_after_copies": "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [barrier]",
        "mbarrier_try_wait": ".reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity; "
        "selp.u32 done, 1, 0, p",
        "mbarrier_is_over": ".reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [barrier], parity; "
        "selp.u32 done, 1, 0, p",
    },
    "mma": {
        "ldmatrix_x4": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r[0], r[1], r[2], r[3]}, [address]",
        "ldmatrix_x4_trans": "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r[0], r[1], r[2], r[3]}, [address]",
        "stmatrix_x4": "stmatrix.sync.aligned.m8n8.x4.shared.b16 [address], {r[0], r[1], r[2], r[3]}",
        "mma_16x8x16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}; "
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}",
    },
    "movmatrix": {"transposed_8x8": "movmatrix.sync.aligned.m8n8.trans.b16 r, pair"},
    "peer": {
        "now_ns": "mov.u64 t, %globaltimer",
        "push_flagged": "st.relaxed.sys.global.v2.u64 [to], {high | first, high | second}",
        "told_flagged": "ld.acquire.sys.global.v2.u64 {first, second}, [from]",
        "came_flagged": "ld.relaxed.sys.global.v2.u64 {first, second}, [from]",
        "came_if": ".reg .pred wanted; setp.ne.u32 wanted, static_cast<uint32_t>(wanted), 0; "
        "@wanted ld.relaxed.sys.global.v2.u64 {first, second}, [from]",
        "add_counter": "red.relaxed.gpu.global.add.u64 [counter], more",
        "push_words": "st.relaxed.sys.global.u32 [to], word[0]; st.relaxed.sys.global.v2.u32 [to], {word[0], word[1]}; "
        "st.relaxed.sys.global.v4.u32 [to], {word[0], word[1], word[2], word[3]}",
        "pull_words": "ld.relaxed.sys.global.u32 word[0], [from]; ld.relaxed.sys.global.v2.u32 {word[0], word[1]}, [from]; "
        "ld.relaxed.sys.global.v4.u32 {word[0], word[1], word[2], word[3]}, [from]",
    },
    "ptx": {
        "f16x2_of": "cvt.rn.f16x2.f32 out, hi, lo",
        "bf16x2_of": "cvt.rn.bf16x2.f32 out, hi, lo",
        "f32_of_f16": "cvt.f32.f16 out, bits",
        "f16x4_of_e4m3x4": ".reg .b16 a, b; mov.b32 {a, b}, word; cvt.rn.f16x2.e4m3x2 out.x, a; cvt.rn.f16x2.e4m3x2 out.y, b",
        "f16x4_of_e5m2x4": ".reg .b16 a, b; mov.b32 {a, b}, word; cvt.rn.f16x2.e5m2x2 out.x, a; cvt.rn.f16x2.e5m2x2 out.y, b",
        "e4m3x2_of": "cvt.rn.satfinite.e4m3x2.f32 out, hi, lo",
        "e5m2x2_of": "cvt.rn.satfinite.e5m2x2.f32 out, hi, lo",
        "exp2_approx": "ex2.approx.ftz.f32 y, x",
        "log2_approx": "lg2.approx.ftz.f32 y, x",
        "reciprocal_approx": "rcp.approx.ftz.f32 y, x",
        "tanh_approx": "tanh.approx.f32 y, x",
        "thread": "mov.u32 out, %tid.x",
        "wide_product": "mul.wide.u32 out, a, b",
    },
    "store": {
        "store_halves_4": ".reg .pred w, e; .reg .b16 h0, h1, h2, h3; "
        "setp.ne.b32 w, as.vector, 0; setp.ne.b32 e, as.elements, 0; "
        "mov.b32 {h0, h1}, v.x; mov.b32 {h2, h3}, v.y; @w st.global.v2.b32 [dst], {v.x, v.y}; @e st.global.b16 [dst], h0; "
        "@e st.global.b16 [dst + 2], h1; @e st.global.b16 [dst + 4], h2; @e st.global.b16 [dst + 6], h3",
        "store_words_4": ".reg .pred p; setp.ne.b32 p, any, 0; @p st.global.v4.b32 [dst], {v.x, v.y, v.z, v.w}",
        "store_vector": "st.global.v4.b32 [dst], {v.x, v.y, v.z, v.w}; st.global.v2.b32 [dst], {v.x, v.y}",
    },
    "tma": {
        "prefetch_map": "prefetch.tensormap [&map]",
        "tma_load": "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[dst], [&map, {at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]}], [barrier]",
        "tma_load_multicast": "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster "
        "[dst], [&map, {at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]}], [barrier], mask",
        "tma_store": "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
        "[&map, {at.x[0], at.x[1], at.x[2], at.x[3], at.x[4]}], [src]",
        "tma_store_commit": "cp.async.bulk.commit_group",
        "tma_store_wait": "cp.async.bulk.wait_group.read kPending",
        "fence_async_shared": "fence.proxy.async.shared::cta",
    },
    "warpgroup": {
        "release_registers": "setmaxnreg.dec.sync.aligned.u32 kRegisters",
        "acquire_registers": "setmaxnreg.inc.sync.aligned.u32 kRegisters",
        "elected": ".reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 is, 1, 0, p",
        "named_sync": "bar.sync barrier, threads",
        "named_arrive": "bar.arrive barrier, threads",
    },
}  # fmt: skip
# Instructions that a compiler may move or drop, because they only compute a value or prefetch data.
FREE = (
    *("cvt.", "mov.", "max.", "min.", "div.", "rcp.", "rsqrt.", "sqrt.", "ex2.", "lg2.", "tanh.", "mul.", "mma.", "movmatrix."),
    *("setmaxnreg.", "elect.", "mapa.", "setp.", "selp.", ".reg", "prefetch.global", "ld.global.u8 unused"),
)


@pytest.mark.parametrize("header", HEADERS)
def test_each_instruction_has_its_operands_in_the_order_of_the_manual(header):
    found = defaultdict(list)
    for one in statements(f"kernels/ptx/{header}.cuh"):
        found[one.function] += one.instructions
    assert {function: "; ".join(made) for function, made in found.items()} == HEADERS[header]


def test_instructions_that_access_memory_or_wait_are_volatile_with_a_memory_clobber():
    """Otherwise a compiler may drop, merge or move them."""
    for one in chain.from_iterable(statements(f"kernels/ptx/{header}.cuh") for header in HEADERS):
        assert one.kept or all(made.startswith(FREE) for made in one.instructions), one


def test_every_header_with_instructions_is_in_the_table():
    """Headers whose text is made by macros, and headers that these share, have other tests."""
    made = {path.stem for path in (ROOT / "kernels/ptx").glob("*.cuh") if "asm" in path.read_text()}
    others = {"halves", *(name for name in made if name.startswith("wgmma"))}
    assert made - others == set(HEADERS)
