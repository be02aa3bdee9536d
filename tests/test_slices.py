"""Families are complete without a list: every template belongs to a kernel, and includes point one way."""

import re
from functools import cache
from pathlib import Path

import pytest

import opfacade
from opfacade import Target
from opfacade.core.candidate import COMPILER_TOO_OLD
from opfacade.select import registry
from opfacade.select.registry import configs_for, examples, families
from tests import structure

ROOT = Path(opfacade.__file__).parents[1]
# Two kernels check the values of all families, probes test single wrappers, the host library makes the calls of all plans,
# rounds between GPUs need more ranks than an example has, and a GPU shares rows that are longer than those of examples.
SERVICES = {"validation/index_check", "validation/value_check", "probes/hopper", "probes/link", "host/host"}
SERVICES |= {"ranks/exchange", "ranks/merge_across", "ranks/sum_fold", "sampling/draw_listed", "sampling/list_shard"}
SERVICES |= {"reduction/fold_spread"}
# Lower first: wrappers of instructions, rings and tiles, then other code without an operator, then the page table of a cache.
SHARED = ("ptx", "pipeline", "tile", "common", "paged")
# An include, or the header that a binding names for csrc/common/_binding.jinja to include.
INCLUDE = re.compile(r'^\s*(?:#\s*include\s*|{% set params = )(["<])([^">{]+)', re.MULTILINE)
DEVICE = [p for at in ("kernels", "csrc") for p in sorted((ROOT / at).rglob("*")) if p.suffix in (".cuh", ".h", ".jinja")]


@cache
def templates():
    """Every template that a candidate compiles for an example on some architecture, by family."""
    found = {family: set() for family in families()}
    for example in examples():
        for target in map(Target.parse, ("sm_80", "sm_90a", "sm_100a")):
            for one in configs_for(type(example)):
                if one.compiles and {reason.code for reason in one.declines(example, target)} <= {COMPILER_TOO_OLD}:
                    found[example.family()] |= {spec.template for spec in _own(one, example, target)}
    return found


def _own(candidate, example, target):
    """Kernels of a candidate; those of a composite plan belong to the families of its steps."""
    return candidate.jit_specs(example, target) if candidate.parts is None else ()


@pytest.mark.parametrize("family", families())
def test_a_family_is_a_complete_slice(family):
    ops = {e.op for e in examples() if e.family() == family}
    assert ops
    assert registry.harness_for(next(iter(ops))) is not None
    assert (ROOT / f"tests/families/{family}/test_reference.py").exists()
    for template in templates()[family]:
        assert all((ROOT / "csrc" / f"{template}.{kind}.jinja").exists() for kind in ("cu", "cc")), template
    own = any(template.startswith(f"{family}/") for template in templates()[family])
    assert own == (ROOT / "csrc" / family).is_dir()
    assert not own or list((ROOT / "kernels" / family).rglob("*.cuh"))


def test_every_template_is_compiled_by_a_candidate():
    """A partial template begins with an underscore, or is not a kernel's entry point."""
    paths = [p.relative_to(ROOT / "csrc").as_posix() for p in (ROOT / "csrc").rglob("*.jinja")]
    found = {name.split(".")[0] for name in paths if name.endswith((".cu.jinja", ".cc.jinja"))}
    assert {name for name in found if "/_" not in name} == SERVICES | set().union(*templates().values())


def rooms():
    """Which folder of device code includes which others: those of shared code and of families."""
    edges = {}
    for path in DEVICE:
        own = path.relative_to(ROOT).parts[1]
        for _, name in INCLUDE.findall(path.read_text()):
            parts = Path(name).parts
            if parts[0] in ("kernels", "csrc") and parts[1] != own:
                edges.setdefault(own, set()).add(parts[1])
    return edges


def test_device_code_includes_shared_code_and_in_no_circle():
    """A family may build on another: gated activations on maps, latent attention on decode."""
    edges = rooms()
    for index, room in enumerate(SHARED):
        assert edges.get(room, set()) <= set(SHARED[:index]), room
    every = {*edges, *(other for others in edges.values() for other in others)}
    assert structure.circles({room: edges.get(room, set()) for room in every}) == []
    assert every <= {*SHARED, *families(), *(name.partition("/")[0] for name in SERVICES)}


@pytest.mark.parametrize("path", DEVICE, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_own_includes_start_at_the_root(path):
    folder = path.relative_to(ROOT).parts[0]
    places = ("kernels/", "csrc/") if folder == "csrc" else ("kernels/",)
    for quote, name in INCLUDE.findall(path.read_text()):
        own = (ROOT / name).exists() or quote == '"'
        assert not own or (quote == '"' and (ROOT / name).is_file() and name.startswith(places)), name
        assert folder == "csrc" or not re.search(r"torch|tvm|ATen|cutlass|cute", name), name
