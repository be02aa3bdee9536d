"""Faults: NaN and infinities that an instruction drops, unchecked counts, and misaligned vectors."""

from tests.mutation.mutant import Mutant


def _poison(name, file, old, new, words):
    return Mutant(name, file, ((old, new),), "", f"tests/families/test_poison.py -k cuda and {words}")


_ADDRESS = "reinterpret_cast<uintptr_t>(p_.operand[k]) % access"

POISON_FAULTS = (
    _poison("poison: a maximum drops NaN", "kernels/ptx/float_math.cuh", "max.NaN.f32", "max.f32", "specials and quantize"),
    _poison(
        "poison: a top_p of NaN is a share",
        "kernels/sampling/kept.cuh",
        "by_mass = share < 1.f;",
        "by_mass = !(share >= 1.f);",
        "specials and sample",
    ),
    _poison(
        "poison: a wrong count of rows is taken as it is",
        "kernels/elementwise/place.cuh",
        "return counted >= 0 && counted <= p.extent[0] ? counted : 0;",
        "return counted;",
        "counts and norm",
    ),
    _poison(
        "poison: a count of more rows than there are leaves all of them valid in sampling",
        "kernels/sampling/own_row.cuh",
        "return count <= p.rows && row < count;",
        "return row < count;",
        "counts and sample",
    ),
    _poison(
        "poison: a count of more requests than there are leaves all of them valid in verification",
        "kernels/sampling/verify.cuh",
        "return count <= p.rows && request < count;",
        "return request < count;",
        "counts and verify",
    ),
    _poison(
        "poison: groups of logits are aligned wherever the first one lies",
        "csrc/sampling/split.h",
        "return reinterpret_cast<uintptr_t>(logits.data_ptr()) % group == 0 && step % group == 0;",
        "return step % group == 0;",
        "one_element_on and sample",
    ),
    _poison(
        "poison: vectors of a fold are aligned wherever the first one lies",
        "csrc/reduction/fold.h",
        f"if ({_ADDRESS} != 0 || p_.step[k] * size[k] % access != 0) return false;",
        "if (p_.step[k] * size[k] % access != 0) return false;",
        "one_element_on and softmax",
    ),
    _poison(
        "poison: vectors of a map are aligned wherever the first one lies",
        "csrc/elementwise/map.h",
        f"p_.stride[k][along] == 1 && {_ADDRESS} == 0;",
        "p_.stride[k][along] == 1;",
        "one_element_on and map",
    ),
    _poison(
        "poison: rotary does not ask where k lies",
        "csrc/rotary/rotary.cc.jinja",
        "aligned_16(q) && aligned_16(k) && ",
        "aligned_16(q) && ",
        "one_element_on and rotary",
    ),
)
