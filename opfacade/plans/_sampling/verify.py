"""Verification of drafted tokens: which drafts a target model accepts, and the token that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import Contents, Dim, Role, TensorSpec, num_valid_spec, valid_count
from opfacade.plan import Plan
from opfacade.plans._sampling.family import SamplingOp
from opfacade.plans._sampling.links import LINKS, wrong_links

if TYPE_CHECKING:
    from torch import Tensor

MAX_DRAFTS = 128
COINS = 2**31  # bit of the stream word: random numbers for acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyDraftsArgs(Args):
    """The tensors of one verification. n: num_drafts."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "draft_tokens": "i32 [batch_size, n]; tokens outside the vocabulary are rejected; with target_tokens, a negative one",
        "draft_probs": 'f32 [batch_size, n, vocab], the distributions that the drafts were drawn from; with kind="chain"',
        "target_probs": 'f32 [batch_size, n + 1, vocab], after the same filters; with kind="chain" and "tree"',
        "target_tokens": 'i32 [batch_size, n + 1], the target\'s own tokens; with kind="greedy" and "coupled"',
        "first_child": 'i32 [batch_size, n + 1]: node 0 is the last token, node 1 + i draft i; -1 is none; with kind="tree"',
        "next_sibling": 'i32 [batch_size, n + 1], as first_child; OPFACADE_VALIDATE=full checks the tree; with kind="tree"',
        "seed": 'i64 [batch_size]; with kind="chain" and "tree"',
        "offset": 'i64 [batch_size], the position of the first drafted token; with kind="chain" and "tree"',
        "num_valid": "i32 [1] on the device: the number of valid requests; later ones are untouched; with num_valid",
        "tokens": "written: i32 [batch_size, n + 1], the accepted drafts and the following token; -1 after them",
        "accepted": "written: i32 [batch_size], number of accepted drafts",
        "emitted": "written: i32 [batch_size], number of tokens written",
        "nodes": 'written: i32 [batch_size, n + 1], the accepted nodes; -1 after them; with kind="tree"',
    })  # fmt: skip
    draft_tokens: Tensor
    draft_probs: Tensor | None = None
    target_probs: Tensor | None = None
    target_tokens: Tensor | None = None
    first_child: Tensor | None = None
    next_sibling: Tensor | None = None
    seed: Tensor | None = None
    offset: Tensor | None = None
    num_valid: Tensor | None = None
    tokens: Tensor
    accepted: Tensor
    emitted: Tensor
    nodes: Tensor | None = None


class VerifyDraftsDescriptor(SamplingOp[VerifyDraftsArgs]):
    """The accepted drafts of each request, and the token that follows them.

    chain: draft t at position i is accepted if u q(t) < p(t), where u is a random number in [0, 1) of 24 bits. A token drawn
    from max(p - q, 0) replaces the first rejected draft; after the last accepted draft, a token is drawn from p.
    tree: the children of an accepted node are tried in their order. A child is accepted if u < (mass of the children so far) /
    threshold_acc or p >= threshold_single, with one u per depth. If all are rejected, a token is drawn from p without them. A
    token that occurs twice among siblings counts once.
    greedy, coupled: a draft is accepted if it equals the target's token of its position; then the target's next token follows.
    For coupled, `sample` drew the target's tokens with the noise of their positions, so the output is as without drafts.
    Random numbers are words of (seed; position, stream): u uses stream + 2^31, and drawn tokens use stream.
    """

    op: Literal["verify_drafts"] = Field(default="verify_drafts", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "race-f32")
    sizes: ClassVar[frozenset[str]] = frozenset(
        {"batch_size", "num_drafts", "vocab", "threshold_single", "threshold_acc", "stream", "draft_stream"}
    )
    kind: Literal["chain", "tree", "greedy", "coupled"] = Field(description="The rule of acceptance.")
    batch_size: Count = Field(description="Requests.")
    num_drafts: int = Field(ge=1, le=MAX_DRAFTS, description="Number of drafted tokens per request, 1 to 128.")
    vocab: Size = Field(description="Number of tokens of the vocabulary.")
    threshold_single: float = Field(
        default=1.0, gt=0.0, le=1.0, description="A child with at least this probability is always accepted."
    )
    threshold_acc: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Number that divides the mass before it is compared with the random number."
    )
    stream: int = Field(default=0, ge=0, lt=COINS, description="Random stream for drawing tokens.")
    draft_stream: int = Field(default=1, ge=0, lt=COINS, description="Random stream that was used to draw the drafts.")
    num_valid: bool = Field(default=False, description="Whether an operand on the device has the number of valid requests.")

    @model_validator(mode="after")
    def _coherent(self) -> VerifyDraftsDescriptor:
        if self.kind == "chain" and self.stream == self.draft_stream:
            hint = "Draw drafts with a stream of their own, or verify with kind='coupled'."
            raise contradiction("draft_stream", f"a stream other than the target's {self.stream}", self.draft_stream, hint)
        for name in ("threshold_single", "threshold_acc"):
            if self.kind != "tree" and getattr(self, name) != 1.0:
                raise contradiction(name, "1 unless kind is tree", getattr(self, name))
        return self

    @property
    def races(self) -> bool:
        return self.kind in ("chain", "tree")

    def wrong_values(self, name: str, args: VerifyDraftsArgs) -> tuple[Tensor, str] | None:
        """Checks that the links of valid requests form a tree."""
        if name not in LINKS:
            return super().wrong_values(name, args)
        requests = self.batch_size if args.num_valid is None else valid_count(args.num_valid, self.batch_size)
        wrong = wrong_links({link: getattr(args, link) for link in LINKS}, requests)
        return wrong[name], f"-1, or a draft in [1, {self.num_drafts}] that no other link leads to"

    def operands(self) -> dict[str, TensorSpec]:
        drafts, tokens = Dim("num_drafts", self.num_drafts), Dim("num_drafts+1", self.num_drafts + 1)
        found = {"draft_tokens": self._spec("i32", drafts)}
        if self.kind == "chain":
            found["draft_probs"] = self._spec("f32", drafts, Dim("vocab", self.vocab))
        if self.races:
            found["target_probs"] = self._spec("f32", tokens, Dim("vocab", self.vocab))
        else:
            found["target_tokens"] = self._spec("i32", tokens)
        if self.kind == "tree":
            found |= {"first_child": self._spec("i32", tokens), "next_sibling": self._spec("i32", tokens)}
        if self.races:
            found |= {"seed": self._spec("i64"), "offset": self._spec("i64")}
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.batch_size)
        found |= {"tokens": self._spec("i32", tokens, role="out")}
        found |= {name: self._spec("i32", role="out") for name in ("accepted", "emitted")}
        return found | ({"nodes": self._spec("i32", tokens, role="out")} if self.kind == "tree" else {})

    def _spec(self, dtype: str, *dims: Dim, role: Role = "in") -> TensorSpec:
        shape = (Dim("batch_size", self.batch_size), *dims)
        size = 8 if dtype == "i64" else 4
        valid = "num_valid" if self.num_valid else ""
        spec = TensorSpec(shape, dtype, role, "rows" if len(shape) == 3 else "contiguous", size, valid_rows=valid)
        return spec._replace(contents=Contents(least=0.0))  # type of probabilities; other operands are integers


class VerifyDraftsPlan(Plan[VerifyDraftsArgs]):
    """Acceptance of drafted tokens."""
