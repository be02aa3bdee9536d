"""Planted faults: exact replacements in the sources, the tests that must see them, and nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault: (old, new) texts, each once in `file`; what to run; kinds of the matrix that a GPU run needs.

    `blind` says why no test here is expected to see it: such a fault is counted and reported as missed.
    """

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    kinds: str = ""
    tests: str = "tests/mutation/focus.py"
    blind: str = ""


DECODE = "decode-auto decode-cluster decode-fixed-wide-group-block decode-off-odd-window-cap decode-fixed-odd-window-block"
PREFILL = "prefill-off-causal prefill-fixed-odd-window-cap-block prefill-auto-causal"
FP8_PREFILL = "prefill-off-fp8-head prefill-fixed-fp8-d256-sinks-cap ragged-auto-fp8"
F32 = "decode-auto-f32 decode-fixed-f32"
APPEND = "append-csr append-block-odd append-f32-odd"
MERGE = "merge-bf16 merge-odd"
LATENT = "mla-auto mla-fixed-wide-block mla-off-odd-window-cap-sinks"
K = "kernels/attention"
C = "kernels/common"
L = "kernels/mla"


def gpu(name, file, old, new, kinds, **more):
    return Mutant(name, file, ((old, new),), kinds, **more)


VARIED = "prefill-off-everything-varied prefill-auto-alibi ragged-off-documents-masked ragged-fixed-mask"

GPU = (
    gpu(
        "variants: a mask bit of the next row is read",
        f"{K}/prefill_variant.cuh",
        "token * tile.kv_len + start;",
        "(token + 1) * tile.kv_len + start;",
        VARIED,
    ),
    gpu(
        "variants: the parameters of keys are those of the other tile",
        f"{K}/prefill_load.cuh",
        "key_table(smem, parity), key, page",
        "key_table(smem, parity ^ 1), key, page",
        VARIED,
    ),
    gpu(
        "variants: the scores of the second half of a row block are masked as those of the first",
        f"{K}/prefill_math.cuh",
        "(shown[b] >> (i / 2 * 16 +",
        "(shown[b] >> (0 * 16 +",
        VARIED,
    ),
    gpu(
        "variants: a query head takes the slope of its kv head",
        f"{K}/prefill_variant.cuh",
        "int64_t{i} * p.heads + out.head]",
        "int64_t{i} * p.heads + out.kv_head]",
        VARIED,
    ),
    gpu(
        "variants: the distance of a key is that of its tile",
        "csrc/attention/variant.jinja",
        "float(key.step))",
        "0.f)",
        VARIED,
    ),
    gpu(
        "decode: the last key of a split is dropped",
        f"{K}/decode_state.cuh",
        "key >= item.end) s[n][i]",
        "key >= item.end - 1) s[n][i]",
        DECODE,
    ),
    gpu(
        "decode f32: the last key is dropped",
        f"{K}/decode_f32.cuh",
        "key < item.first_key || key >= item.end ?",
        "key < item.first_key || key >= item.end - 1 ?",
        F32,
    ),
    gpu("decode: the sum is not rescaled", f"{K}/decode_state.cuh", "    state.sum[half] *= rescale;\n", "", DECODE),
    gpu("decode: o is not rescaled", f"{K}/decode_state.cuh", "      state.o[n][half * 2] *= rescale;\n", "", DECODE),
    gpu("decode f32: o is not rescaled", f"{K}/decode_f32.cuh", "state.o[row][c] *= smem.weights[row][C::kTileKv];", ";", F32),
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
        "decode f32: weights are read without a barrier",
        f"{K}/decode_f32.cuh",
        "smem, stage, start, state);\n    __syncthreads();\n",
        "smem, stage, start, state);\n",
        F32,
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
        "prefill: causal is off by one, too few",
        f"{K}/prefill_schedule.cuh",
        "seen.end = min(seen.end, aligned_token + 1);",
        "seen.end = min(seen.end, aligned_token);",
        PREFILL,
    ),
    gpu(
        "prefill: the range of a tile ends too early",
        f"{K}/prefill_schedule.cuh",
        "/ C::kGroup + offset + 1);",
        "/ C::kGroup + offset);",
        PREFILL,
    ),
    gpu(
        "prefill: the mask uses > for >=",
        f"{K}/prefill_math.cuh",
        "key >= seen.end) s[b][n]",
        "key > seen.end) s[b][n]",
        PREFILL,
    ),
    gpu(
        "prefill: the window is off by one",
        f"{K}/prefill_math.cuh",
        "if (key < seen.begin ||",
        "if (key <= seen.begin ||",
        PREFILL,
    ),
    gpu(
        "prefill: the sum is not rescaled",
        f"{K}/prefill_math.cuh",
        "float sum = state.sum[b][half] * rescale;",
        "float sum = state.sum[b][half];",
        PREFILL,
    ),
    gpu(
        "prefill: P is scaled by 0.996 before the product",
        f"{K}/prefill_math.cuh",
        "a[b][0] = T::pack(s[b][2 * step][0], s[b][2 * step][1]);",
        "a[b][0] = T::pack(s[b][2 * step][0] * 0.996f, s[b][2 * step][1]);",
        PREFILL,
    ),
    gpu(
        "prefill: no barrier before K is used",
        f"{K}/prefill.cuh",
        "    loader.land(0);\n    __syncthreads();  // K is here, V is free\n",
        "    loader.land(0);\n",
        PREFILL,
    ),
    gpu(
        "prefill: V is used before it has arrived",
        f"{K}/prefill.cuh",
        "    cp_async_wait<0>();\n    loader.land(1);\n",
        "    loader.land(1);\n",
        PREFILL,
        tests="tests/mutation/focus.py tests/test_structural_schedule.py",
    ),
    gpu(
        "prefill: query heads are mapped to the wrong kv head",
        f"{K}/prefill_load.cuh",
        "(blockIdx.y * C::kGroup + packed % C::kGroup) * head_stride",
        "(blockIdx.y + packed % C::kGroup) * head_stride",
        PREFILL,
    ),
    gpu(
        "prefill: a tile is given to the request before",
        f"{K}/prefill_schedule.cuh",
        "first + lane * step) <= slot;",
        "first + lane * step) < slot;",
        PREFILL,
    ),
    gpu(
        "prefill: values that are not finite are not isolated",
        f"{K}/prefill.cuh",
        "if (masked) isolate_nonfinite_values",
        "if (false) isolate_nonfinite_values",
        "",
        tests="tests/attention/test_attention_gpu.py -k wild",
    ),
    gpu(
        "prefill: the sink joins every part of a row",
        f"{K}/prefill_finish.cuh",
        "  if constexpr (C::kSplit != SplitMode::kOff) return {lse, 1.f};\n",
        "",
        "prefill-fixed-odd-sinks ragged-auto-sinks",
    ),
    gpu(
        "fp8 prefill: the factor of V is left out",
        f"{K}/prefill_finish.cuh",
        "p.v_scale[kv_head * p.kv_scale_stride]",
        "1.f",
        FP8_PREFILL,
    ),
    gpu(
        "fp8 prefill: bytes are not widened before they are used",
        f"{K}/prefill.cuh",
        "    loader.land(0);\n    __syncthreads();",
        "    __syncthreads();",
        FP8_PREFILL,
    ),
    gpu(
        "fp8 prefill: scores keep the power of two of q",
        f"{K}/prefill_load.cuh",
        "smem.raw.factor[row] = key * power_of_two(-shift);",
        "smem.raw.factor[row] = key;",
        FP8_PREFILL,
    ),
    # The next ones need a ptxas that builds wgmma_tile (13.3); elsewhere mma_tile is chosen and none of them is seen.
    gpu(
        "wgmma prefill: the mask uses > for >=",
        f"{K}/prefill_wgmma_math.cuh",
        "bool hidden = key >= end;",
        "bool hidden = key > end;",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: the output is not rescaled when a base moves",
        f"{K}/prefill_wgmma.cuh",
        "          if (!ends) rows.rescale(shrunk);\n",
        "",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: weights are not made again when a base moves",
        f"{K}/prefill_wgmma.cuh",
        "moved)) {\n          weigh<C>(s, rows.scale.base, exponent, fresh, sum);\n",
        "moved)) {\n",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: the sum is not rescaled",
        f"{C}/lazy_softmax.cuh",
        "fmaf(sum[half], factor[half], more[half])",
        "sum[half] + more[half]",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: what lies past the end stays in V",
        f"{K}/prefill_wgmma_load.cuh",
        "store_shared_16(at, make_uint4(0, 0, 0, 0));",
        ";",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: values that are not finite are not isolated",
        f"{K}/prefill_wgmma.cuh",
        "isolate_nonfinite<C>(p, work, start, smem.v[stage], shown, rows);",
        ";",
        "",
        tests="tests/attention/test_attention_gpu.py -k wild",
    ),
    gpu(
        "wgmma prefill: every box comes from the first head of its page",
        f"{K}/prefill_wgmma_load.cuh",
        "page * page_step + work.head}",
        "page * page_step}",
        PREFILL,
    ),
    gpu(
        "wgmma prefill: the sink of the first head serves its group",
        f"{K}/prefill_wgmma_output.cuh",
        "(work.tile.first + wgmma_row(half)) % C::kGroup;",
        "0;",
        "prefill-off-sinks",
    ),
    gpu(
        "wgmma fp8 prefill: half a tile is widened before it has arrived",
        f"{K}/prefill_wgmma_widen.cuh",
        "cp_async_wait<kAhead>();",
        "cp_async_wait<kAhead + 1>();",
        FP8_PREFILL,
    ),
    gpu(
        "wgmma fp8 prefill: eight values take the place of their neighbours",
        f"{K}/prefill_wgmma_widen.cuh",
        "swap ? wide[1] : wide[0]",
        "swap ? wide[0] : wide[1]",
        FP8_PREFILL,
    ),
    gpu(
        "wgmma fp8 prefill: scores keep the power of two of q",
        f"{K}/prefill_wgmma_query.cuh",
        "factors[row] = key * power_of_two(-shift);",
        "factors[row] = key;",
        FP8_PREFILL,
    ),
    gpu(
        "wgmma prefill: two blocks are dealt the same work",
        f"{K}/prefill_wgmma_schedule.cuh",
        "? blocks - 1 - block : block);",
        "? block / 2 : block);",
        "",
        tests="tests/attention/test_wgmma_schedule.py",
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
        "          wgmma_wait<1>();\n",
        "",
        LATENT,
    ),
    gpu(
        "the page of a token is off by one at its end",
        f"{C}/page_lookup.cuh",
        "token >> page_shift : token / page_size]",
        "(token + 1) >> page_shift : (token + 1) / page_size]",
        DECODE,
    ),
    gpu(
        "the slot of a token loses its lowest bit",
        f"{C}/page_lookup.cuh",
        "token & (page_size - 1) : token % page_size",
        "token & (page_size - 2) : token % page_size",
        f"{DECODE} append-csr",
    ),
    gpu(
        "last_page_len is ignored",
        f"{C}/page_lookup.cuh",
        "(pages - 1) * table.page_size + table.lens[request]",
        "pages * table.page_size",
        f"{DECODE} append-csr",
    ),
    gpu(
        "kv heads are apart by the token stride",
        f"{C}/page_lookup.cuh",
        "head * pool.head_stride",
        "head * pool.token_stride",
        f"{DECODE} {PREFILL}",
    ),
    gpu(
        "offsets of pages are cut to 32 bits",
        f"{C}/page_lookup.cuh",
        "page * pool.page_stride",
        "static_cast<int32_t>(page * pool.page_stride)",
        "",
        tests="tests/test_structural_far.py --heavy -k HND-decode or decode-HND",
    ),
    gpu(
        "invisible keys are not filled with zero", f"{C}/cp_async.cuh", '"r"(valid ? 16 : 0)', '"r"(16)', f"{DECODE} {PREFILL}"
    ),
    gpu(
        "lse is in base 2",
        f"{C}/softmax.cuh",
        "fmaf(finite_max(row_max), scale, logf(row_sum))",
        "1.4426950408889634f * fmaf(finite_max(row_max), scale, logf(row_sum))",
        f"{DECODE} prefill-off-causal",
    ),
    gpu(
        "lse forgets the maximum",
        f"{C}/softmax.cuh",
        "fmaf(finite_max(row_max), scale, logf(row_sum))",
        "logf(row_sum)",
        f"{DECODE} prefill-off-causal",
    ),
    gpu(
        "a row that sees nothing divides by zero",
        f"{C}/softmax.cuh",
        "return sum == 0.f ? 0.f : 1.f / sum;",
        "return 1.f / sum;",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge skips the last state",
        f"{C}/merge.cuh",
        "for (int s = first; s < states.count; s += step)",
        "for (int s = first; s < states.count - 1; s += step)",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge has no weights",
        f"{C}/merge.cuh",
        "const float weight = state_weight(lse, weights.base);",
        "const float weight = 1.f;",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge reads the o of empty states",
        f"{C}/merge.cuh",
        "    if (lse == minus_infinity()) continue;\n",
        "",
        f"{MERGE} prefill-fixed-odd-window-cap-block",
    ),
    gpu(
        "a negative scale turns only half of Q",
        f"{C}/q_transform.cuh",
        "pair ^ 0x80008000u",
        "pair ^ 0x00008000u",
        "",
        tests="tests/test_conformance.py -k unusual_scale",
    ),
    gpu(
        "append: one position too early",
        "kernels/kv_cache/append.cuh",
        "(p.append_indptr[request + 1] - place.row);",
        "(p.append_indptr[request + 1] - place.row) - 1;",
        APPEND,
    ),
    gpu("append: a request's first row goes to the one before", "kernels/kv_cache/append.cuh", "<= row;", "< row;", APPEND),
    gpu(
        "append: the last chunk of a row is not copied",
        "kernels/kv_cache/append.cuh",
        "C::kHeadDim * C::kElemBytes / 16);",
        "C::kHeadDim * C::kElemBytes / 16 - 1);",
        APPEND,
    ),
)

R = "opfacade/backends/reference"
CUDA = "opfacade/backends/cuda"
ON_CPU = "tests/attention/test_reference.py tests/mutation/focus.py"
REST = "tests/kv_cache tests/cascade tests/mutation/focus.py"
SCHEDULE = "tests/test_structural_schedule.py"
CALLS = "tests/test_can_implement.py"


EMULATED = "tests/emulator/test_emulated_mla.py"


def cpu(name, file, old, new, tests=ON_CPU, **more):
    return Mutant(
        name,
        file,
        ((old, new),),
        more.pop("kinds", "decode-fixed-odd-window-block prefill-fixed-odd-window-cap-block"),
        tests,
        **more,
    )


CPU = (
    cpu("reference: causal is off by one", f"{R}/softmax_attention.py", "seen &= key <= row\n", "seen &= key < row\n"),
    cpu(
        "reference: the window is off by one",
        f"{R}/softmax_attention.py",
        "seen &= key >= row - scoring",
        "seen &= key > row - scoring",
    ),
    cpu(
        "reference: rows are aligned one key too far",
        f"{R}/softmax_attention.py",
        "offset = kv_len - q.shape[0]",
        "offset = kv_len - q.shape[0] + 1",
    ),
    cpu(
        "reference: lse is in base 2",
        f"{R}/softmax_attention.py",
        "(top + total.log()).squeeze(-1)",
        "(top + total.log2()).squeeze(-1)",
    ),
    cpu(
        "reference: lse forgets the maximum",
        f"{R}/softmax_attention.py",
        "(top + total.log()).squeeze(-1)",
        "(total.log()).squeeze(-1)",
    ),
    cpu(
        "reference: the soft cap is not multiplied back",
        f"{R}/softmax_attention.py",
        "scores = scoring.soft_cap * torch.tanh",
        "scores = torch.tanh",
    ),
    cpu(
        "reference: a wild value reaches rows that do not see it",
        f"{R}/softmax_attention.py",
        "out = out + torch.where(seen[:, :, key, None], term, torch.zeros_like(out))",
        "out = out + term",
    ),
    cpu(
        "reference: last_page_len is ignored",
        f"{R}/page_table.py",
        "(count - 1) * cache.page_size + last if count else 0",
        "count * cache.page_size if count else 0",
        kinds="decode-auto",
    ),
    cpu(
        "reference: every token is on the first page",
        f"{R}/page_table.py",
        "pages.long()[at // cache.page_size]",
        "pages.long()[at * 0]",
    ),
    cpu(
        "reference: slots wrap one too early",
        f"{R}/page_table.py",
        "at % cache.page_size\n",
        "at % max(1, cache.page_size - 1)\n",
    ),
    cpu(
        "reference: heads are grouped by the wrong number",
        f"{R}/softmax_attention.py",
        ".reshape(stop - start, kv_heads, group, dim)\n        rows = scoring.varied.query(grouped.transpose(0, 1)",
        ".reshape(stop - start, group, kv_heads, dim)\n        rows = scoring.varied.query(grouped.permute(2, 0, 1, 3)",
    ),
    cpu(
        "reference: bits of a mask are read from the highest",
        f"{R}/variation.py",
        "own[:, None] >> torch.arange(8,",
        "own[:, None] >> 7 - torch.arange(8,",
        kinds="ragged-fixed-mask",
    ),
    cpu(
        "reference: what a variant hides is shown",
        f"{R}/variation.py",
        "else seen & exact(self.variant.mask, values)",
        "else seen",
        kinds="ragged-off-documents-masked",
    ),
    cpu(
        "reference: the parameters of keys are those of the next",
        f"{R}/variation.py",
        "args.key_params[(slice(None), *at)],",
        "args.key_params[(slice(None), *at)].roll(1, -1),",
        kinds="ragged-off-documents-masked",
    ),
    cpu(
        "reference append: rows go to the start of a request",
        f"{R}/kv_cache.py",
        "length - (stop - first), length)",
        "0, stop - first)",
        REST,
        kinds=APPEND,
    ),
    cpu(
        "reference merge: all states weigh the same",
        f"{R}/cascade.py",
        "weight = (states_lse - top).exp()",
        "weight = torch.ones_like(states_lse)",
        REST,
        kinds=MERGE,
    ),
    cpu(
        "reference merge: empty states are looked at",
        f"{R}/cascade.py",
        "torch.where((state_lse == -math.inf)[..., None], torch.zeros_like(o), state_o.double() * w[..., None])",
        "state_o.double() * w[..., None]",
        REST,
        kinds=MERGE,
    ),
    cpu(
        "decode: the bound on items forgets short requests",
        f"{CUDA}/attention_decode.py",
        "(descriptor.kv_token_bound // chunk) + least",
        "(descriptor.kv_token_bound // chunk)",
        SCHEDULE,
    ),
    cpu(
        "decode: the workspace of an even cut has one slot a block",
        f"{CUDA}/attention_decode.py",
        "max(resident, least)), 2 * resident",
        "max(resident, least)), resident",
        SCHEDULE,
    ),
    cpu(
        "decode: the workspace has no room for lse",
        f"{CUDA}/attention_decode.py",
        "rows_of(descriptor) * (descriptor.dim + 1)",
        "rows_of(descriptor) * descriptor.dim",
        SCHEDULE,
    ),
    cpu(
        "prefill: the number of fixed splits is rounded down",
        f"{CUDA}/attention_prefill.py",
        "max(1, -(-tokens // descriptor.kv_split))",
        "max(1, tokens // descriptor.kv_split)",
        SCHEDULE,
    ),
    cpu(
        "prefill: a fixed split is called off",
        f"{CUDA}/attention_prefill.py",
        'return "fixed", max(1',
        'return "off", max(1',
        SCHEDULE,
    ),
    cpu(
        "device: a fixed split forgets the window",
        f"{K}/decode_cut.cuh",
        "return max(1, chunks - first_key / chunk);",
        "return max(1, chunks);",
        SCHEDULE,
    ),
    cpu(
        "device: an even cut ends one part early",
        f"{K}/decode_cut.cuh",
        "last_block = (run + count - 1) / share;",
        "last_block = (run + count - 2) / share;",
        SCHEDULE,
    ),
    cpu(
        "device: a fixed split ends one key early",
        f"{K}/prefill_schedule.cuh",
        "> chunk ? start + chunk : range.end;",
        "> chunk ? start + chunk - 1 : range.end;",
        SCHEDULE,
    ),
    cpu(
        "device: what cuts a fixed split sees the batch",
        f"{K}/decode_cut.cuh",
        "int fixed_splits(int kv_len, int first_key, int chunk) {",
        "int fixed_splits(int kv_len, int first_key, int chunk, int batch = 0) {",
        SCHEDULE,
    ),
    cpu(
        "latent decode: what lies past the end stays",
        f"{L}/decode.cuh",
        "    sweep_unseen(item, start, smem.piece(group, kLeft), whole.to_group, whole.to_panel);\n",
        "",
        EMULATED,
    ),
    cpu(
        "latent decode: the weights of the other group are not waited for",
        f"{L}/decode.cuh",
        "      await_weights(0);\n",
        "",
        EMULATED,
    ),
    cpu(
        "latent decode: a base that the other group moved is not followed",
        f"{L}/math.cuh",
        "factor[half] = now == old ? 1.f : exp2_approx((old - now) * log2_scale);",
        "factor[half] = 1.f;",
        EMULATED,
    ),
    cpu(
        "latent decode: the sum of one group is left out",
        f"{L}/decode.cuh",
        "smem.sum[item_parity][0][row] + smem.sum[item_parity][1][row]",
        "smem.sum[item_parity][0][row]",
        EMULATED,
    ),
    cpu(
        "latent decode: boxes end one page early",
        f"{L}/load.cuh",
        "last = (min(end - start, kMlaKeys) + p.box - 1) / p.box;",
        "last = (min(end - start, kMlaKeys) - 1) / p.box;",
        EMULATED,
    ),
    cpu(
        "latent decode: the right half is loaded from the left",
        f"{L}/load.cuh",
        "(piece == kRight ? 4 : 0)",
        "0",
        EMULATED,
    ),
    cpu(
        "latent decode: the second block of heads shares the slots of the first",
        f"{L}/load.cuh",
        "const int first = blockIdx.y * p.base.slots;",
        "const int first = 0;",
        EMULATED,
    ),
    cpu(
        "latent decode: a split run is forgotten by the merge",
        f"{L}/merge.cuh",
        "__ldcg(&p.runs[unit].count) > 1",
        "__ldcg(&p.runs[unit].count) > 2",
        EMULATED,
    ),
    cpu(
        "memo: moved memory is not seen",
        "opfacade/memo.py",
        " or [t.data_ptr() for t in self._present(args)] != last[1]:",
        ":",
        CALLS,
    ),
    cpu(
        "memo: alignment is not looked at again",
        "opfacade/memo.py",
        "return None if bits % 16 else spans",
        "return spans",
        CALLS,
    ),
    cpu(
        "can_implement: a workspace may be one byte short",
        "opfacade/operands.py",
        "if workspace.numel() < needed:",
        "if workspace.numel() + 1 < needed:",
        CALLS,
    ),
    cpu(
        "can_implement: the workspace may overlap an operand",
        "opfacade/operands.py",
        "has_memory(tensor) and overlaps(workspace, tensor)",
        "has_memory(tensor) and False",
        CALLS,
    ),
    cpu(
        "select: a workspace of the limit is refused",
        "opfacade/selection.py",
        "if limit is not None and workspace > limit:",
        "if limit is not None and workspace >= limit:",
        "tests/test_selection.py",
    ),
    cpu(
        "select: a promise that is not kept is accepted",
        "opfacade/selection.py",
        'if require.batch_invariant != "none" and',
        "if False and",
        "tests/test_selection.py",
    ),
)
