"""One table of operands, tensors and expected codes for every check of a call: the full check, the signature of the host
library in the fast path, and replay."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import pytest
import torch

from opfacade.backends.cuda.host import direct as told
from opfacade.core.checks import check
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.dtypes import ITEMSIZE, torch_dtype
from opfacade.core.forms import Parts
from opfacade.core.in_place import in_place
from opfacade.core.operands import Dim, TensorSpec, index_spec, num_valid_spec
from opfacade.core.tensor_lists import TensorList
from tests.jit.host.test_contract import fast
from tests.jit.quick_way import ReplayPath


@dataclass(frozen=True, slots=True, kw_only=True)
class TableArgs(Args):
    parts: ClassVar[Mapping[str, Parts]] = MappingProxyType({"many": TensorList(("many_0", "many_1"))})
    x: Any = None
    out: Any = None
    many: Any = None


class TableDescriptor(Descriptor[TableArgs]):
    """The operands of one row of the table."""

    op: Literal["table"] = "table"
    args_type: ClassVar[type[Args]] = TableArgs
    row: str

    def operands(self) -> dict[str, TensorSpec]:
        return dict(TABLE[self.row].operands)


@dataclass(frozen=True)
class Row:
    """The operands, a valid call, and named calls with the code of their refusal, which is "" for valid calls."""

    operands: Mapping[str, TensorSpec]
    sound: Mapping[str, Any]
    calls: Mapping[str, tuple[Mapping[str, Any], str]]


N, M = Dim("n", 4), Dim("m", 8)
ROOM = 4096


def memory(dtype="f32", aligned=0):
    """Zeros that begin `aligned` bytes after a multiple of 64, in memory that no other row shares."""
    room = bytearray(ROOM + 128)
    first = -torch.frombuffer(room, dtype=torch.uint8).data_ptr() % 64 + aligned
    return torch.frombuffer(room, dtype=torch_dtype(dtype), offset=first, count=ROOM // torch_dtype(dtype).itemsize)


def view(sizes, strides, dtype="f32", aligned=0):
    return memory(dtype, aligned).as_strided(sizes, strides)


def one(spec, sound, **calls):
    """A row with a single operand x. `calls` maps names to a tensor or to (a tensor, a code)."""
    pairs = {name: call if isinstance(call, tuple) else (call, "") for name, call in calls.items()}
    return Row({"x": spec}, {"x": sound}, {name: ({"x": tensor}, code) for name, (tensor, code) in pairs.items()})


def strided(role="in", **more):
    return TensorSpec((N, M), "f32", role, "strided", 4, **more)


DENSE, TURNED = view((4, 8), (8, 1)), view((4, 8), (1, 4))
PAIR = {"x": strided(), "out": strided("out", replaces="x")}
LISTED = TensorSpec((N,), "f32")


def pair(x, out):
    return {"x": x, "out": out}


TABLE = {
    **{
        f"rank 0 {layout} {role}": one(
            TensorSpec((), "f32", role, layout, alignment=4),
            view((), ()),
            offset=view((), (), aligned=4),
            misaligned=(view((), (), aligned=2), "OPF-A025"),
            rank=(view((1,), (1,)), "OPF-A011"),
            dtype=(view((), (), "f16"), "OPF-A010"),
        )
        for layout in ("rows", "contiguous", "strided")
        for role in ("in", "out", "inout")
    },
    "rows": one(
        TensorSpec((N, M), "f32"),
        DENSE,
        wide=view((4, 8), (32, 1)),
        expanded=view((4, 8), (0, 1)),
        turned=(TURNED, "OPF-A021"),
        all_expanded=(view((4, 8), (0, 0)), "OPF-A021"),
        misaligned=(view((4, 8), (8, 1), aligned=4), "OPF-A025"),
        short=(view((3, 8), (8, 1)), "OPF-A011"),
    ),
    "rows written": one(
        TensorSpec((N, M), "f32", "out"),
        DENSE,
        wide=view((4, 8), (32, 1)),
        expanded=(view((4, 8), (0, 1)), "OPF-A022"),
        overlapping=(view((4, 8), (4, 1)), "OPF-A023"),
    ),
    "contiguous": one(
        TensorSpec((N, M), "f32", layout="contiguous", alignment=4),
        DENSE,
        offset=view((4, 8), (8, 1), aligned=4),
        wide=(view((4, 8), (32, 1)), "OPF-A020"),
        expanded=(view((4, 8), (0, 1)), "OPF-A020"),
        turned=(TURNED, "OPF-A020"),
    ),
    "strided": one(
        strided(),
        DENSE,
        turned=TURNED,
        stepped=view((4, 8), (64, 3)),
        expanded=view((4, 8), (0, 1)),
        expanded_last=view((4, 8), (1, 0)),
        all_expanded=view((4, 8), (0, 0)),
        overlapping=view((4, 8), (1, 1)),
        offset=view((4, 8), (1, 4), aligned=4),
    ),
    **{
        f"strided {role}": one(
            strided(role),
            DENSE,
            turned=TURNED,
            stepped=view((4, 8), (64, 3)),
            expanded=(view((4, 8), (0, 1)), "OPF-A022"),
            expanded_last=(view((4, 8), (1, 0)), "OPF-A022"),
            overlapping=(view((4, 8), (1, 1)), "OPF-A023"),
        )
        for role in ("out", "inout")
    },
    "one axis broadcasts": one(
        strided(broadcast=(0,)),
        DENSE,
        expanded=view((4, 8), (0, 1)),
        turned=TURNED,
        expanded_last=(view((4, 8), (1, 0)), "OPF-A026"),
        all_expanded=(view((4, 8), (0, 0)), "OPF-A026"),
    ),
    "no axis broadcasts": one(
        TensorSpec((N, M), "f32", broadcast=()), DENSE, wide=view((4, 8), (32, 1)), expanded=(view((4, 8), (0, 1)), "OPF-A026")
    ),
    "an axis of one entry has no stride": one(
        TensorSpec((Dim("one", 1), M), "f32", broadcast=(), step=16, multiple=(0, 1)),
        view((1, 8), (8, 1)),
        zero=view((1, 8), (0, 1)),
        odd=view((1, 8), (3, 1)),
    ),
    "whole steps": one(
        TensorSpec((N, M), "f32", step=16),
        DENSE,
        wide=view((4, 8), (32, 1)),
        odd=(view((4, 8), (9, 1)), "OPF-A027"),
    ),
    "whole steps of any axis": one(
        strided(step=16), view((4, 8), (4, 16)), odd=(TURNED, "OPF-A027"), last=(DENSE, "OPF-A027"), zero=view((4, 8), (0, 4))
    ),
    "pages are whole heads apart": one(
        TensorSpec((N, Dim("heads", 2), M), "f32", multiple=(0, 1)),
        view((4, 2, 8), (16, 8, 1)),
        wide=view((4, 2, 8), (64, 32, 1)),
        turned=(view((4, 2, 8), (8, 32, 1)), "OPF-A028"),
        odd=(view((4, 2, 8), (40, 16, 1)), "OPF-A028"),
        expanded=view((4, 2, 8), (16, 0, 1)),
    ),
    "alignment of 64": one(
        TensorSpec((N, M), "f32", alignment=64), DENSE, sixteen=(view((4, 8), (8, 1), aligned=16), "OPF-A025")
    ),
    "index": one(
        index_spec(N, values=(0, 9)),
        view((4,), (1,), "i32"),
        offset=view((4,), (1,), "i32", aligned=4),
        stepped=(view((4,), (2,), "i32"), "OPF-A020"),
        wide=(memory("i32").to(torch.int64)[:4], "OPF-A010"),
    ),
    "num_valid": one(
        num_valid_spec(4),
        view((1,), (1,), "i32"),
        scalar=(view((), (), "i32"), "OPF-A011"),
        two=(view((2,), (1,), "i32"), "OPF-A011"),
    ),
    "out of place": Row(
        PAIR,
        pair(DENSE, view((4, 8), (8, 1))),
        {
            "strided": (pair(TURNED, view((4, 8), (64, 3))), ""),
            "expanded": (pair(view((4, 8), (0, 0)), view((4, 8), (8, 1))), ""),
            "the same": (pair(DENSE, DENSE), "OPF-A040"),
            "absent": (pair(DENSE, None), "OPF-A002"),
        },
    ),
    "in place": Row(
        in_place(PAIR),
        {"x": DENSE},
        {
            "turned": ({"x": TURNED}, ""),
            "expanded": ({"x": view((4, 8), (0, 1))}, "OPF-A022"),
            "an output beside it": (pair(DENSE, view((4, 8), (8, 1))), "OPF-A001"),
            "itself as output": (pair(DENSE, DENSE), "OPF-A001"),
        },
    ),
    "a list": Row(
        {"many_0": LISTED, "many_1": LISTED},
        {"many_0": view((4,), (1,)), "many_1": view((4,), (1,))},
        {
            "too long": ({"many": [DENSE] * 3}, "OPF-A008"),
            "in the place of one": ({"many_0": [DENSE], "many_1": DENSE[0]}, "OPF-A007"),
            "one missing": ({"many_0": view((4,), (1,))}, "OPF-A002"),
        },
    ),
    **{
        f"dtype {name}": one(
            TensorSpec((N, M), name, layout="strided", alignment=ITEMSIZE[name]),
            view((4, 8), (8, 1), name),
            turned=view((4, 8), (1, 4), name),
            offset=view((4, 8), (8, 1), name, aligned=ITEMSIZE[name]),
            another=(view((4, 8), (8, 1), "f16" if name != "f16" else "bf16"), "OPF-A010"),
        )
        for name in ITEMSIZE
    },
}

CALLS = [(row, name) for row in TABLE for name in TABLE[row].calls]


def codes(descriptor, args):
    given = {name: getattr(args, name) for name in TableArgs.__slots__}
    return [issue.code for issue in check(descriptor.operands(), given, "cpu", descriptor.args_type.parts)]


@pytest.mark.parametrize(("row", "name"), CALLS, ids=lambda text: text.replace(" ", "-"))
def test_the_full_check_gives_the_code_of_the_table(row, name):
    tensors, code = TABLE[row].calls[name]
    assert codes(TableDescriptor(row=row), TableArgs(**TABLE[row].sound)) == []
    assert codes(TableDescriptor(row=row), TableArgs(**tensors))[:1] == ([code] if code else [])


@pytest.mark.parametrize(("row", "name"), CALLS, ids=lambda text: text.replace(" ", "-"))
def test_the_fast_path_and_replay_agree_with_the_table(driver, stub, row, name):
    descriptor, (tensors, code) = TableDescriptor(row=row), TABLE[row].calls[name]
    sound, args = TableArgs(**TABLE[row].sound), TableArgs(**tensors)
    call = fast(stub, descriptor, sound)
    assert call(sound, None, False)
    assert call(args, None, False) is (code == "")
    replay = ReplayPath(driver, stub, descriptor, sound)
    assert replay.recorded(sound)
    if code:
        assert not replay.direct.paths.fast(args, None, True)
        assert not any(replay(args) for _ in range(3))
    else:
        assert replay.recorded(args)


def test_the_table_has_a_row_for_every_layout_and_every_code_of_strides():
    specs = [spec for row in TABLE.values() for spec in row.operands.values()]
    assert {spec.layout for spec in specs} == set(told._LAYOUTS)
    refusals = {code for row in TABLE.values() for _, code in row.calls.values()}
    assert refusals >= {f"OPF-A{number:03}" for number in (1, 2, 7, 8, 10, 11, 20, 21, 22, 23, 25, 26, 27, 28, 40)}
