"""in_place: which operands remain, and the requirements for the overwritten operand."""

from opfacade.core.in_place import in_place
from opfacade.core.operands import Dim, TensorSpec

SHAPE = (Dim("n", 4), Dim("m", 8))


def test_the_output_is_gone_and_its_input_has_role_inout():
    operands = {
        "x": TensorSpec(SHAPE, "f32", broadcast=(0,)),
        "bias": TensorSpec(SHAPE[1:], "f32"),
        "out": TensorSpec(SHAPE, "f32", "out", replaces="x"),
        "peak": TensorSpec((), "f32", "out"),
    }
    found = in_place(operands)
    assert list(found) == ["x", "bias", "peak"]
    assert found["x"] == TensorSpec(SHAPE, "f32", "inout")
    assert (found["bias"], found["peak"]) == (operands["bias"], operands["peak"])


def test_what_is_overwritten_satisfies_both():
    wide, tight = TensorSpec(SHAPE, "f32", layout="strided", alignment=4), TensorSpec(SHAPE, "f32", "out", "contiguous", 64)
    for x, out in ((wide, tight), (tight._replace(role="in"), wide._replace(role="out"))):
        found = in_place({"x": x, "out": out._replace(replaces="x")})["x"]
        assert (found.layout, found.alignment, found.role, found.replaces) == ("contiguous", 64, "inout", "")
