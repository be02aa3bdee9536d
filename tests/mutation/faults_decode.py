"""Faults in the kernels of decode, including latent decode."""

from tests.mutation.mutant import DECODE, K, gpu

DECODE_FAULTS = (
    gpu(
        "decode: the soft cap is left out",
        f"{K}/decode/state.cuh",
        "score = tanhf(score * p.score.cap_in);",
        "score *= p.score.cap_in;",
        DECODE,
    ),
    gpu(
        "decode: the second part of an even cut lies in the wrong slot",
        f"{K}/decode/schedule/cut.cuh",
        "first_slot, 2 * (first_block + 1), 2};",
        "first_slot, 2 * first_block + 1, 2};",
        DECODE,
    ),
    gpu(
        "decode: the size of a fixed split follows the batch",
        "csrc/attention/decode/paged_decode.cc.jinja",
        "params.chunk = bounded(chunk);",
        "params.chunk = bounded(batch > 2 ? 2 * chunk : chunk);",
        DECODE,
    ),
)
