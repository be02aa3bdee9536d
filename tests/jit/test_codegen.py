import pytest

from opfacade import errors
from opfacade.jit import JitSpec, codegen


def write(root, text, name="made"):
    (root / f"csrc/testing/{name}.cu.jinja").write_text(text)
    (root / f"csrc/testing/{name}.cc.jinja").write_text("")
    return lambda **params: codegen.render(JitSpec.of(name, f"testing/{name}", "sm_80", **params))


def test_parameter_values_are_rendered_as_cpp_literals(root):
    render = write(root, "{{ a }} {{ b }} {{ c }} {{ d|cpp }} {{ e }} {{ arch }}\n")
    assert (
        render(a=True, b=-3, c=0.1, d=False, e="Mode::kAuto").device == "true -3 0x1.999999999999ap-4 false Mode::kAuto sm_80\n"
    )


def test_an_unknown_variable_does_not_render(root):
    with pytest.raises(errors.TemplateError, match="'threds' is undefined"):
        write(root, "{{ threds }}")(threads=1)


def test_a_syntax_error_names_file_and_line(root):
    with pytest.raises(errors.TemplateError, match=r"csrc/testing/made.cu.jinja:2"):
        write(root, "\n{% if %}")()


def test_a_missing_template_is_named(root):
    with pytest.raises(errors.TemplateError, match=r"csrc/nothing/here.cu.jinja"):
        codegen.render(JitSpec.of("k", "nothing/here", "sm_80"))


def test_headers_are_the_transitive_closure_in_order(scale):
    headers = codegen.render(scale).headers
    assert [path for path, _ in headers] == [
        "csrc/common/driver.h",
        "csrc/common/ffi.h",
        "csrc/common/launch.h",
        "csrc/common/launch_recorder.h",
        "csrc/common/operands.h",
        "csrc/common/shared.h",
        "csrc/common/tensor.h",
        "kernels/common/device.cuh",
        "kernels/testing/scale.cuh",
        "kernels/testing/scale_params.h",
    ]


def test_headers_that_include_each_other_are_listed_once(root):
    (root / "kernels/testing/a.h").write_text('#include "kernels/testing/b.h"\n')
    (root / "kernels/testing/b.h").write_text('  # include "kernels/testing/a.h"\n// #include "kernels/none.h"\n')
    assert len(write(root, '#include "kernels/testing/a.h"\n')().headers) == 3


def test_a_source_that_needs_cuda_runtime_gets_it_and_has_another_key(root):
    render = write(root, "// needs: cuda_runtime.h\n")
    assert not render().lean
    assert write(root, "\n")().lean


@pytest.mark.parametrize("path", ["kernels/none.h", "kernels/../../etc/passwd", "kernels//testing/scale.cuh"])
def test_an_include_outside_the_source_root_is_refused_with_its_origin(root, path):
    with pytest.raises(errors.TemplateError, match="device source includes"):
        write(root, f'#include "{path}"\n')()


def test_moving_a_character_between_fields_changes_the_digest():
    make = codegen.canonical_digest
    assert make({"a": "xy", "b": ""}) != make({"a": "x", "b": "y"})
    assert make({"flags": ["-Da", "-Db"]}) != make({"flags": ["-Da-Db"]})
    assert make({"flags": ["-Da", "-Db"]}) != make({"flags": ["-Db", "-Da"]})
