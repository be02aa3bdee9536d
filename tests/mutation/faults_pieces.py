"""Faults in the splits of a decode and their distribution: on the host, and in the emulator."""

from tests.mutation.mutant import DEALT, PIECES, SCHEDULE, K, cpu

PIECE_FAULTS = (
    cpu(
        "device: pieces that are longer than the others overlap those behind them",
        f"{K}/decode/schedule/cut.cuh",
        "return i * base + min(i, more);",
        "return i * base + min(i, more / 2);",
        PIECES,
    ),
    cpu(
        "device: short pieces are dealt first",
        f"{K}/decode/schedule/cut.cuh",
        "return (quarters <= 3 * all) + (quarters <= 2 * all) + (quarters <= all);",
        "return 3 - (quarters <= 3 * all) - (quarters <= 2 * all) - (quarters <= all);",
        PIECES,
    ),
    cpu(
        "decode: requests beyond those that a lane holds are not surveyed",
        f"{K}/decode/schedule/pieces.cuh",
        "for (int first = 32 * kHeld; first < p_.batch; first += 32 * kHeld) {",
        "for (int first = 32 * kHeld; false;) {",
        DEALT,
    ),
    cpu(
        "decode: slots of pieces are two for each block that runs at once",
        "opfacade/backends/cuda/attention/decode.py",
        "least + 3 * resident // 2, 3 * resident, 3 * resident,",
        "least + resident, 2 * resident, 2 * resident,",
        SCHEDULE,
    ),
)
