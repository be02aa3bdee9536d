import pytest

from opfacade import errors
from opfacade.jit import JitSpec, source_root


def spec(**changes):
    return JitSpec(**{"name": "k", "template": "a/b", "params": (("n", 1),), "arch": "sm_90a", "flags": (), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "1k"},
        {"name": "k" * 65},
        {"name": "k\n"},
        {"name": "k;rm"},
        {"template": "../etc"},
        {"template": "a//b"},
        {"arch": "sm_90a -o x"},
        {"flags": ("-Da b",)},
        {"flags": ("-D$(id)",)},
        {"flags": ("-Da\nb",)},
        {"flags": ("-I/etc",)},
        {"flags": ("x.cu",)},
        {"params": (("n", "a; b"),)},
        {"params": (("n", "a\n"),)},
        {"params": (("n", float("nan")),)},
        {"params": (("n", None),)},
        {"params": (("n", 2**64),)},
        {"params": (("n", 10**5000),)},
        {"params": (("b", 1), ("a", 1))},
        {"params": (("a", 1), ("a", 2))},
        {"params": (("arch", 1),)},
    ],
)
def test_unsafe_or_ambiguous_fields_are_refused(changes):
    with pytest.raises(errors.ArgumentError, match="JitSpec"):
        spec(**changes)


def test_parameters_of_different_types_give_different_specs():
    specs = {spec(params=(("n", value),)) for value in (1, True, 1.0, "true", 0.0, -0.0, 0, False)}
    assert len(specs) == 8


def test_equal_fields_make_equal_specs():
    assert JitSpec.of("k", "a/b", "sm_80", b=1, a=2) == JitSpec("k", "a/b", (("a", 2), ("b", 1)), "sm_80")


def test_source_root_is_the_checkout_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("OPFACADE_SOURCE_ROOT", raising=False)
    assert (source_root() / "csrc/common/tensor.h").is_file()
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(tmp_path))
    with pytest.raises(errors.ToolchainError, match="OPF-J002"):
        source_root()


@pytest.mark.parametrize("value", [("ok", "no; word"), (1, (2, float("inf"))), (None,), ((), (2**64,)), (b"x",)])
def test_values_in_a_tuple_are_checked_by_the_same_rules(value):
    with pytest.raises(errors.ArgumentError, match="OPF-J001"):
        JitSpec.of("name", "a/template", "sm_90a", value=value)
    assert JitSpec.of("name", "a/template", "sm_90a", value=("ok", (1, (True, 0.5)))).params
