"""Faults of lengths beyond the size of grids and workspaces, and of the bounds: on the host, and in the emulator."""

from tests.mutation.mutant import K, cpu

SCHEDULES = "tests/families/attention/test_bounds.py"

BOUND_FAULTS = (
    cpu(
        "decode: a block that makes whole runs makes one",
        f"{K}/decode/schedule/chunks.cuh",
        "partial_ = 0, unit_ += p_.slots / own_slots_;",
        "return false;",
        SCHEDULES,
    ),
)
