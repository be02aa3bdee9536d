"""The checker of one operand: what a TensorSpec accepts, and the code and numbers of each refusal."""

from types import SimpleNamespace

import pytest
import torch

from opfacade.core.checks import check, check_workspace, has_memory
from opfacade.core.dtypes import torch_dtype
from opfacade.core.operands import Dim, TensorSpec, dims_of, index_spec, nbytes, numel
from opfacade.plans._attention.paging import page_table_operands

ROWS = TensorSpec((Dim("n", 4), Dim("heads", 2), Dim("dim", 8)), "f16")
OUT = TensorSpec((Dim("n", 4), Dim("heads", 2), Dim("dim", 8)), "f16", "out")
INDEX = index_spec(Dim("batch+1", 3))


def test_dimensions_have_names_and_sizes_of_fields():
    sizes = SimpleNamespace(rows=4, dim=8)
    assert dims_of(sizes, "rows", "dim") == (Dim("rows", 4), Dim("dim", 8))
    assert dims_of(sizes, "rows+1") == (Dim("rows+1", 5),)
    with pytest.raises(AttributeError):
        dims_of(sizes, "heads")


def issues(spec, tensor, device_type=None):
    return check({"x": spec}, {"x": tensor}, device_type)


def codes(spec, tensor, device_type=None):
    return [i.code for i in issues(spec, tensor, device_type)]


def good():
    return torch.zeros(4, 2, 8, dtype=torch.float16)


@pytest.mark.parametrize(
    "tensor",
    [
        good(),
        torch.zeros(2, 4, 8, dtype=torch.float16).transpose(0, 1),
        torch.zeros(4, 2, 24, dtype=torch.float16)[..., 8:16],
        torch.zeros(9, 2, 8, dtype=torch.float16)[1::2],
        torch.zeros(4, 2, 8, dtype=torch.float16, device="meta"),
        torch.nn.Parameter(good(), requires_grad=False),
    ],
    ids=["dense", "permuted", "cut", "stepped", "meta", "parameter"],
)
@pytest.mark.parametrize("spec", [ROWS, OUT], ids=["in", "out"])
def test_ordinary_tensors_are_accepted(spec, tensor):
    assert issues(spec, tensor) == []


def test_strides_of_dimensions_of_one_do_not_matter():
    spec = TensorSpec((Dim("n", 1), Dim("dim", 1)), "f16", "out")
    assert issues(spec, torch.zeros(8, dtype=torch.float16).as_strided((1, 1), (0, 7))) == []


def test_a_free_dimension_takes_any_size():
    spec = index_spec(Dim("batch", 2), Dim("max_pages"))
    assert issues(spec, torch.zeros(2, 0, dtype=torch.int32)) == []
    assert issues(spec, torch.zeros(2, 99, dtype=torch.int32)) == []
    assert codes(spec, torch.zeros(3, 99, dtype=torch.int32)) == ["OPF-A011"]


REFUSED = {  # name: (spec, tensor, code, expected holds, got holds)
    "list": (ROWS, [1, 2], "OPF-A007", "torch.Tensor", "a list of 2"),
    "tuple": (ROWS, (good(),), "OPF-A007", "torch.Tensor", "a tuple of 1"),
    "none": (ROWS, None, "OPF-A002", "torch.Tensor", "None"),
    "numpy": (ROWS, good().numpy(), "OPF-A002", "torch.Tensor", "ndarray"),
    "rank": (ROWS, good()[0], "OPF-A011", "[n=4, heads=2, dim=8]", "[2, 8]"),
    "shape": (ROWS, good()[:3], "OPF-A011", "[n=4, heads=2, dim=8]", "[3, 2, 8]"),
    "dtype": (ROWS, good().bfloat16(), "OPF-A010", "torch.float16", "torch.bfloat16"),
    "int64": (INDEX, torch.zeros(3, dtype=torch.int64), "OPF-A010", "torch.int32", "torch.int64"),
    "int16": (INDEX, torch.zeros(3, dtype=torch.int16), "OPF-A010", "torch.int32", "torch.int16"),
    "index stride": (INDEX, torch.zeros(6, dtype=torch.int32)[::2], "OPF-A020", "contiguous", "(2,)"),
    "last stride": (ROWS, torch.zeros(4, 8, 2, dtype=torch.float16).transpose(1, 2), "OPF-A021", "stride 1", "(16, 1, 2)"),
    "expanded": (OUT, torch.zeros(1, 2, 8, dtype=torch.float16).expand(4, 2, 8), "OPF-A022", "positive", "(0, 8, 1)"),
    "expanded last": (ROWS, torch.zeros(4, 2, 1, dtype=torch.float16).expand(4, 2, 8), "OPF-A021", "stride 1", "(2, 1, 0)"),
    "overlapping": (OUT, good().as_strided((4, 2, 8), (4, 32, 1)), "OPF-A023", "overlap", "(4, 32, 1)"),
    "misaligned": (ROWS, torch.zeros(65, dtype=torch.float16)[1:].view(4, 2, 8), "OPF-A025", "16 bytes", "mod 16 = 2"),
    "sparse": (ROWS, good().to_sparse(), "OPF-A004", "strided", "torch.sparse_coo"),
    "quantized": (ROWS, torch.quantize_per_tensor(torch.zeros(4, 2, 8), 1.0, 0, torch.quint8), "OPF-A004", "strided", ""),
    "nested": (ROWS, torch.nested.nested_tensor([torch.zeros(2, 8)] * 4), "OPF-A004", "strided", ""),
    "mkldnn": (ROWS, torch.zeros(4, 2, 8).to_mkldnn(), "OPF-A004", "strided", "torch._mkldnn"),
    "negative bit": (ROWS, torch._neg_view(good()), "OPF-A005", "negative bit", ""),
    "conjugate": (ROWS, torch.zeros(4, 2, 8, dtype=torch.complex64).conj(), "OPF-A005", "conjugate", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_its_code_and_numbers(name):  # rows 20 to 26, 30, 38
    spec, tensor, code, expected, got = REFUSED[name]
    [issue] = [i for i in issues(spec, tensor) if i.code == code]
    assert issue.argument == "x"
    assert expected in issue.expected
    assert got in issue.got
    assert str(issue).endswith(f"[{code}]")


def test_reading_overlapping_elements_is_legal():
    assert issues(ROWS, torch.zeros(64, dtype=torch.float16).as_strided((4, 2, 8), (4, 32, 1))) == []


@pytest.mark.parametrize("shape", [(1, 2, 8), (4, 1, 8), (1, 1, 8)])
def test_reading_expanded_elements_is_legal_and_writing_them_is_not(shape):
    tensor = torch.zeros(shape, dtype=torch.float16).expand(4, 2, 8)
    assert issues(ROWS, tensor) == []
    assert codes(OUT, tensor) == ["OPF-A022"]
    assert codes(ROWS._replace(role="inout"), tensor) == ["OPF-A022"]
    assert codes(ROWS._replace(layout="contiguous"), tensor) == ["OPF-A020"]


def test_an_expanded_input_has_storage_for_what_it_reaches_and_shares_none_with_an_output():
    row = torch.zeros(2, 8, dtype=torch.float16)
    assert issues(ROWS, row.expand(4, 2, 8)) == []
    found = check({"x": ROWS, "y": OUT}, {"x": row.expand(4, 2, 8), "y": torch.zeros(4, 2, 8, dtype=torch.float16)}, None)
    assert found == []
    room = torch.zeros(4, 2, 8, dtype=torch.float16)
    [issue] = check({"x": ROWS, "y": OUT}, {"x": room[2].expand(4, 2, 8), "y": room}, None)
    assert (issue.code, issue.argument) == ("OPF-A040", "y")


def test_index_tensors_need_only_their_own_alignment():
    assert issues(INDEX, torch.zeros(4, dtype=torch.int32)[1:]) == []


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_an_index_tensor_between_two_of_its_elements_is_refused(offset):
    flat = torch.frombuffer(bytearray(32), dtype=torch.int32, offset=offset, count=4)
    assert codes(INDEX, flat[:3]) == ["OPF-A025"]
    for name, spec in page_table_operands("block", 2).items():
        tensor = flat[:2] if name == "kv_lens" else flat.view(2, 2)
        [issue] = check({name: spec}, {name: tensor}, None)
        assert (issue.code, issue.argument, issue.got) == ("OPF-A025", name, f"address mod 4 = {tensor.data_ptr() % 4}")


def test_issues_of_several_operands_are_told_together():
    wrong = torch.zeros(4, 2, 8, dtype=torch.float32)
    found = check({"x": ROWS, "y": OUT, "z": INDEX}, {"x": wrong, "y": wrong.clone(), "z": torch.zeros(3)}, None)
    assert [(issue.code, issue.argument) for issue in found] == [("OPF-A010", name) for name in "xyz"]


class Wrapped(torch.Tensor):
    pass


def test_a_tensor_subclass_is_refused():  # row 41
    assert codes(ROWS, good().as_subclass(Wrapped)) == ["OPF-A003"]


def test_a_tensor_that_needs_a_gradient_is_refused_unless_gradients_are_off():  # row 37
    tensor = good().requires_grad_()
    assert codes(ROWS, tensor) == ["OPF-A006"]
    assert "detach" in issues(ROWS, tensor)[0].hint
    with torch.no_grad():
        assert issues(ROWS, tensor) == []
    with torch.inference_mode():
        assert issues(OUT, good()) == []  # row 42


def test_a_view_past_the_end_of_its_storage_is_refused():  # row 31
    tensor = good()
    tensor.untyped_storage().resize_(100)
    [issue] = issues(ROWS, tensor)
    assert (issue.code, issue.got) == ("OPF-A024", "100")
    assert issue.expected.startswith("128 bytes")


def test_a_freed_storage_is_refused():  # row 43
    tensor = good()
    tensor.untyped_storage().resize_(0)
    assert codes(ROWS, tensor) == ["OPF-A024"]


@pytest.mark.parametrize(("device_type", "wanted"), [("cuda", ["OPF-A030"]), ("cpu", []), (None, [])])
def test_the_device_must_be_the_plans(device_type, wanted):  # row 32
    assert codes(ROWS, good(), device_type) == wanted


def test_operands_must_share_a_device():  # row 33
    found = check({"x": ROWS, "y": ROWS}, {"x": good(), "y": good().to("meta")}, None)
    assert [(i.code, i.argument, i.got) for i in found] == [("OPF-A031", "y", "meta")]


def test_every_issue_of_every_operand_is_found():
    found = check({"x": ROWS, "y": INDEX, "z": ROWS}, {"x": good()[0].float(), "y": None, "z": 3, "w": good()}, None)
    assert {(i.argument, i.code) for i in found} == {
        ("x", "OPF-A010"), ("x", "OPF-A011"), ("y", "OPF-A002"), ("z", "OPF-A002"), ("w", "OPF-A001"),
    }  # fmt: skip


def test_an_operand_the_descriptor_has_not_must_be_none():
    assert check({"x": ROWS}, {"x": good(), "lse": None}, None) == []
    [issue] = check({"x": ROWS}, {"x": good(), "lse": good()}, None)
    assert (issue.code, issue.argument) == ("OPF-A001", "lse")


@pytest.mark.parametrize(
    ("first", "second", "refused"), [(ROWS, ROWS, False), (ROWS, OUT, True), (OUT, ROWS, True), (OUT, OUT, True)]
)
def test_only_written_operands_must_be_apart(first, second, refused):  # row 35
    tensor = good()
    found = check({"x": first, "y": second}, {"x": tensor, "y": tensor}, None)
    assert [i.code for i in found] == (["OPF-A040"] if refused else [])
    if refused:
        assert found[0].argument == ("x" if first.written else "y")


def test_fake_tensors_are_checked_and_have_no_memory():  # row 40
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = good()
    assert not has_memory(fake)
    assert issues(ROWS, fake) == []
    assert codes(ROWS, fake[:3]) == ["OPF-A011"]


def test_tensors_without_memory_do_not_mix_with_others():
    """A fake tensor on the CPU is on the same device as the others, but has no data."""
    specs = {"x": ROWS, "y": ROWS}
    for x, y, expected, got in ((good(), fake(good()), "with", "without"), (fake(good()), good(), "without", "with")):
        [issue] = check(specs, {"x": x, "y": y}, None)
        assert (issue.code, issue.argument, issue.kind) == ("OPF-A032", "y", "DeviceMismatchError")
        assert (issue.expected, issue.got) == (f"a tensor {expected} memory, as x", f"one {got} memory")
    assert check(specs, {"x": fake(good()), "y": fake(good())}, None) == []


WORKSPACES = {
    "list": ([0], "OPF-A050", "list"),
    "dtype": (torch.zeros(512), "OPF-A051", "torch.float32"),
    "rank": (torch.zeros(2, 256, dtype=torch.uint8), "OPF-A051", "[2, 256]"),
    "stride": (torch.zeros(1024, dtype=torch.uint8)[::2], "OPF-A051", "[512]"),
    "device": (torch.zeros(512, dtype=torch.uint8, device="meta"), "OPF-A052", "meta"),
    "small": (torch.zeros(511, dtype=torch.uint8), "OPF-A053", "511"),
    "misaligned": (torch.zeros(1024, dtype=torch.uint8), "OPF-A054", "mod 256"),
    "shrunk": (torch.zeros(1024, dtype=torch.uint8), "OPF-A055", "511"),
    "fake": (torch.zeros(512, dtype=torch.uint8), "OPF-A056", "without memory"),
    "sparse": (torch.zeros(512, dtype=torch.uint8).to_sparse(), "OPF-A004", "torch.sparse_coo"),
    "nested": (torch.nested.nested_tensor([torch.zeros(9)] * 2).to(torch.uint8), "OPF-A004", "nested"),
    "jagged": (torch.nested.nested_tensor([torch.zeros(9)] * 2, layout=torch.jagged), "OPF-A003", "NestedTensor"),
    "subclass": (torch.zeros(512, dtype=torch.uint8).as_subclass(Wrapped), "OPF-A003", "Wrapped"),
}


def fake(tensor):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(tensor)


@pytest.mark.parametrize("name", WORKSPACES)
def test_a_wrong_workspace_is_refused(name):  # row 44
    workspace, code, got = WORKSPACES[name]
    if name == "misaligned":
        workspace = workspace[1 + -workspace.data_ptr() % 256 :][:600]
    if name == "shrunk":
        workspace = workspace.clone()[1:]
        workspace.untyped_storage().resize_(512)
    if name == "fake":
        workspace = fake(workspace)
    [issue] = check_workspace(workspace, 512, good(), 256)
    assert (issue.code, issue.kind, issue.argument) == (code, "WorkspaceError", "workspace")
    assert got in issue.got


def test_a_right_workspace_is_accepted():
    room = torch.zeros(1024, dtype=torch.uint8)
    assert check_workspace(room[-room.data_ptr() % 256 :][:512], 512, good(), 256) == []
    assert check_workspace(None, 512, good(), 256) == []
    assert check_workspace(room[1:], 0, good(), 256) == []


def test_sizes_count_free_dimensions_as_told():
    spec = TensorSpec((Dim("n", 3), Dim("free")), "f32")
    assert (numel(spec), numel(spec, 5), nbytes([ROWS, INDEX])) == (0, 15, 128 + 12)


def test_every_dtype_name_has_its_torch_dtype_and_size():
    from opfacade.core.dtypes import ITEMSIZE

    assert {name: torch_dtype(name).itemsize for name in ITEMSIZE} == ITEMSIZE
    assert torch_dtype("f8_e4m3") is torch.float8_e4m3fn
