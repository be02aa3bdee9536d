"""Guarantees of sampling kernels: sums are integers, so the order of additions and the split do not change bits."""

from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee

_HERE = "tests/families/sampling"
_RACE = ErrorModel(id="race-f32", constants=(("exp2", 2.0**-22), ("key", 2.0**-17), ("roundoff", 2.0**-24), ("tanh", 2.0**-21)))


def promised(file: str, gpu: str, exact: bool = False) -> PrecisionGuarantee:
    """file: the file of the host tests. gpu: the file of the GPU tests."""
    return PrecisionGuarantee(
        math_precision="f32",
        accumulator="u64",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition",
        error_model=ErrorModel(id=EXACT) if exact else _RACE,
        evidence=(
            f"{_HERE}/{file}::test_a_row_has_its_bits_in_any_batch",
            f"{_HERE}/{file}::test_no_number_of_ctas_changes_a_bit",
            f"{_HERE}/{gpu}::test_runs_repeat_bitwise",
            f"{_HERE}/{gpu}::test_a_row_has_its_bits_in_any_batch",
        ),
    )
