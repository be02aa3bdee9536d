"""The ops of torch as a table of Markdown: the order of their arguments, and which have a form in place."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.torch_ops.forms import Form, all_forms

HEAD = "| op | its arguments, in their order | form in place | functional form |\n|---|---|---|---|"


def table() -> Iterator[str]:
    """The lines of a table with a row for each op. In brackets: what may be left out, and comes by place or by name."""
    forms = {form.name: form for form in all_forms()}
    yield HEAD
    for name in (name for name in forms if not name.endswith("_")):
        in_place = forms.get(f"{name}_")
        overwriting = "-" if in_place is None else f"`{in_place.name}{_arguments(in_place)}`"
        yield f"| `{name}` | `{_arguments(forms[name])}` | {overwriting} | `{_functional(forms[name])}` |"


def _arguments(form: Form) -> str:
    """Arguments by place; operands after the workspace are given by name."""
    place = form.order[: form.order.index("workspace") + 1]
    needed = [name for name in place if name in form.required]
    more = [name for name in place if name not in form.required]
    return f"({', '.join(['plan', *needed])}, [{', '.join(more)}])"


def _functional(form: Form) -> str:
    from opfacade.torch_ops.library import Functional

    shapes = [*Functional(form).shapes.values()]
    needed = [name for name in form.inputs if name in form.required]
    return f"({', '.join(['plan', *shapes, *needed])}) -> {', '.join(form.results)}"
