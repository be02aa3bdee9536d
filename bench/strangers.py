"""Random problems that no developer chose: EXAMPLES with random fields, mostly odd sizes, and random programs of maps and
folds.

The fields come from the models, so new fields of any op are also drawn. Invalid combinations are drawn again.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from bench import stranger_programs, stranger_recipes
from opfacade.core.model import Model
from opfacade.errors import DescriptorError
from opfacade.select.registry import examples

Descriptor = Any
DrawnT = TypeVar("DrawnT")
ENGINES: dict[str, tuple[str, ...]] = {
    "map": ("map",),
    "recipes": ("map", "fold"),
    "fold": ("fold",),
    "norm": ("norm",),
    "softmax": ("softmax",),
    "rotary": ("rotary", "qkv_prepare"),
    "quantize": ("quantize", "dequantize", "gated_activation"),
    "sampling": ("sample", "topk", "probabilities", "adjust_logits", "verify_drafts"),
    "attention": (
        "paged_prefill", "paged_decode", "ragged_prefill", "merge_states", "paged_kv_append", "mla_decode", "pack_mask",
    ),
    "matmul": ("matmul", "grouped_matmul"),
    "weights": ("pack_weights", "unpack_weights"),
    "moe": ("route", "moe_sort", "moe_gather", "moe_combine", "fused_moe"),
}  # fmt: skip
_TRIES = 200  # attempts until a combination is valid
_SIZES = (1, 2, 3, 5, 7, 8, 12, 16, 30, 32, 40, 47, 59, 60, 64, 80, 94, 96, 100, 112, 127, 128, 129, 160, 192, 256)
_WIDE = (320, 333, 500, 512, 1000, 1023, 1024, 2048, 2560, 4097, 5120, 7168, 10240, 14336, 18432, 20000, 32001, 50257, 151936)
_REALS = (0.0, 1e-12, 1e-6, 1e-5, 0.1, 0.5, 0.7, 1.0, 1.3, 2.0, 30.0, 50.0)


def draw(engine: str, seed: int) -> Descriptor:
    """A valid problem, which is determined by engine and seed."""
    if engine == "recipes":
        return recipe(seed).descriptor
    rng = random.Random(f"{engine} {seed}")
    op = rng.choice(ENGINES[engine])
    if op in ("map", "fold") and rng.random() < 0.75:
        return _until_taken(lambda: stranger_programs.draw(op, rng))
    plain = [example for example in examples() if example.op == op]
    return _until_taken(lambda: changed(rng.choice(plain), rng))


def recipe(seed: int) -> stranger_recipes.Call:
    """The call behind `draw("recipes", seed)`."""
    rng = random.Random(f"recipes {seed}")
    return _until_taken(lambda: stranger_recipes.draw(rng))


def _until_taken(make: Callable[[], DrawnT]) -> DrawnT:
    for _ in range(_TRIES):
        try:
            return make()
        except (DescriptorError, ValueError):
            continue
    raise RuntimeError(f"{_TRIES} problems in a row were contradictions")


def changed(example: Model, rng: random.Random) -> Any:
    """The example with one to six random fields."""
    model = type(example)
    names = [name for name in model.model_fields if name not in ("op", "schema_version", "lets", "inputs", "outputs", "stages")]
    fields = {name: getattr(example, name) for name in model.model_fields}
    for name in rng.sample(names, min(len(names), rng.randint(1, 6))):
        fields[name] = _value(model.model_fields[name].annotation, fields[name], rng)
    return model(**_agreed(fields, rng))


def _agreed(fields: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Fields that must add up to a sum: parts of rotated pairs."""
    if "rotary_dim" in fields and rng.random() < 0.7:
        cache = fields.get("paged_kv")
        room = cache.head_dim if cache is not None else fields["head_dim"]
        fields["rotary_offset"] = 0
        fields["rotary_dim"] = room if rng.random() < 0.3 else 2 * rng.randint(1, max(1, room // 2))
        fields["sections"], fields["section_order"] = _sections(fields["rotary_dim"] // 2, rng)
    return fields


def _sections(pairs: int, rng: random.Random) -> tuple[tuple[int, ...] | None, str]:
    groups = rng.choice((0, 0, 2, 3, 4))
    if groups == 0 or pairs < groups:
        return None, "blocks"
    cuts = sorted(rng.sample(range(1, pairs), groups - 1))
    return tuple(b - a for a, b in zip((0, *cuts), (*cuts, pairs), strict=True)), rng.choice(("blocks", "interleaved"))


def _value(annotation: Any, now: Any, rng: random.Random) -> Any:
    """A random value for a field; fields of unknown types keep their value."""
    kinds = list(_plain(annotation))
    kind = rng.choice(kinds) if kinds else None
    if kind is type(None) and len(kinds) > 1 and rng.random() < 0.5:
        return None
    if typing.get_origin(kind) is Literal:
        return rng.choice(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Model):
        return changed(now, rng) if isinstance(now, Model) else _made(kind, rng, now)
    if isinstance(now, tuple) and all(type(one) is int for one in now) and now:
        return shape(rng, rng.randint(1, 4))
    return {bool: _flag, int: _size, float: _real}.get(typing.cast(Any, kind), lambda _: now)(rng)


def _made(kind: type[Model], rng: random.Random, now: Any) -> Any:
    """An optional part that the example does not have, with its default values."""
    try:
        return changed(kind(), rng)
    except DescriptorError:
        return now


def _plain(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without pydantic's metadata."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _plain(typing.get_args(annotation)[0])
    elif origin is typing.Union or type(annotation).__name__ == "UnionType":
        for part in typing.get_args(annotation):
            yield from _plain(part)
    else:
        yield annotation


def shape(rng: random.Random, rank: int) -> tuple[int, ...]:
    """Random extents, including 0, 1, odd and large ones, with at most 10^8 elements."""
    found: list[int] = []
    for _ in range(rank):
        found.append(rng.choice((0, 1, 1, *_SIZES, *_WIDE)) if rng.random() < 0.7 else rng.randint(1, 5000))
    rng.shuffle(found)
    while _count(found) > 10**8:
        found[found.index(max(found))] = rng.choice(_SIZES)
    return tuple(found)


def _count(extents: list[int]) -> int:
    total = 1
    for extent in extents:
        total *= max(1, extent)
    return total


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def _size(rng: random.Random) -> int:
    return rng.choice(_SIZES) if rng.random() < 0.6 else rng.choice(_WIDE) if rng.random() < 0.7 else rng.randint(1, 20000)


def _real(rng: random.Random) -> float:
    return rng.choice(_REALS)
