"""Faults in the choice of tiles and segments of products: bits that depend on the rows, and CTAs that cannot
run concurrently.
"""

from tests.mutation.mutant import host

TILES, SEGMENTS = "backends/cuda/matmul/tiles.py", "backends/cuda/matmul/segments.py"
CHOICE = "tests/families/matmul/test_matmul_tiles.py"
BY_N_AND_K = f"{CHOICE} -k by_n_and_k_alone"

FAULTS = (
    host("tiles: clusters of segments are more than the SMs", TILES, "_CLUSTERED[4 if split <= 4 else 8] * sms",
         "9 * sms", f"{CHOICE} -k run_at_once"),
    host("tiles: sums of segments have no registers", TILES, "sizes.parts or sizes.segments > 1 else 256",
         "sizes.parts else 256", f"{CHOICE} -k half_the_columns"),
    host("tiles: waves are not counted", TILES, "rounds = max(1, -(-(-(-rows // height) * across)",
         "rounds = max(1, ((-(-rows // height) * across)", f"{CHOICE} -k nearly_empty"),
    host("segments: order k has some", SEGMENTS, 'problem.order == "k" or ', "", BY_N_AND_K),
    host("segments: they follow the rows", SEGMENTS, "problem.k // _LEAST)",
         "problem.k // _LEAST // max(1, problem.total_num_rows // 64))", BY_N_AND_K),
    host("segments: one more column has them", SEGMENTS, "problem.n * problem.columns > _WIDEST",
         "problem.n * problem.columns > _WIDEST + 1", BY_N_AND_K),
    host("segments: the last is lost", SEGMENTS, "Segments(-(-units // each)", "Segments((units // each)", BY_N_AND_K),
)  # fmt: skip
