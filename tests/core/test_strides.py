"""StrideRule: compared with torch's predicates where these exist, and each rule alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from opfacade.core.strides import StrideRule, View

AXES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), max_size=4)


def view(axes, itemsize=2):
    shape, stride = zip(*axes, strict=True) if axes else ((), ())
    return View([f"d{i}" for i in range(len(axes))], shape, stride, itemsize)


def code(rule, axes):
    broken = rule.broken(view(axes))
    return "" if broken is None else broken.code


@given(AXES)
def test_contiguous_is_what_torch_calls_so(axes):
    shape, stride = zip(*axes, strict=True) if axes else ((), ())
    given_view = torch.zeros(200).as_strided(shape, stride)
    assert (code(StrideRule("contiguous", False, ()), axes) == "") is given_view.is_contiguous()


@given(AXES)
def test_what_is_written_has_no_element_twice(axes):
    shape, stride = zip(*axes, strict=True) if axes else ((), ())
    places = torch.arange(200).as_strided(shape, stride)
    if code(StrideRule("strided", True, ()), axes) == "":
        assert places.unique().numel() == places.numel()


def test_an_expanded_axis_is_named():
    broken = StrideRule("strided", False, (1,)).broken(view([(4, 0), (2, 1)]))
    assert broken is not None
    assert (broken.code, broken.expected) == ("OPF-A026", "stride 0 in d1 alone")


def test_steps_are_counted_in_bytes_and_rows_have_none_in_their_last_axis():
    axes = [(4, 8), (8, 1)]
    assert code(StrideRule("rows", False, (), 16), axes) == ""
    assert code(StrideRule("strided", False, (), 16), axes) == "OPF-A027"
    assert code(StrideRule("rows", False, (), 32), axes) == "OPF-A027"
    assert code(StrideRule("rows", False, (), 16), [(4, 8), (1, 1)]) == ""
