"""Ops of torch.library around plans: `define` makes the ops of one form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.library import Library

from opfacade.core.descriptor import Args
from opfacade.core.joined import group_of
from opfacade.core.model import INT64_MAX
from opfacade.core.operands import room
from opfacade.core.overlap import extent
from opfacade.core.plan_handles import plan_of
from opfacade.errors import ArgumentError, Issue, from_issues
from opfacade.torch_ops import inductor
from opfacade.torch_ops.forms import Form
from opfacade.torch_ops.outputs import Output, Unmade, output_of

NAMESPACE = "opfacade"
_library: Any = Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # it must outlive its ops
_TAGS = (torch.Tag.needs_fixed_stride_order,)
_defined: dict[str, Form] = {}
_MOST_ELEMENTS = INT64_MAX // 8  # torch stores a number of bytes as int64; an element has up to 8 bytes


def define(form: Form) -> None:
    """Registers `torch.ops.opfacade.<name>` and its functional form, once."""
    if form.name in _defined:
        return
    _defined[form.name] = form
    _add(form.schema(), _runner(form), partial(_fake, form))
    if not form.is_in_place:
        functional = Functional(form)
        _add(functional.schema(), functional.run, functional.fake, functional.may_lack_tensors)


def defined() -> tuple[str, ...]:
    """The names of all ops without the functional ones."""
    return tuple(_defined)


def _add(schema: str, run: Callable[..., Any], fake: Callable[..., Any], without_tensors: bool = False) -> None:
    name = _library.define(schema, tags=_TAGS)
    # A call without tensors has no device for dispatch, so it needs the BackendSelect key.
    for key in ("CPU", "CUDA", *("BackendSelect",) * without_tensors):
        _library.impl(name, run, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def _runner(form: Form) -> Callable[..., None]:
    at = form.order.index("workspace")
    names, kind = (*form.order[:at], *form.order[at + 1 :], *form.handles), form.kind.args_type
    make = _bundles(kind, names)

    def run(plan: int, *given: Any) -> None:  # torch omits trailing arguments with default values
        args = make(*given[:at], *given[at + 1 :])
        if form.handles and args.group is not None:
            args.group = group_of(args.group)
        args.__class__ = kind
        plan_of(plan).run(args, given[at] if len(given) > at else None)

    return run


def _bundles(kind: type[Args], first: tuple[str, ...]) -> Callable[..., Any]:
    """A class with the slots of the args that is not frozen; an instance becomes a bundle when its class is set.

    A frozen dataclass sets each field through object.__setattr__: 1.6 us for a decode, against 0.3 us this way.
    """
    names = (*first, *(name for name in kind.__slots__ if name not in first))
    fields = [(name, Any, dataclasses.field(default=None)) for name in names]
    return dataclasses.make_dataclass(kind.__name__, fields, bases=kind.__bases__, slots=True, eq=False, repr=False)


def _fake(form: Form, plan: int, *tensors: object) -> None:
    inductor.prepare(form.name)
    _refuse_gradients(form, dict(zip(form.order, tensors, strict=False)))


def _refuse_gradients(form: Form, given: Mapping[str, Any]) -> None:
    """Refuses gradients during tracing, because a compiled graph would drop them silently."""
    wanting = [n for n, t in given.items() if t is not None and t.requires_grad] if torch.is_grad_enabled() else []
    if wanting:
        hint = "Call .detach(), or compile under torch.no_grad(): there is no backward."
        issue = Issue("OPF-A006", wanting[0], "requires_grad=False", "requires_grad=True", hint, kind="GradNotSupportedError")
        raise from_issues(form.kind.model_fields["op"].default, "run", [issue])


class Functional:
    """The form of an op that creates its outputs. Its arguments are inputs, flags, dtypes of results, and shapes that the
    inputs do not determine.

    An optional output whose shape the inputs do not determine is created only if the caller passes the shape. If all inputs of
    an op are optional, it has an argument `device`, which is required if no input is passed.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.outputs = tuple(output_of(form, name) for name in form.made)
        self.shapes = {o.name: f"{o.name}_shape" for o in self.outputs if not o.says_shape}
        self.optional = frozenset(o.name for o in self.outputs if o.name in self.shapes and o.optional)
        self.flags = {name: f"return_{name}" for name in form.flags}
        self.dtypes = {
            o.name: f"{o.name}_dtype" for o in self.outputs if f"{o.name}_dtype" in form.kind.model_fields or not o.says_dtype
        }
        self.may_lack_tensors = not form.required - form.nullable - form.written
        device = ("device",) * self.may_lack_tensors
        self.names = (*self.shapes.values(), *form.inputs, *self.flags.values(), *self.dtypes.values(), *device)
        self.defaults = dict.fromkeys(self.names) | dict.fromkeys(self.flags.values(), True)

    def schema(self) -> str:
        form = self.form
        parts = ["SymInt plan", *(f"{self._shape_type(name)} {self.shapes[name]}" for name in self.shapes)]
        parts += [form.required_input(n) if n in form.required else f"Tensor? {n}=None" for n in form.inputs]
        parts += [f"bool {name}=True" for name in self.flags.values()]
        parts += [f"ScalarType? {name}=None" for name in self.dtypes.values()]
        parts += ["Device? device=None"] * self.may_lack_tensors
        results = ", ".join("Tensor" for _ in form.results)
        return f"{form.name}_functional({', '.join(parts)}) -> {results if len(form.results) == 1 else f'({results})'}"

    def _shape_type(self, name: str) -> str:
        return "SymInt[]?" if name in self.optional else "SymInt[]"

    def run(self, plan: int, *given: Any) -> Any:
        values = self.defaults | dict(zip(self.names, given, strict=False))
        inputs = {name: values[name] for name in self.form.inputs}
        self._refuse_shapes(values)
        try:
            made = self._make(values, inputs) | {n: _copy(t) for n, t in self._copied(inputs)}
        except Unmade as unmade:
            raise self._refusal(plan, inputs, unmade) from None
        try:
            plan_of(plan).run(self.form.kind.args_type(**(inputs | made)))
        except ArgumentError as error:
            raise self._with_flags(error) from None
        return self._results(inputs, made)

    def fake(self, plan: int, *given: object) -> Any:
        values = self.defaults | dict(zip(self.names, given, strict=False))
        inputs = {name: values[name] for name in self.form.inputs}
        _refuse_gradients(self.form, inputs)
        self._refuse_shapes(values)
        try:
            made = self._make(values, inputs) | {n: t.clone() for n, t in self._copied(inputs)}
        except Unmade as unmade:
            raise from_issues(self._op, "run", [unmade.issue]) from None
        return self._results(inputs, made)

    @property
    def _op(self) -> str:
        op: str = self.form.kind.model_fields["op"].default
        return op

    def _refuse_shapes(self, values: Mapping[str, Any]) -> None:
        """Raises for an impossible shape. Symbolic sizes of a traced call are not checked, because a check would add a
        guard."""
        for name in self.shapes.values():
            shape = list(values[name] or ())
            known = [n for n in shape if isinstance(n, int)]
            if any(n < 0 for n in known) or (len(known) == len(shape) and math.prod(known) > _MOST_ELEMENTS):
                expected = f"sizes of 0 or more, of at most {_MOST_ELEMENTS} elements"
                raise from_issues(self._op, "run", [Issue("OPF-A011", name, expected, str(shape), kind="ShapeError")])

    def _refusal(self, plan: int, inputs: Mapping[str, Any], unmade: Unmade) -> Exception:
        """The errors of the plan that concern inputs; otherwise the issue of `unmade`."""
        verdict = plan_of(plan).can_implement(self.form.kind.args_type(**inputs))
        issues = [issue for issue in verdict.issues if issue.argument in inputs]
        return from_issues(self._op, "run", issues or [unmade.issue])

    def _with_flags(self, error: ArgumentError) -> ArgumentError:
        """Adds a hint to the error if the op created an output that the plan does not have: the flag that omits the output."""
        made = [issue.argument for issue in error.issues if issue.code == "OPF-A001" and issue.argument in self.flags]
        if not made:
            return error
        told = [self._with_flag(issue, issue.argument) if issue.argument in made else issue for issue in error.issues]
        return from_issues(error.op, error.stage, told)  # type: ignore[return-value]  # the kind is that of the first issue

    def _with_flag(self, issue: Issue, name: str) -> Issue:
        own = f"ass {self.flags[name]}=False to the op."
        return dataclasses.replace(issue, hint=f"{issue.hint.removesuffix('.')}, or p{own}" if issue.hint else f"P{own}")

    def _copied(self, inputs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
        """Operands that the op overwrites; the functional form passes copies of them."""
        return [(n, inputs[n]) for n in self.form.results if inputs.get(n) is not None]

    def _make(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Creates the outputs."""
        wanted = [
            o for o in self.outputs if values.get(self.flags.get(o.name, ""), True) and not self._left_out(o.name, values)
        ]
        return {o.name: self._made(o, values, inputs) for o in wanted}

    def _made(self, output: Output, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> torch.Tensor:
        """Creates an output. If its shape is unknown and the plan may not have this output, the error names the flag that omits
        it."""
        name = output.name
        try:
            return output.make(inputs, values.get(f"{name}_shape"), values.get(f"{name}_dtype"), values.get("device"))
        except Unmade as unmade:
            raise Unmade(self._with_flag(unmade.issue, name) if name in self.flags else unmade.issue) from None

    def _left_out(self, name: str, values: Mapping[str, Any]) -> bool:
        return name in self.optional and values[self.shapes[name]] is None

    def _results(self, inputs: Mapping[str, Any], made: Mapping[str, Any]) -> Any:
        like = next(t for t in (*inputs.values(), *made.values()) if t is not None)
        found = tuple(made[n] if n in made else like.new_empty(0, dtype=torch.float32) for n in self.form.results)
        return found[0] if len(found) == 1 else found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy. A tensor whose storage was shrunk cannot be read, so it is returned unchanged, and the plan refuses it."""
    sound = extent(tensor.shape, tensor.stride()) * tensor.element_size() <= room(tensor)
    return tensor.clone() if sound else tensor
