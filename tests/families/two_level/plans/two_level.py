"""The family's op and its two forms of operands: 4-bit codes with two levels of scales, and one shard per device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.forms import Operand
from opfacade.core.model import Count, Size
from opfacade.core.operands import Contents, Dim, TensorSpec
from opfacade.core.tensor_lists import TensorList, elements, operand
from opfacade.errors import Issue
from opfacade.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

MAX_SHARDS = 3


@dataclass(frozen=True)
class SwizzledRows:
    """The row stride is a power of two of elements, a rule for which TensorSpec has no field."""

    elsewhere: ClassVar[bool] = False

    def issues(self, name: str, tensor: Tensor, first: Tensor) -> list[Issue]:
        stride = tensor.stride(0)
        if tensor.shape[0] <= 1 or (stride > 0 and not stride & (stride - 1)):
            return []
        return [Issue("TWO-L001", name, "rows a power of two of elements apart", f"stride {stride}", kind="LayoutError")]


@dataclass(frozen=True)
class OnPeer:
    """The tensor is on the device `hops` after the device of the call; a CPU counts as one device."""

    hops: int
    elsewhere: ClassVar[bool] = True

    def issues(self, name: str, tensor: Tensor, first: Tensor) -> list[Issue]:
        home = first.device
        expected = str(home) if home.index is None else f"{home.type}:{home.index + self.hops}"
        if str(tensor.device) == expected:
            return []
        return [Issue("TWO-L002", name, f"a tensor on {expected}", str(tensor.device), kind="DeviceMismatchError")]


class TwoLevel(NamedTuple):
    """Elements code * scale * outer: two codes per byte, a scale for each group of a row, and an outer one for each row."""

    rows: Dim
    width: int
    group: int

    def tensors(self, name: str) -> Mapping[str, TensorSpec]:
        groups = Dim("width / group", self.width // self.group)
        codes = TensorSpec((self.rows, Dim("width / 2", self.width // 2)), "u8", alignment=1)
        scale = TensorSpec((self.rows, groups), "f8_e4m3", alignment=1, rules=SwizzledRows())
        outer = TensorSpec((self.rows,), "f32", layout="contiguous", alignment=4, contents=Contents(least=0.0))
        return {name: codes, f"{name}_scale": scale, f"{name}_outer": outer}


class Shards(NamedTuple):
    """Tensors of one shape, each on the device after that of the previous tensor."""

    shape: tuple[Dim, ...]
    count: int

    def tensors(self, name: str) -> Mapping[str, TensorSpec]:
        specs = [TensorSpec(self.shape, "f32", alignment=4, rules=OnPeer(hops)) for hops in range(self.count)]
        return dict(zip(elements(name, MAX_SHARDS), specs, strict=False))


class Packed(NamedTuple):
    """The value for an operand in the form TwoLevel."""

    codes: Any
    scale: Any
    outer: Any


@dataclass(frozen=True)
class PackedParts:
    """A field whose value is a Packed."""

    names: tuple[str, ...]

    def doc(self, field: str) -> str:
        return f"set by a Packed in {field}"

    def take(self, value: object) -> Packed | None:
        return value if isinstance(value, Packed) else None

    def refusal(self, field: str, value: object) -> Issue | None:
        if not isinstance(value, tuple):
            return None
        got = f"a {type(value).__name__} of {len(value)}"
        return Issue("TWO-L003", field, "a Packed or its codes", got, kind="ArgumentTypeError")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreArgs(Args):
    """The tensors of one call."""

    weight: Any = operand("codes, or a Packed", PackedParts(("weight", "weight_scale", "weight_outer")))
    shards: Any = operand("a list of tensors on peers", TensorList(elements("shard", MAX_SHARDS)))
    out: Tensor | None = operand("written: f32 [rows, width]")


class RestoreDescriptor(Descriptor[RestoreArgs]):
    """out [rows, width] is the weight, a TwoLevel, plus all shards."""

    op: Literal["restore"] = "restore"
    category: ClassVar[str] = "two_level"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "restore-f64")
    sizes: ClassVar[frozenset[str]] = frozenset({"rows"})
    rows: Count
    width: Size
    group: Size = 8
    num_shards: Count = 2

    def operands(self) -> dict[str, Operand]:
        rows, shape = Dim("rows", self.rows), (Dim("rows", self.rows), Dim("width", self.width))
        out = TensorSpec(shape, "f32", "out", alignment=4)
        return {"weight": TwoLevel(rows, self.width, self.group), "shard": Shards(shape, self.num_shards), "out": out}


class RestorePlan(Plan[RestoreArgs]): ...


EXAMPLES = (RestoreDescriptor(rows=7, width=32), RestoreDescriptor(rows=64, width=128, group=16, num_shards=3))
