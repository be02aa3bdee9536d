"""The torch ops as a Markdown table: the order of their arguments, and whether there is an in-place form."""

from __future__ import annotations

from collections.abc import Iterator

from opfacade.torch_ops.forms import Form, all_forms

HEAD = "| op | its arguments, in their order | form in place | functional form |\n|---|---|---|---|"


def table() -> Iterator[str]:
    """The lines of a table with a row for each op. Brackets enclose optional arguments, which may be passed by position or by
    name."""
    forms = {form.name: form for form in all_forms()}
    yield HEAD
    for name in (name for name in forms if not name.endswith("_")):
        in_place = forms.get(f"{name}_")
        overwriting = "-" if in_place is None else f"`{in_place.name}{_arguments(in_place)}`"
        yield f"| `{name}` | `{_arguments(forms[name])}` | {overwriting} | `{_functional(forms[name])}` |"


def _arguments(form: Form) -> str:
    """The arguments in order; operands after the workspace are passed by name."""
    place = form.order[: form.order.index("workspace") + 1]
    needed = [name for name in place if name in form.required]
    more = [name for name in place if name not in form.required]
    return f"({', '.join(['plan', *needed])}, [{', '.join(more)}])"


def _functional(form: Form) -> str:
    from opfacade.torch_ops.library import Functional

    shapes = [*Functional(form).shapes.values()]
    needed = [name for name in form.inputs if name in form.required]
    return f"({', '.join(['plan', *shapes, *needed])}) -> {', '.join(form.results)}"
