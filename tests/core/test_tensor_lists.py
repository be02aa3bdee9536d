"""Lists of tensors in a call: an Args class declares their operands once, and has them as fields."""

import dataclasses
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from opfacade.core.descriptor import Args
from opfacade.core.tensor_lists import TensorList, elements, operand
from opfacade.errors import ArgumentTypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedArgs(Args):
    parts: ClassVar[Any] = MappingProxyType({"many": TensorList(elements("one", 3))})
    docs: ClassVar[Any] = MappingProxyType({"many": "a list", "one_2": "the last"})
    many: Any = None
    more: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredArgs(Args):
    many: Any = operand("a list", TensorList(elements("one", 3)))
    more: Any = operand("a tensor")
    last: Any = dataclasses.field(default=7)


def test_fields_declare_their_descriptions_and_elements():
    assert DeclaredArgs.parts == ListedArgs.parts
    set_by = {f"one_{i}": "set by a list in many" for i in range(3)}
    assert DeclaredArgs.docs == {"many": "a list", "more": "a tensor", **set_by}
    assert "more: a tensor.\n" in DeclaredArgs.__doc__
    assert DeclaredArgs.__slots__ == ("many", "more", "last", "one_0", "one_1", "one_2")
    args = DeclaredArgs(many=[1, 2])
    assert (args.many, args.more, args.last, args.one_0, args.one_1, args.one_2) == (None, None, 7, 1, 2, None)


def test_elements_are_fields_with_descriptions():
    assert [field.name for field in dataclasses.fields(ListedArgs)] == ["many", "more", "one_0", "one_1", "one_2"]
    assert "__dict__" not in dir(ListedArgs)
    assert "one_1: set by a list in many." in ListedArgs.__doc__
    assert "one_2: the last." in ListedArgs.__doc__


@pytest.mark.parametrize("form", [list, tuple])
def test_a_list_is_spread_in_its_order(form):
    args = ListedArgs(many=form("ab"), more=7)
    assert (args.many, args.one_0, args.one_1, args.one_2, args.more) == (None, "a", "b", None, 7)
    again = replace(args, many=form("c"))
    assert (again.one_0, again.one_1) == ("c", "b")


def test_any_other_value_and_a_list_that_is_too_long_stay():
    assert ListedArgs(many="xyz").many == "xyz"
    long = ListedArgs(many=list("abcd"))
    assert (long.many, long.one_0) == (["a", "b", "c", "d"], None)


def test_a_name_past_the_last_element_is_refused_with_those_there_are():
    with pytest.raises(ArgumentTypeError, match=r"one_3.*OPF-A060.*one_2|one_3.*one_2"):
        ListedArgs(one_3=1)
