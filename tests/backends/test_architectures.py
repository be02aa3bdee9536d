"""EXAMPLES compile for each architecture that nvcc knows; this test takes a sample.

`python -m bench.random_builds --examples --arch all` compiles all. A spill is not a failure, as for users
(tests/jit/sass/test_slow_code.py), but a spill that was fixed must not come back.
"""

import time

import pytest

from bench.device_builds import DeviceBuilds, architectures
from opfacade import Plan, Preference, Target, explain
from opfacade.core import target as targets
from opfacade.errors import UnsupportedError
from opfacade.jit import toolchain
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor, FoldOutput
from opfacade.programs.expression import apply, stage, value
from opfacade.programs.fields import Input, Output
from opfacade.programs.stages import Stage
from opfacade.select.registry import examples

CUDA = Preference(backend="cuda")
FOREVER = time.monotonic() + 1e6
CACHE = PagedKvCacheDescriptor(num_total_pages=99, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")
DECODE = BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=32, paged_kv=CACHE)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return toolchain.find(tmp_path_factory.mktemp("memo") / "toolchain.json")


def spec_of(descriptor, arch):
    return Plan.select(descriptor, CUDA, Target.parse(arch)).jit_spec


def test_every_architecture_of_nvcc_has_facts_and_a_kernel_for_decode(tools):
    for arch in architectures(tools):
        assert Target.parse(arch).sm_version in targets._USUAL, arch
        assert explain(DECODE, CUDA, Target.parse(arch)).chosen is not None, arch


def test_an_example_builds_for_each_architecture(tools):
    """One more example per architecture; sm_90a has separate tests."""
    archs = [arch for arch in architectures(tools) if arch != "sm_90a"]
    for number, arch in enumerate(archs):
        for example in examples()[number * 7 % len(examples()) :]:
            try:
                spec = spec_of(example, arch)
            except UnsupportedError:
                continue
            if spec is not None:
                assert DeviceBuilds(tools).build(spec, FOREVER).failure == "", (arch, example)
                break


@pytest.mark.parametrize("rounding", ["round_f8_e4m3", "round_f8_e5m2"])
def test_a_program_that_rounds_to_fp8_is_refused_where_the_hardware_cannot(rounding):
    """The conversion is used in a map, in every fold and in a gated activation, although no tensor has such elements. Powers of
    two need no hardware support.
    """
    x = value("x", "f32")
    for problem in programs(apply(rounding, x), apply(rounding, value("gate", "f32"))):
        for arch in ("sm_80", "sm_88"):
            found = explain(problem, CUDA, Target.parse(arch))
            assert found.chosen is None
            assert "OPF-S001" in {reason.code for option in found.options for reason in option.reasons}
        assert explain(problem, CUDA, Target.parse("sm_89")).chosen is not None
    for problem in programs(apply("round_f8_e8m0", x), apply("round_f8_e8m0", value("gate", "f32"))):
        assert explain(problem, CUDA, Target.parse("sm_80")).chosen is not None


def programs(of_x, of_gate):
    x, sums = (Input(name="x", dtype="f32"),), (Stage(reducer="sum", value=of_x),)
    yield MapDescriptor(shape=(3, 5), inputs=x, outputs=(Output(name="z", dtype="f32", value=of_x),))
    for shape, axis in (((3, 5), 1), ((3, 5), 0), ((2, 1 << 20), 1)):
        out = (FoldOutput(name="z", dtype="f32", value=stage(0, "f32"), over=(1 - axis,)),)
        yield FoldDescriptor(shape=shape, fold=(axis,), inputs=x, stages=sums, outputs=out, split="auto")
    yield GatedActivationDescriptor(total_num_rows=3, width=8, dtype="bf16", gated=False, expression=of_gate)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("dim", [128, 256])
def test_ragged_states_are_merged_without_spills(tools, arch, dim):
    problem = MergeStatesDescriptor(num_states=150, total_num_rows=63, num_heads=3, head_dim=dim, dtype="bf16", states="ragged")
    built = DeviceBuilds(tools).build(spec_of(problem, arch), FOREVER)
    assert (built.failure, built.findings) == ("", ())
