"""Faults that tests without a GPU must see: in the reference, and in Python on the host."""

from tests.mutation.mutant import APPEND, MERGE, REST, TOY, R, cpu

CPU_FAULTS = (
    cpu(
        "reference: every token is on the first page",
        f"{R}/page_table.py",
        "pages.long()[at // cache.page_size]",
        "pages.long()[at * 0]",
    ),
    cpu(
        "reference: slots wrap one too early",
        f"{R}/page_table.py",
        "at % cache.page_size\n",
        "at % max(1, cache.page_size - 1)\n",
    ),
    cpu(
        "reference: heads are grouped by the wrong number",
        f"{R}/attention/softmax.py",
        ".reshape(stop - start, kv_heads, group, dim)\n        rows = scoring.varied.query(grouped.transpose(0, 1)",
        ".reshape(stop - start, group, kv_heads, dim)\n        rows = scoring.varied.query(grouped.permute(2, 0, 1, 3)",
    ),
    cpu(
        "reference: bits of a mask are read from the highest",
        f"{R}/attention/variation.py",
        "own[:, None] >> torch.arange(8,",
        "own[:, None] >> 7 - torch.arange(8,",
        kinds="ragged-fixed-mask",
    ),
    cpu(
        "reference: the parameters of keys are those of the next",
        f"{R}/attention/variation.py",
        "args.key_params[(slice(None), *at)],",
        "args.key_params[(slice(None), *at)].roll(1, -1),",
        kinds="ragged-off-documents-masked",
    ),
    cpu(
        "reference append: rows go to the start of a request",
        f"{R}/kv_cache.py",
        "length - (stop - first), length)",
        "0, stop - first)",
        REST,
        kinds=APPEND,
    ),
    cpu(
        "reference merge: all states weigh the same",
        f"{R}/cascade.py",
        "weight = (states_lse - top).exp()",
        "weight = torch.ones_like(states_lse)",
        REST,
        kinds=MERGE,
    ),
    cpu(
        "crosscheck: what an operand held before the run is lost",
        "opfacade/observe/crosscheck.py",
        "{name: getattr(before, name) for name in inout(plan.descriptor)}",
        "{name: outputs[name] for name in inout(plan.descriptor)}",
        TOY,
    ),
    cpu(
        "guarded run: the second run begins with what the first one left",
        "opfacade/testing/guarded.py",
        "            getattr(args, name).copy_(was)\n",
        "            was.copy_(was)\n",
        TOY,
    ),
    cpu(
        "batch invariance: rows of a batch are compared with the same places of the table",
        "opfacade/testing/determinism.py",
        "(bits(got)[where] != table[at]).any()",
        "(bits(got)[where] != table[where % len(table)]).any()",
        TOY,
    ),
)
