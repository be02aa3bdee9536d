"""Faults in the kernels of decode, latent decode too."""

from tests.mutation.mutant import DECODE, F32, LATENT, K, L, Mutant, gpu

DECODE_FAULTS = (
    gpu(
        "decode: the last key of a split is dropped",
        f"{K}/decode_state.cuh",
        "key >= item.end) s[n][i]",
        "key >= item.end - 1) s[n][i]",
        DECODE,
    ),
    gpu("decode: the sum is not rescaled", f"{K}/decode_state.cuh", "    state.sum[half] *= rescale;\n", "", DECODE),
    gpu("decode: o is not rescaled", f"{K}/decode_state.cuh", "      state.o[n][half * 2] *= rescale;\n", "", DECODE),
    gpu(
        "decode: a stage is used before it has arrived",
        f"{K}/decode.cuh",
        "cp_async_wait<C::kStages - 2>();",
        "cp_async_wait<C::kStages - 1>();",
        DECODE,
    ),
    gpu(
        "decode: warps are merged without a barrier",
        f"{K}/decode.cuh",
        "    publish<C>(state, results);\n    __syncthreads();\n",
        "    publish<C>(state, results);\n",
        DECODE,
    ),
    gpu(
        "decode: query heads are mapped to the wrong kv head",
        f"{K}/decode_output.cuh",
        "kv_head<C>(item) * C::kGroup + item.head % C::kHeadBlocks * C::kBlockHeads + row",
        "kv_head<C>(item) + item.head % C::kHeadBlocks * C::kBlockHeads + row",
        DECODE,
    ),
    gpu(
        "decode: the soft cap is left out",
        f"{K}/decode_state.cuh",
        "s[n][i] = tanhf(s[n][i] * p.score.cap_in);",
        "s[n][i] *= p.score.cap_in;",
        DECODE,
    ),
    gpu(
        "decode: the window is off by one",
        f"{K}/decode_schedule.cuh",
        "max(0, kv_len - 1 - p.window_left)",
        "max(0, kv_len - p.window_left)",
        DECODE,
    ),
    gpu(
        "decode: a second block of heads reads the first's",
        f"{K}/decode_output.cuh",
        "kv_head<C>(item) * C::kGroup + item.head % C::kHeadBlocks * C::kBlockHeads + row",
        "kv_head<C>(item) * C::kGroup + row",
        DECODE,
    ),
    gpu(
        "decode: a part is counted before it is stored",
        f"{K}/decode_join.cuh",
        "  __syncthreads();\n  if (threadIdx.x == 0) last = count_in(rows.p, rows.parts);\n",
        "  if (threadIdx.x == 0) last = count_in(rows.p, rows.parts);\n",
        DECODE,
    ),
    gpu(
        "decode: the last part but one merges",
        f"{K}/decode_join.cuh",
        "(kMostParts - 1)) + 1 == parts.count",
        "(kMostParts - 1)) + 2 == parts.count",
        DECODE,
    ),
    gpu(
        "decode: the counter of parts is not set back",
        f"{K}/decode_join.cuh",
        "  if (last) store_counter(counter, p.stamp << kCountBits);\n",
        "",
        DECODE,
    ),
    gpu(
        "decode: a deferred part is forgotten",
        f"{K}/decode.cuh",
        "  if (!deferred.last) return;\n",
        "  return;\n",
        DECODE,
    ),
    gpu(
        "decode: a team reads before all have written",
        f"{K}/decode_team.cuh",
        "  cluster_sync();\n  for (int i",
        "  for (int i",
        DECODE,
    ),
    gpu(
        "decode: the second part of an even cut lies in the wrong slot",
        f"{K}/decode_cut.cuh",
        "first_slot, 2 * (first_block + 1), 2};",
        "first_slot, 2 * first_block + 1, 2};",
        DECODE,
    ),
    Mutant(
        "decode: the size of a fixed split follows the batch",
        f"{K}/decode_schedule.cuh",
        (
            (
                "fixed_splits(kv_len, first_visible<C>(p, kv_len), p.chunk)",
                "fixed_splits(kv_len, first_visible<C>(p, kv_len), p.batch > 2 ? p.chunk * 2 : p.chunk)",
            ),
            (
                "set_fixed_keys(kv_len, p_.chunk, split, item);",
                "set_fixed_keys(kv_len, p_.batch > 2 ? p_.chunk * 2 : p_.chunk, split, item);",
            ),
        ),
        DECODE,
    ),
    gpu(
        "decode f32: the last key is dropped",
        f"{K}/decode_f32.cuh",
        "key < item.first_key || key >= item.end ?",
        "key < item.first_key || key >= item.end - 1 ?",
        F32,
    ),
    gpu("decode f32: o is not rescaled", f"{K}/decode_f32.cuh", "state.o[row][c] *= smem.weights[row][C::kTileKv];", ";", F32),
    gpu(
        "decode f32: weights are read without a barrier",
        f"{K}/decode_f32.cuh",
        "smem, stage, start, state);\n    __syncthreads();\n",
        "smem, stage, start, state);\n",
        F32,
    ),
    # What no run thread by thread shows: another warp still reads.
    gpu(
        "latent decode: weights overwrite a key that another warp still reads",
        f"{L}/decode.cuh",
        "    named_sync(kMlaOwnGroup + group, kWarpgroup);\n",
        "",
        LATENT,
    ),
    gpu(
        "latent decode: a stage is given back before its last product is made",
        f"{L}/decode.cuh",
        "        wgmma_wait<1>();\n        release(group ^ 1);",
        "        release(group ^ 1);",
        LATENT,
    ),
)
