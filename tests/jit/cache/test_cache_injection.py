"""External text never becomes a path, a template, a C++ token, a shell word or a ninja rule."""

import json

import pytest

from opfacade import errors, load_descriptor
from opfacade.jit import JitSpec, codegen
from opfacade.select.registry import examples

CORPUS = [
    "../../x", "/abs", "a\0b", "x" * 300, "\u0430", "CON", "trailing.", "a/../b", "..", "", " ", "~", "-rf", "%2e%2e",
    "{{7*7}}", "{% include '/etc/passwd' %}", "{{''.__class__}}", "{# x", "${jndi:x}", "#{x}",
    '"; #include "/etc/passwd"', "x\ny", "x\r\ny", "$(id)", "`id`", "*/", "x\\\ny", "??/\n", "R\"(", "x;y", "x|y", "x&y",
    "a b", "a:b", "$in", "build x: y", "\u2028", "\u202e", "\ud800", "x\x1b[2J", "'", '"', "<x>", "%s%n", "__import__('os')",
    '#include "/etc/passwd"', '.incbin "/etc/passwd"', "asm(\"\")", "_Pragma(\"x\")", "#", "//", "/*", "@x",
]  # fmt: skip
GOOD = {"name": "k", "template": "a/b", "params": (("n", "bf16"),), "arch": "sm_90a", "flags": ("-DA=1",)}
PLACES = {
    "name": lambda text: {"name": text},
    "template": lambda text: {"template": text},
    "arch": lambda text: {"arch": text},
    "flag": lambda text: {"flags": (text,)},
    "end of a flag": lambda text: {"flags": ("-DA=" + text,)},
    "parameter": lambda text: {"params": (("n", text),)},
    "parameter name": lambda text: {"params": ((text, 1),)},
}
# A long or unusual word stays one word, and is used as a file name only to find a template of the package.
HARMLESS = {
    ("template", "x" * 300),
    ("parameter", "x" * 300),
    ("name", "CON"),
    ("parameter", "CON"),
    ("parameter name", "CON"),
    ("flag", "-rf"),
}
# Values of flags that consist of letters, digits and -_=.,+ create no second word, no path and no shell syntax.
HARMLESS |= {("end of a flag", text) for text in CORPUS if all(c.isascii() and (c.isalnum() or c in "-_=.,+") for c in text)}


@pytest.mark.parametrize("place", PLACES)
def test_a_spec_refuses_every_injection(place):
    for text in CORPUS:
        if (place, text) not in HARMLESS:
            with pytest.raises(errors.ArgumentError):
                JitSpec(**{**GOOD, **PLACES[place](text)})


@pytest.mark.parametrize("place", PLACES)
def test_what_is_taken_for_text_is_never_another_type(place):
    for value in (None, b"k", 1.5, ["k"], {"k": 1}):
        if place in ("parameter",) and isinstance(value, float):
            continue
        if place == "end of a flag":
            continue
        with pytest.raises((errors.ArgumentError, TypeError)):
            JitSpec(**{**GOOD, **PLACES[place](value)})


def strings(node, path=()):
    """The paths of all strings in nested JSON."""
    if isinstance(node, str):
        yield path
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from strings(value, (*path, key))


def replaced(node, path, text):
    if not path:
        return text
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], text)
    return copy


def fields():
    """{op: (JSON, path) of each position of a schema where a string is allowed}: all items of a list count as one position."""
    found = {}
    for descriptor in examples():
        plain = json.loads(descriptor.model_dump_json())
        for path in strings(plain):
            place = tuple("*" if isinstance(part, int) else part for part in path)
            found.setdefault(descriptor.op, {}).setdefault(place, (plain, path))
    return {op: list(places.values()) for op, places in found.items()}


FIELDS = fields()


@pytest.mark.parametrize("op", FIELDS)
def test_a_descriptor_refuses_every_injection_in_every_string(op):
    for plain, path in FIELDS[op]:
        for text in CORPUS:
            if path[0] in ("variant", "outputs") and path[-1] == "name" and text == "CON":
                continue  # a name of a parameter or an output is an ordinary word and occurs in no file name and no source
            with pytest.raises(errors.OpfacadeError):
                load_descriptor(json.dumps(replaced(plain, path, text)))


@pytest.mark.parametrize("field", ["code", "source", "template", "variant", "trust_code", "__class__", "include"])
@pytest.mark.parametrize("descriptor", examples()[:2], ids=lambda d: d.op)
def test_a_descriptor_carries_no_code(descriptor, field):
    plain = json.loads(descriptor.model_dump_json())
    with pytest.raises(errors.DescriptorError, match=field):
        load_descriptor(json.dumps({**plain, field: '#include "/etc/passwd"'}))


def test_a_value_is_never_a_template(tmp_path):
    """Even a value that bypasses the checks of JitSpec is printed, not rendered."""
    (tmp_path / "csrc").mkdir()
    for kind in ("cu", "cc"):
        (tmp_path / f"csrc/t.{kind}.jinja").write_text("int x = {{ n }};\n")
    spec = JitSpec.of("t", "t", "sm_80", n=1)
    object.__setattr__(spec, "params", (("n", "{{7*7}}{% include 'x' %}"),))
    assert codegen.render(spec, tmp_path).device == "int x = {{7*7}}{% include 'x' %};\n"


@pytest.mark.parametrize("path", ["csrc/../../etc/passwd.h", "csrc//x.h", "kernels/$(id).h", "csrc/x.h\\\n", "kernels/ä.h"])
def test_a_template_includes_only_plain_paths_of_ours(tmp_path, path):
    (tmp_path / "csrc").mkdir()
    for kind in ("cu", "cc"):
        (tmp_path / f"csrc/t.{kind}.jinja").write_text(f'#include "{path}"\n')
    if "\n" in path:
        assert codegen.render(JitSpec.of("t", "t", "sm_80"), tmp_path).headers == ()
    else:
        with pytest.raises(errors.TemplateError):
            codegen.render(JitSpec.of("t", "t", "sm_80"), tmp_path)
