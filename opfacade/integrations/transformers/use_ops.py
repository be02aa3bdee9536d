"""use_ops(model): norms, gated activations, rotations and linear layers of a model run on plans until this is undone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, get_args

from opfacade import Preference
from opfacade.errors import Issue, from_issues
from opfacade.integrations.refusal import UNSUPPORTED
from opfacade.integrations.transformers import linear_layers, registration
from opfacade.integrations.transformers.known_layers import Kind, Method, Unknown, found_in
from opfacade.integrations.transformers.releases import WAY

if TYPE_CHECKING:
    import torch

KINDS: tuple[Kind, ...] = get_args(Kind)
PLAIN: tuple[Kind, ...] = ("norm", "activation", "rotary")  # the kinds that are replaced by default


@dataclass(frozen=True)
class Replaced:
    """The names of the modules of each kind that run on plans, and the modules that keep their own code, with the reasons."""

    norm: tuple[str, ...]
    activation: tuple[str, ...]
    rotary: tuple[str, ...]
    linear: tuple[str, ...]
    left: Mapping[str, str]
    _methods: tuple[tuple[Any, str, Any], ...] = field(repr=False)

    def undo(self) -> None:
        """Restores the code of each module. A second call has no effect."""
        for module, name, method in self._methods:
            if module.__dict__.get(name) is method:
                delattr(module, name)

    def __str__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in KINDS)
        return "\n".join([f"replaced: {counts}", *(f"left: {name}: {reason}" for name, reason in self.left.items())])


def use_ops(
    model: torch.nn.Module, *, only: Collection[Kind] = PLAIN, strict: bool = False, products: Preference | None = None
) -> Replaced:
    """Runs the RMS norms, gated activations and rotary embeddings of a model on plans; `undo` of the result reverts this. A
    method of each instance is replaced, so other models of the family are not affected. A module is replaced if its code equals
    the code of a layer of Llama, Gemma, gpt-oss or Phi 3, which most families copy; norms round as in that layer. Calls in
    training mode or with gradients run transformers' own code. Works in eager mode and under torch.compile.

    only: the kinds to replace: "norm", "activation", "rotary", and "linear", which is not a default: each nn.Linear whose
    product a kernel supports. products: the preference for these products; by default, only kernels;
    Preference(backend="reference") takes the reference, which is slow. strict: refuse a model, before anything changes, if a
    module of these kinds is unknown or its method was already replaced; without strict, `left` names such modules. Raises
    ArgumentTypeError (OPF-I010) for a model that is not a module, UnsupportedError for unknown modules with strict (OPF-I009),
    or if transformers is missing or its release is unknown (OPF-I005, OPF-I006).
    """
    registration.names()
    _check(model, only, products)
    chosen, left = _survey(model, only, products)
    if strict and left:
        hint = "Without strict it keeps its own code."
        expected = "a module that use_ops knows"
        _raise([Issue("OPF-I009", name, expected, reason, hint, UNSUPPORTED) for name, reason in left.items()])
    bound = []
    for _, module, method in chosen:
        bound.append((module, method.name, MethodType(method.function, module)))
        setattr(*bound[-1])
    by_kind = {kind: tuple(name for name, _, method in chosen if method.kind == kind) for kind in KINDS}
    return Replaced(**by_kind, left=left, _methods=tuple(bound))


def _survey(
    model: torch.nn.Module, only: Collection[Kind], products: Preference | None
) -> tuple[list[tuple[str, Any, Method]], dict[str, str]]:
    chosen, left = [], {}
    for name, module in model.named_modules():
        found = found_in(module) or (linear_layers.found_in(module, products) if "linear" in only else None)
        if found is None or found.kind not in only:
            continue
        if isinstance(found, Method) and found.name in module.__dict__:
            found = Unknown(found.kind, f"its {found.name} is replaced already")
        if isinstance(found, Method):
            chosen.append((name, module, found))
        else:
            left[name] = f"{type(module).__name__}: {found.reason}"
    return chosen, left


def _check(model: object, only: Collection[Kind], products: object) -> None:
    if not callable(getattr(model, "named_modules", None)):
        _raise([Issue("OPF-I010", "model", "a transformers model", type(model).__name__, kind="ArgumentTypeError")])
    unknown = [kind for kind in only if kind not in KINDS]
    if unknown:
        _raise([Issue("OPF-I010", "only", f"some of {', '.join(KINDS)}", repr(unknown[0]), kind="ArgumentTypeError")])
    if not isinstance(products, Preference | None):
        _raise([Issue("OPF-I010", "products", "a Preference", type(products).__name__, kind="ArgumentTypeError")])


def _raise(issues: Sequence[Issue]) -> None:
    raise from_issues(WAY, "use_ops", issues)
