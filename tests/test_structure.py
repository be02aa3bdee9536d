"""Rules for every file: layers, complete slices, public names, includes, one reader of the environment."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import opfacade
from opfacade import Target
from opfacade.core.joined import JoinedArgs
from opfacade.core.operands import Contents, TensorSpec
from opfacade.select.registry import examples, families
from tests import structure

ROOT = Path(opfacade.__file__).parents[1]
PACKAGE = ROOT / "opfacade"
MODULES = sorted(PACKAGE.rglob("*.py"))
DEVICE = [
    p for folder in ("kernels", "csrc") for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".cuh", ".h", ".jinja")
]

# The package itself, through the lazy names of its __init__.
LAZY = opfacade._HOME


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def imported(path):
    """Every opfacade module a file imports anywhere, type checking included."""
    return structure.imports(path, structure.modules())


def test_imports_point_down_and_run_in_no_circle():
    edges = structure.graph()
    assert structure.upward(edges) == []
    assert structure.circles(structure.without_registry(edges)) == []


def test_every_package_has_its_layer():
    units = {structure.unit(name) for name in structure.graph()}
    assert units == {*structure.LAYERS, *structure.OLDER_PATHS}


def test_a_circle_and_an_upward_import_are_found():
    edges = {"opfacade.core.a": {"opfacade.core.b"}, "opfacade.plan": set()}
    edges["opfacade.core.b"] = {"opfacade.core.a", "opfacade.plan"}
    assert structure.circles(edges) == [["opfacade.core.a", "opfacade.core.b"]]
    assert structure.upward(edges) == [("opfacade.core.b", "opfacade.plan")]


def test_backends_are_reached_only_by_name():
    outside = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] != "backends"]
    assert not [name_of(path) for path in outside if any(n.startswith("opfacade.backends") for n in imported(path))]


def test_only_the_registry_and_lazy_names_import_by_name():
    assert set(structure.dynamic_imports()) == structure.IMPORTS_BY_NAME


def test_imports_by_name_are_counted(monkeypatch, tmp_path):
    path = tmp_path / "m.py"
    path.write_text("import importlib\nimportlib.import_module(f'x.{y}')\n__import__('z')\nopen('import_module(')\n")
    monkeypatch.setattr(structure, "modules", lambda: {"m": path})
    assert structure.dynamic_imports() == {"m": 2}


@pytest.mark.parametrize("name", structure.OLDER_PATHS)
def test_an_older_path_only_hands_on_names(name):
    assert structure.own_code(PACKAGE / f"{name}.py") == []


def test_code_in_an_older_path_is_found():
    assert structure.own_code(PACKAGE / "env.py") != []


def test_host_lines_of_the_shortest_family_do_not_grow():
    """Softmax is a program on the engine of folds; merge_states has a kernel, lists, rows in place and ragged states."""
    assert structure.host_lines("softmax") <= 118
    assert structure.host_lines("cascade") <= 245
    assert structure.host_lines("norm") <= 358  # with the program of norms, which no other family uses
    assert "opfacade.plans._norm_program" in {name for name, who in structure.users().items() if who == {"norm"}}


def test_no_folder_of_a_backend_has_30_files():
    """A family with many files has a folder: backends/cuda/matmul."""
    rooms = {path.parent for path in (PACKAGE / "backends").rglob("*.py")}
    assert {room.name for room in rooms} >= {"matmul", "folds", "attention", "sampling"}
    assert not [room for room in rooms if len(list(room.glob("*.py"))) >= 30]


def test_the_form_of_an_operand_is_apart_from_its_contents():
    """Checks of calls, their fast paths and the host library read only the form of operands; validation and drawn inputs also
    read contents.
    """
    assert not set(TensorSpec._fields) & set(Contents._fields)
    readers = {p.relative_to(PACKAGE).as_posix() for p in MODULES if re.search(r"\.contents\b(?!\._replace)", p.read_text())}
    assert readers == {"core/descriptor.py", "testing/inputs.py", "validation/values.py"}


def test_one_template_prints_expressions():
    """Maps, folds, values of products and variants of attention are scopes of it: each prints its own leaves."""
    printer = "csrc/elementwise/_expression.cu.jinja"
    prints = re.compile(r"ops::(\{\{|cast_<\{\{|\" ~)|in node\[2:\]|in node\[1:\]")
    assert [str(p.relative_to(ROOT)) for p in DEVICE if prints.search(p.read_text())] == [printer]
    users = {p.name for p in DEVICE if f'"{printer}" import' in p.read_text()}
    assert users == {"_statements.cu.jinja", "_value.cu.jinja", "variant.jinja"}


def test_no_device_function_has_80_lines():
    paths = [path for path in DEVICE if path.suffix in (".cuh", ".h")]
    lines = {(str(path), first): many for path in paths for first, many in structure.function_lines(path.read_text()).items()}
    assert len(lines) > 1500
    assert not {place: many for place, many in lines.items() if many >= 80}


def test_lines_of_functions_are_counted():
    text = 'struct A {\n  int f(int a) const {\n    for (;;) {\n      g();  // {\n    }\n  }\n};\nvoid h() { x = "{"; }\n'
    assert structure.function_lines(text) == {2: 5, 8: 1}


def test_parameters_of_type_any_only_become_fewer():
    """Lower a number when the count falls. The engines of programs and their base modules are typed."""
    counts = structure.any_by_package()
    assert counts["recipes"] + counts["compat"] <= 177
    assert sum(counts.values()) - counts["recipes"] - counts["compat"] <= 147
    engines = [path for path in (PACKAGE / "backends" / "cuda").rglob("*engine.py") if structure.any_parameters(path)]
    assert not engines
    assert structure.any_parameters(PACKAGE / "plans" / "_folds" / "checks.py") == 0


def test_parameters_of_type_any_are_counted(tmp_path):
    path = tmp_path / "m.py"
    path.write_text("def f(a: Any, b: int, *c: Any, d: 'x' = 1, **e: Any) -> Any: ...\nasync def g(a, /, b: list[Any]): ...\n")
    assert structure.any_parameters(path) == 3


def test_the_graph_is_printed_without_faults(capsys):
    assert structure.main() == 0
    assert "0 faults, 0 excuses" in capsys.readouterr().out


# Over NCCL each rank computes the same bits as the reference, on GPU tensors.
_SAME_ARITHMETIC = {("cuda", "collective", "__init__.py"): {"reference"}}


def test_a_family_knows_no_other_family_and_a_backend_no_other_backend():
    for path in MODULES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "plans":
            assert not [n for n in imported(path) if n.startswith("opfacade.plans.") and "._" not in n], path
        if parts[0] == "backends" and len(parts) >= 3 and (len(parts) > 3 or path.stem != "__init__"):
            family = next((f for f in families() if f in (path.stem, parts[2]) or path.stem.startswith(f"{f}_")), None)
            plans = {n.split(".")[2] for n in imported(path) if n.startswith("opfacade.plans.") and "._" not in n}
            assert plans <= {family}, path
            backends = {n.split(".")[2] for n in imported(path) if n.startswith("opfacade.backends.")}
            assert backends <= {parts[1], *_SAME_ARITHMETIC.get(parts[1:], ())}, path


def test_jit_knows_no_operator():
    for path in (PACKAGE / "jit").rglob("*.py"):
        units = {structure.unit(name) for name in imported(path) if name != "opfacade"}
        assert units <= {"errors", "base", "env", "telemetry", "jit"}, path
        assert not re.search(r"paged_|prefill|merge_states", path.read_text()), path


TEMPLATES = sorted(path for family in families() for path in (ROOT / "csrc" / family).rglob("*.jinja"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.relative_to(ROOT / "csrc").as_posix())
def test_a_template_is_short_and_a_part_of_one_is_read_by_some(path):
    """A template that several bindings include, or a section of a long template, has a name that begins with an underscore."""
    assert len(path.read_text().splitlines()) <= 60
    readers = [p for p in TEMPLATES if f'"{path.relative_to(ROOT).as_posix()}"' in p.read_text()]
    assert readers or not path.name.startswith("_")


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("backend", ["cuda", "reference"])
def test_a_backend_module_ends_in_its_candidates(backend, family):
    module = importlib.import_module(f"opfacade.backends.{backend}.{family}")
    ops = {e.op for e in examples() if e.family() == family}
    assert {c.descriptor.model_fields["op"].default for c in module.CANDIDATES} == ops
    assert {c.backend for c in module.CANDIDATES} == ({backend} if ops else set())
    last = ast.parse(Path(module.__file__).read_text()).body[-1]
    assert isinstance(last, (ast.Assign, ast.AnnAssign))
    assert "CANDIDATES" in ast.unparse(last).split("=")[0]


def test_every_op_has_two_examples_of_which_one_is_odd():
    for op in {e.op for e in examples()}:
        own = [e for e in examples() if e.op == op]
        assert len(own) >= 2
        sizes = [[*dict(e).values(), *dict(e).get("shape", ())] for e in own]
        assert any(63 in one or 7 in one for one in sizes), op


def test_args_fields_are_the_operands_over_the_examples():
    for kind in {type(e) for e in examples()}:
        named = {name for e in examples() if type(e) is kind for name in e.operands()}
        handles = {"group"} if issubclass(kind.args_type, JoinedArgs) else set()
        fields = {f.name for f in dataclasses.fields(kind.args_type)}
        assert named | set(kind.args_type.parts) == fields - handles
        parameters = kind.args_type.__dataclass_params__
        assert parameters.frozen
        assert "__dict__" not in dir(kind.args_type)
        assert all(f.kw_only for f in dataclasses.fields(kind.args_type))


def test_public_names_are_sorted_and_resolve():
    assert list(opfacade.__all__) == sorted(opfacade.__all__)
    assert set(opfacade.__all__) == set(LAZY)
    assert all(getattr(opfacade, name) is not None for name in opfacade.__all__)
    assert set(opfacade.__all__) <= set(dir(opfacade))
    with pytest.raises(AttributeError, match="nothing"):
        _ = opfacade.nothing


def test_other_modules_with_public_lists_keep_them_sorted():
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert list(names) == sorted(names), path


def test_cluster_barriers_gather_their_warp():
    """The instruction has one wrapper, which only the file that gathers the warp includes."""
    text = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DEVICE}
    assert [name for name, found in text.items() if "barrier.cluster" in found] == ["kernels/ptx/cluster_aligned.cuh"]
    assert [name for name, found in text.items() if "cluster_aligned.cuh" in found] == ["kernels/ptx/cluster_barrier.cuh"]


def test_device_code_neither_traps_nor_prints():
    for path in DEVICE:
        code = re.sub(r"//.*|/\*[\s\S]*?\*/", "", path.read_text())
        assert not re.search(r"(?<!static_)\bassert\(|__trap\(|\bprintf\(", code), path


def reads_environment(path):
    for node in structure.nodes(path):
        named = node.attr if isinstance(node, ast.Attribute) else ""
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) and node.module == "os" else {named}
        yield bool(names & {"environ", "environb", "getenv", "getenvb"})


def test_only_env_reads_the_environment():
    assert {name_of(p) for p in MODULES if any(reads_environment(p))} == {"env.py"}


def test_a_file_fits_in_the_head():
    assert not [name_of(path) for path in MODULES if len(path.read_text().splitlines()) > 300]


def test_no_assert_judges_a_users_value():
    """An assert is removed by -O: it may only state that an internal value is not None or has its type."""
    for path in MODULES:
        for node in (node for node in structure.nodes(path) if isinstance(node, ast.Assert)):
            where = f"{path}:{node.lineno}"
            assert path.parent.name != "plans", where
            assert path.name not in ("operands.py", "model.py", "descriptor.py", "paging.py", "overlap.py"), where
            assert re.fullmatch(r"[\w.]+ is not None|isinstance\(.*\)", ast.unparse(node.test)), where


def test_nothing_catches_everything():
    """Except once in telemetry: a subscriber is foreign code, and its exceptions must not reach a run."""
    broad = []
    for path in MODULES:
        for node in (node for node in structure.nodes(path) if isinstance(node, ast.ExceptHandler)):
            assert node.type is not None, f"{path}:{node.lineno}"
            reraises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
            if not reraises and re.search(r"\b(Base)?Exception\b", ast.unparse(node.type)):
                broad.append(name_of(path))
    assert broad == ["telemetry/__init__.py"]


def evidence():
    from opfacade import Preference
    from opfacade.select.selection import survey

    skus = (o.sku for e in examples() for t in ("cpu", "sm_90a") for o in survey(e, Preference(), Target.parse(t)) if o.sku)
    return sorted({test for sku in skus for test in sku.precision_guarantee.evidence})


@pytest.mark.parametrize("test", evidence())
def test_the_evidence_of_a_guarantee_exists(test):
    path, _, name = test.partition("::")
    assert (ROOT / path).is_file()
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_tests_mirror_the_package():
    """A package has a folder of tests, and a module at the root has a test file. Tests of operators are in tests/families."""
    for path in sorted(PACKAGE.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            assert list((ROOT / "tests" / path.name).glob("test_*.py")), path.name
        elif path.suffix == ".py" and path.stem not in ("__init__", "__main__", *structure.OLDER_PATHS):
            assert (ROOT / f"tests/test_{path.stem}.py").is_file(), path.name
    assert {p.name for p in (ROOT / "tests/families").iterdir() if p.is_dir()} >= set(families())
