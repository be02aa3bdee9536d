"""Harness: the functions of an operator that all tools use.

`opfacade/testing/families/<family>.py` ends in HARNESSES, with a harness for each op of the family. The defaults suit a dense
operator, whose operands have fixed shapes and are used completely. Such an op only needs to define its expected outputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from opfacade.core.descriptor import ArgsT, Descriptor, inout, operands_of
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.operands import nbytes, split_rows, valid_count
from opfacade.core.sku import KernelSku
from opfacade.errors import ArgumentError
from opfacade.select import registry
from opfacade.select.registry import examples
from opfacade.testing.batches import Batches, Campaign, DenseBatches, changed
from opfacade.testing.bits import same_bits
from opfacade.testing.bounds import Bounded, Report, compare, constants, join
from opfacade.testing.inputs import Draw, DrawnLengths
from opfacade.testing.peer import Peer

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args
    from opfacade.testing.subject import Subject


@dataclass(frozen=True, slots=True)
class Ran:
    """A call after its run. before: copies of the inout operands by name; empty if none were made."""

    descriptor: Any
    args: Any
    sku: KernelSku
    before: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of rows to compare, drawn by `seed`; None: all rows."""

    rows: int | None = None
    seed: int = 0


class HasLengths(Protocol):
    """Rows of q (or new rows) and of K of each request; None if the op has none."""

    @property
    def q(self) -> Sequence[int] | None: ...

    @property
    def kv(self) -> Sequence[int] | None: ...


@dataclass(frozen=True, slots=True)
class Amount:
    """Minimal bytes to move, and products and sums to compute, for any kernel."""

    bytes: float
    flops: float


class Harness:
    """The harness of one op."""

    # -- random problems --------------------------------------------------------------------------------------------

    # Whether `special` returns any fields.
    has_special = False

    def draw(self, op: str, rng: random.Random, tokens: int) -> Any:
        """A problem that every backend accepts: one of the EXAMPLES with another size. tokens: its approximate maximum size."""
        example = rng.choice([example for example in examples() if example.op == op])
        return changed(example, **{name: rng.randint(0, min(300, tokens)) for name in sorted(example.sizes)})

    def small(self, op: str, rng: random.Random) -> Any:
        """A tiny problem, which a kernel may decline."""
        return self.draw(op, rng, 9)

    def special(self, rng: random.Random, plain: object) -> dict[str, Any]:
        """Fields that turn a plain problem into one that a kernel may decline."""
        return {}

    def problem(self, op: str, seed: int, tokens: int) -> Descriptor[Any]:
        drawn: Descriptor[Any] = self.draw(op, random.Random(f"{op} {seed}"), tokens)
        return drawn

    def special_problem(self, op: str, seed: int, tokens: int) -> Descriptor[Any]:
        rng, plain = random.Random(f"special {op} {seed}"), self.problem(op, seed, tokens)
        return changed(plain, **self.special(rng, plain))

    def cases(self, op: str) -> dict[str, Any]:
        """A small problem for every kind of SKU, by a name that is unique among all ops; by default the EXAMPLES."""
        found = [example for example in examples() if example.op == op]
        return {f"{op}-{number}": example for number, example in enumerate(found)}

    def short_lengths(self, descriptor: Descriptor[Any]) -> DrawnLengths | None:
        """Shorter lengths for slow tools that fit the problem; None if there are none."""
        return None

    def inputs(self, draw: Draw) -> None:
        """Set operands in `draw.values` that specs do not determine: operands whose shape the caller chooses, and values with a
        special distribution."""

    # -- results ----------------------------------------------------------------------------------------------------

    def unowned(self, descriptor: Any, args: Any, name: str) -> Tensor | None:
        """A mask of the elements of an output that a call leaves unchanged, in addition to invalid rows; None: no element."""
        return None

    def judge(self, ran: Ran, sample: Sample) -> Report:
        """The largest error of all outputs relative to the bound; invalid rows must be unchanged."""
        missing = [name for name in inout(ran.descriptor) if name not in ran.before]
        if missing:
            op, hint = ran.descriptor.op, "Pass what `numerics.snapshot` gave before the run."
            message = f"{op}.check: {missing[0]} expected its values from before the run, got none. {hint} [OPF-G002]"
            raise ArgumentError(message, code="OPF-G002", op=op, stage="check", hint=hint)
        given = valid_part(ran.descriptor, replace(ran.args, **ran.before))
        after = valid_part(ran.descriptor, ran.args)
        got = {name: getattr(after, name) for name, spec in operands_of(ran.descriptor).items() if spec.written}
        return join(compare(self.expected(ran.descriptor, given, constants(ran.sku)), got), kept(ran))

    def expected(self, descriptor: Any, args: Any, c: dict[str, float]) -> list[Bounded]:
        """Expected outputs in fp64, with their bounds. args: the call before the run, with operands cut to their valid rows. c:
        constants of the SKU."""
        raise NotImplementedError(f"{descriptor.op}: its harness does not define the expected result")

    def check(self, ran: Ran, rows: int | None = None, seed: int = 0) -> Report:
        """`judge` on a sample of `rows` rows, drawn by `seed`; None: all rows."""
        return self.judge(ran, Sample(rows, seed))

    def check_call(self, call: tuple[Any, Any, KernelSku, Mapping[str, Tensor]], rows: int | None = None) -> Report:
        """`check` for callers without a `Ran`: takes descriptor, args, SKU and the previous contents of operands."""
        return self.check(Ran(*call), rows)

    # The exact checks of `verify`: (subject, seed) -> descriptions of errors.
    checks: tuple[Callable[[Any, int], list[str]], ...] = ()

    def exhaustive(self, make: Callable[[Any], Any], heavy: bool) -> Iterator[Any]:
        """Checks over every input of a small domain, each a named tuple with `wrong`. make: creates the subject of a
        descriptor. heavy: also runs checks that take minutes on a GPU."""
        return iter(())

    # -- the unit of a batch ----------------------------------------------------------------------------------------

    # The dimension whose entries are independent; "" for an op without one.
    unit = ""

    def in_any_batch(self, descriptor: Any) -> Any:
        """The same problem with fields for which one SKU serves every batch."""
        return descriptor

    def batches(self, subject: Subject, campaign: Campaign, rng: random.Random) -> Batches:
        """The requests from which batches of `subject`'s problem are built."""
        if not self.unit:
            raise NotImplementedError(f"{subject.descriptor.op}: its harness does not define the unit of a batch")
        return DenseBatches.drawn(subject, self.unit, campaign.needles, rng)

    # -- lengths of requests ----------------------------------------------------------------------------------------

    def lengths(self, descriptor: Descriptor[Any]) -> DrawnLengths:
        """Lengths of a full batch; empty for an op without requests."""
        return DrawnLengths()

    def lengths_of_call(self, descriptor: Descriptor[Any], args: Args) -> DrawnLengths | None:
        """Lengths of the requests of one call, read on the host; None for an op without requests."""
        return None

    # -- peers ------------------------------------------------------------------------------------------------------

    peers: tuple[Peer, ...] = ()

    def peer_outputs(self, descriptor: Descriptor[Any]) -> tuple[str, ...]:
        """The outputs that a peer writes with the same meaning as ours."""
        return tuple(name for name, spec in operands_of(descriptor).items() if spec.written)

    def peer_guarantee(self, descriptor: Descriptor[Any]) -> PrecisionGuarantee | None:
        """The guarantee that a peer is tested against if none of our kernels accepts the problem; None: that of the
        reference."""
        return None

    # -- size -------------------------------------------------------------------------------------------------------

    def amount(self, descriptor: Any, lengths: HasLengths) -> Amount:
        """The minimal cost of the problem: every operand is read or written once, and inout operands both."""
        specs = operands_of(descriptor).values()
        fixed = [spec for spec in specs if all(dim.size is not None for dim in spec.shape)]
        return Amount(float(nbytes(fixed) + nbytes([spec for spec in fixed if spec.role == "inout"])), 0.0)

    def label(self, descriptor: Any, lengths: HasLengths) -> str:
        """A short description of the problem with its sizes; fields at their default are omitted."""
        known = type(descriptor).model_fields
        fields = [(name, value) for name, value in descriptor if value != known[name].default and name != "op"]
        sizes = [f"{name}={value}" for name, value in fields if type(value) is int]
        return " ".join([descriptor.op, *sizes, *(value for _, value in fields if isinstance(value, str))])


def valid_rows(descriptor: Descriptor[Any], args: Args, name: str) -> int | None:
    """The number of rows of an operand that a call may access, read on the host; None: all."""
    spec = operands_of(descriptor)[name]
    return valid_count(getattr(args, spec.valid_rows), getattr(args, name).shape[spec.valid_axis]) if spec.valid_rows else None


def by_validity(descriptor: Descriptor[Any], args: Args, name: str, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Views of the rows of `tensor`, which has the shape of an operand, that a call may access, and of the other rows; None:
    there is no count."""
    count = valid_rows(descriptor, args, name)
    return (tensor, None) if count is None else split_rows(operands_of(descriptor)[name], tensor, count)


def valid_part(descriptor: Descriptor[Any], args: ArgsT) -> Any:
    """The call with all operands cut to their valid rows."""
    counted = [name for name, spec in operands_of(descriptor).items() if spec.valid_rows]
    return replace(cast("Any", args), **{name: by_validity(descriptor, args, name, getattr(args, name))[0] for name in counted})


def kept(ran: Ran) -> Report:
    """Checks that invalid rows of inout operands are unchanged."""
    for name, was in ran.before.items():
        _, old = by_validity(ran.descriptor, ran.args, name, was)
        _, now = by_validity(ran.descriptor, ran.args, name, getattr(ran.args, name))
        if old is not None and now is not None and not same_bits(now, old):
            count = valid_rows(ran.descriptor, ran.args, name)
            return Report(math.inf, math.inf, f"{name} past its {count} valid rows was written", old.numel())
    return Report(0.0, 0.0, "", 0)


def harness_of(descriptor: Descriptor[Any]) -> Harness:
    return harness_for(descriptor.op)


def harness_for(op: str) -> Harness:
    found: Harness = registry.harness_for(op)
    return found
