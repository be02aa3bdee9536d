"""Faults in kernels of sm_90a that the emulator runs: latent decode, and prefill by asynchronous products."""

from tests.mutation.mutant import EMULATED, EMULATED_ROWS, WGMMA, K, L, Mutant, cpu

ORDERED = "tests/emulator/test_order.py -k barrier_orders"
HOPPER_FAULTS = (
    cpu(
        "rings: a lane arrives for its warp before the others, in a branch",
        "kernels/pipeline/ring.cuh",
        "warp_arrive(uint64_t& barrier) {\n  __syncwarp();\n",
        "warp_arrive(uint64_t& barrier) {\n",
        ORDERED,
    ),
    cpu(
        "rings: a lane arrives for its warp before the others",
        "kernels/pipeline/ring.cuh",
        "warp_arrive_at(uint32_t barrier) {\n  __syncwarp();\n",
        "warp_arrive_at(uint32_t barrier) {\n",
        ORDERED,
    ),
    Mutant(
        "wgmma prefill: a stage is filled again before its values are looked at",
        f"{K}/prefill_sm90/tma_load.cuh",
        (
            (
                "      ring.wait_full(smem.v_full);\n",
                "      warp_arrive(smem.v_empty[ring.stage]);\n      ring.wait_full(smem.v_full);\n",
            ),
            ("      warp_arrive(smem.v_empty[ring.stage]);  // for every tile", "      // for every tile"),
        ),
        tests=f"{WGMMA} -k late",
    ),
    cpu(
        "wgmma prefill: three warpgroups alternate as two would",
        f"{K}/prefill_sm90/kernel.cuh",
        "(group + 1) % kConsumers<C>",
        "(group ^ 1)",
        f"{WGMMA} -k guarantee",
    ),
    cpu(
        "wgmma prefill: keys of a tile beyond whole sixty-fours have no values",
        f"{K}/prefill_sm90/math.cuh",
        "Product::rs_two(o, weights + key / 4, b);",
        "wgmma_fence();",
        f"{WGMMA} -k guarantee",
    ),
    cpu(
        "latent decode, several rows: o of neighbouring rows is swapped",
        "kernels/attention/decode/output.cuh",
        "(static_cast<int64_t>(item.request) * C::kQueryRows + query_row) * row_stride",
        "(static_cast<int64_t>(item.request) * C::kQueryRows + (query_row ^ 1)) * row_stride",
        f"{EMULATED_ROWS} -k one_row",
    ),
    cpu(
        "latent decode, several rows: the window of a head block is that of its last row",
        f"{L}/load.cuh",
        "kv_len - 1 - p.base.window_left + first / kHeads",
        "kv_len - 1 - p.base.window_left + last",
        f"{EMULATED_ROWS} -k guarantee",
    ),
    cpu(
        "latent decode, several rows: NaN of a key reaches rows before it",
        f"{L}/math.cuh",
        "    found |= 1u << token;\n",
        "    continue;\n",
        f"{EMULATED_ROWS} -k nonfinite",
    ),
    cpu(
        "wgmma prefill: a base stays where many weights are above it and none by 2^8",
        "kernels/attention/lazy_softmax.cuh",
        "any && highest > old",
        "any && (highest - old) * exponent[half] > 8.f",
        "tests/emulator/test_lazy_softmax.py",
    ),
    cpu(
        "wgmma prefill: every turn of the heads begins with the dearest tiles",
        f"{K}/prefill_sm90/scheduler.cuh",
        "(p.kv_heads / heads - now) % 2 == 0",
        "now < 0",
        "tests/families/attention/test_wgmma_schedule.py -k direction",
    ),
    cpu(
        "latent decode: a stage is given back before its last product is made",
        f"{L}/add.cuh",
        "      wgmma_wait_all_at<0>();\n      pin(o[0]), pin(o[1]);\n",
        "",
        EMULATED,
    ),
)
