"""Faults in plan handles, in ops of torch, and in what serving adds to plans."""

from tests.mutation.mutant import cpu

HANDLES = "tests/core/test_plan_handles.py"
OPAQUE = "tests/core/test_opaque.py"

TORCH_OP_FAULTS = (
    cpu(
        "handles: the number of a plan that is gone is given again",
        "opfacade/core/plan_handles.py",
        "    handle = next(_numbers)\n",
        "    handle = next(n for n in range(2, 2**31) if n not in _plans)\n",
        HANDLES,
    ),
    cpu(
        "handles: the first plan is 0, of which torch.compile makes a graph of its own",
        "opfacade/core/plan_handles.py",
        "itertools.count(2)",
        "itertools.count(0)",
        HANDLES,
    ),
    cpu(
        "opaque: Dynamo traces into a run",
        "opfacade/core/opaque.py",
        "        function._torchdynamo_disable = True  # type: ignore[attr-defined]\n",
        "",
        OPAQUE,
    ),
    cpu(
        "opaque: Dynamo compiles the frames below a run",
        "opfacade/core/opaque.py",
        "        frames.set_code_exec_strategy(_codes.pop(), frames._FrameExecStrategy(skip, skip))",
        "        _codes.pop()",
        OPAQUE,
    ),
)
