"""Faults in the kernels of decode, latent decode too."""

from tests.mutation.mutant import DECODE, F32, K, Mutant, gpu

DECODE_FAULTS = (
    gpu(
        "decode: the last key of a split is dropped",
        f"{K}/decode_state.cuh",
        "key >= item.end) score",
        "key >= item.end - 1) score",
        DECODE,
    ),
    gpu("decode: the sum is not rescaled", f"{K}/decode_state.cuh", "    state.sum[which] *= rescale;\n", "", DECODE),
    gpu(
        "decode: o is not rescaled", f"{K}/decode_state.cuh", "      state.o[n][Layout::at(which, 0)] *= rescale;\n", "", DECODE
    ),
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
        "smem_address(shared), results);\n    __syncthreads();\n",
        "smem_address(shared), results);\n",
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
        "score = tanhf(score * p.score.cap_in);",
        "score *= p.score.cap_in;",
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
        f"{K}/decode.cuh",
        "  __syncthreads();  // the part is stored, and results may be overwritten\n",
        "",
        DECODE,
        blind="stores end long before another block merges, and copies of the next item arrive long after results are read",
    ),
    gpu(
        "decode: the last part but one merges",
        f"{K}/decode_join.cuh",
        "add_one(counter)) + 1 == parts.count",
        "add_one(counter)) + 2 == parts.count",
        DECODE,
    ),
    gpu(
        "decode: the counter of parts is not set back",
        f"{K}/decode_join.cuh",
        "  if (last) set_back(p, counter);\n",
        "",
        DECODE,
    ),
    gpu(
        "decode: who finds another number in a counter is not counted",
        f"{K}/decode_count.cuh",
        "p.stamp << kCountBits | 1",
        "p.stamp << kCountBits",
        DECODE,
    ),
    gpu(
        "decode: an item has the queries of the one before",
        f"{K}/decode.cuh",
        "    if (kQueryAhead && pipeline.more) TileMath<C>::load_query(p, pipeline.following, state);\n",
        "",
        DECODE,
    ),
    gpu(
        "decode: an item of 256 dimensions ends at another head",
        f"{K}/decode_results.cuh",
        "waiting.head = item.head",
        "waiting.head = 0",
        "decode-auto-wide-fp8-d256-cap",
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
)
