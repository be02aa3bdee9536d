"""Recipe: a function with the name and arguments of a function of torch or lax, which returns a descriptor of the
computation."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opfacade.base.short_repr import shown
from opfacade.errors import OpfacadeError
from opfacade.programs.fault import Fault
from opfacade.recipes._tensors import TENSOR, Refusal, Shaped, is_like, refuse, seen

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args


REMEMBERED = 1024  # descriptors
RAW = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError)  # for a value of a wrong type
# By the annotation of a parameter: the expected value in words, and a test of a value.
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "Shaped": (TENSOR, is_like),
        "bool": ("True or False", lambda given: isinstance(given, bool)),
        "int": ("an integer", lambda given: isinstance(given, int) and not isinstance(given, bool)),
        "float": ("a number", lambda given: isinstance(given, (int, float)) and not isinstance(given, bool)),
        "str": ("a string", lambda given: isinstance(given, str)),
        "Node": ("a tensor or a number", lambda given: is_like(given) or isinstance(given, (int, float))),
    }
)
MadeT = TypeVar("MadeT")  # a MapDescriptor, a FoldDescriptor, either of them, or a MatmulDescriptor


@dataclass(frozen=True)
class Recipe(Generic[MadeT]):
    """A function of shapes, dtypes and the other arguments of its namesake. Equal arguments return the same descriptor.

    name: the attribute in `opfacade.recipes`. names: the operators that it implements, with their names in torch's tests. note:
    the differences from these operators."""

    name: str
    names: tuple[str, ...]
    make: Callable[..., MadeT] = field(repr=False)
    note: str = ""

    def __call__(self, *args: Args, **options: object) -> MadeT:
        """The descriptor of a fold, a matrix product or a map. Raises DescriptorError for an invalid argument, and TypeError
        for an argument that the function does not have."""
        plain = {name: _number(given) for name, given in options.items()}
        bound = inspect.signature(self.make).bind(*map(_number, args), **plain)
        try:
            _check(bound)
            named = tuple((name, _frozen(value)) for name, value in bound.kwargs.items())
            found: MadeT = _made(self, tuple(map(_frozen, bound.args)), named)
            return found
        except Fault as fault:
            expected = f"arguments of the program: {fault.expected}"
            raise Refusal("tensors", expected, fault.got, fault.hint_text).of(self.name) from None
        except Refusal as refusal:
            raise refusal.of(self.name) from None
        except OpfacadeError:
            raise
        except RAW as error:
            raise _blamed(self, bound).of(self.name) from error


def _check(bound: inspect.BoundArguments) -> None:
    """Refuses numbers where tensors or bools are expected, because recipes do not check this."""
    for name, given in bound.arguments.items():
        kind = bound.signature.parameters[name].annotation
        if kind in ("Shaped", "bool") and not KINDS[kind][1](given):
            refuse(name, KINDS[kind][0], shown(given) if kind == "bool" else type(given).__name__)


def _blamed(recipe: Recipe[Any], bound: inspect.BoundArguments) -> Refusal:
    """The argument for which a recipe failed: one whose type differs from its annotation, otherwise an argument without which
    the recipe does not fail, otherwise the first argument that is not a tensor."""
    facts, given = bound.signature.parameters, bound.arguments
    odd = [name for name in given if facts[name].annotation in KINDS and not KINDS[facts[name].annotation][1](given[name])]
    loose = (name for name in given if facts[name].default is not inspect.Parameter.empty and _runs(recipe, bound, name))
    name = odd[0] if odd else next(loose, None) or next((name for name in given if not is_like(given[name])), next(iter(given)))
    kinds = (facts[name].annotation, type(facts[name].default).__name__)
    told = (KINDS[kind] for kind in kinds if kind in KINDS)
    expected = next((expected for expected, suits in told if not suits(given[name])), "another value")
    return Refusal(name, expected, shown(given[name]))


def _runs(recipe: Recipe[Any], bound: inspect.BoundArguments, name: str) -> bool:
    """Whether the recipe, called without this argument, returns a descriptor or raises its own error."""
    rest = inspect.BoundArguments(
        bound.signature, OrderedDict((key, one) for key, one in bound.arguments.items() if key != name)
    )
    try:
        recipe.make(*map(_plain, rest.args), **{key: _plain(one) for key, one in rest.kwargs.items()})
    except (Fault, Refusal, OpfacadeError):
        return True
    except RAW:
        return False
    return True


def _plain(given: object) -> Any:
    return _thawed(_frozen(given))


@lru_cache(maxsize=REMEMBERED)
def _made(recipe: Recipe[Any], args: Any, options: Any) -> Any:
    return recipe.make(*map(_thawed, args), **{name: _thawed(value) for name, value in options})


def _number(given: Any) -> Any:
    """Converts a numpy scalar, which also has a shape and a dtype, to the Python number as which torch treats it."""
    if isinstance(given, (list, tuple)) and not isinstance(given, Shaped):
        return [_number(one) for one in given]
    of_numpy = any(kind.__module__ == "numpy" and kind.__name__ == "generic" for kind in type(given).__mro__)
    return given.item() if of_numpy else given


def _frozen(given: object) -> Any:
    """A value as a part of a key, in which 1, 1.0 and True differ, and also 0.0 and -0.0."""
    if is_like(given):
        return seen("tensor", given)
    if isinstance(given, (list, tuple)):
        return ("list", tuple(map(_frozen, given)))
    return ("number", type(given), repr(given), given) if isinstance(given, (int, float)) else given


def _thawed(given: object) -> Any:
    if isinstance(given, tuple) and not isinstance(given, Shaped):
        return [_thawed(item) for item in given[1]] if given[0] == "list" else given[-1]
    return given


RECIPES: dict[str, Recipe[Any]] = {}


def attribute(name: str) -> str:
    """The attribute in `opfacade.recipes` for a torch operator."""
    return name.replace("linalg.", "linalg_").replace("masked.", "masked_").rpartition(".")[2]


def add(names: str, make: Callable[..., MadeT], note: str = "") -> Recipe[MadeT]:
    """Registers a recipe. names: its operators; the first one names the recipe. A name after ~ does not become an attribute,
    because another recipe has that name."""
    told = names.split()
    made = Recipe(attribute(told[0]), tuple(name.lstrip("~") for name in told), make, note)
    RECIPES.update({attribute(name): made for name in told if not name.startswith("~")})
    return made


def recipe(names: str, note: str = "") -> Callable[[Callable[..., MadeT]], Recipe[MadeT]]:
    """The decorator form of `add`."""
    return lambda make: add(names, make, note)


def table(rows: Mapping[str, Callable[..., Any]], form: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Registers one recipe per item {names: function of expressions}."""
    for names, function in rows.items():
        add(names, form(function))
