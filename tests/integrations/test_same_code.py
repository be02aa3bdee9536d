"""Functions compared by their code, and copies of functions with other globals."""

import functools
from types import FunctionType

import pytest
from torch import nn

from opfacade.integrations.transformers.same_code import globals_of, rebound, same_code, same_method

SOURCE = '''
def half(x):
    """{text}"""
    return x * {factor}

def rotary(q, k):
    return half(q) + k, half(k)

class Norm:
    def _norm(self, x):
        return x - {factor}

    def forward(self, x):
        return self._norm(x) * 2
'''


def made(factor=2, text="", **more):
    scope = {"__name__": "made"} | more
    exec(SOURCE.format(factor=factor, text=text), scope)
    return scope


def test_texts_do_not_count():
    one, other = made(text="a half"), made(text="another")
    assert same_code(one["rotary"], other["rotary"])
    assert same_method(one["Norm"], other["Norm"], "forward")


def test_a_function_that_is_called_counts():
    one, other = made(factor=2), made(factor=3)
    assert not same_code(one["rotary"], other["rotary"])
    assert not same_method(one["Norm"], other["Norm"], "forward")
    assert same_code(one["Norm"].forward, other["Norm"].forward)  # without their classes


def test_what_a_decorator_holds_counts():
    def wrapped(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)

        return call

    one, other = made(factor=2), made(factor=3)
    assert same_code(wrapped(one["half"]), wrapped(made(factor=2)["half"]))
    assert not same_code(wrapped(one["half"]), wrapped(other["half"]))


def test_a_function_that_became_a_module_is_compared_by_its_forward():
    def module(function):
        class Made(nn.Module):
            def forward(self, *args):
                return function(*args)

        return Made()

    assert same_code(module(made()["half"]), module(made()["half"]))
    assert not same_code(module(made()["half"]), module(made(factor=3)["half"]))
    assert not same_code(module(made()["half"]), made()["half"])


@pytest.mark.parametrize("other", [None, 3, len])
def test_what_is_no_function_of_python_is_not_the_same(other):
    assert not same_code(made()["half"], other)


def test_a_copy_has_other_globals_also_behind_a_decorator():
    scope = made()
    rotary: FunctionType = scope["rotary"]

    @functools.wraps(rotary)
    def decorated(*args, **kwargs):
        return rotary(*args, **kwargs)

    assert set(globals_of(decorated, "half")) == {"half"}
    copy = rebound(decorated, {"half": lambda x: -x})
    assert copy(1, 5) == (4, -5)
    assert decorated(1, 5) == (7, 10)
    assert scope["half"](1) == 2
