"""Lengths beyond what grids and workspaces are made for, and the bounds themselves: on the host, and in the emulator."""

from tests.mutation.mutant import SCHEDULE, K, L, cpu

SCHEDULES = "tests/families/attention/test_bounds.py"
BEYOND = "tests/emulator/test_bounds.py"
VALIDATION = "tests/validation/test_validation.py tests/validation/test_rules.py"

BOUND_FAULTS = (
    cpu(
        "decode: chunks without a slot are left out",
        f"{K}/decode/schedule/chunks.cuh",
        "    if (total > split_slots) return false;\n",
        "",
        SCHEDULES,
    ),
    cpu(
        "decode: blocks that make whole runs share slots",
        f"{K}/decode/schedule/chunks.cuh",
        "item.unit_start = index() * own_slots_;",
        "item.unit_start = index();",
        SCHEDULES,
    ),
    cpu(
        "decode: a block that makes whole runs makes one",
        f"{K}/decode/schedule/chunks.cuh",
        "partial_ = 0, unit_ += p_.slots / own_slots_;",
        "return false;",
        SCHEDULES,
    ),
    cpu(
        "decode: a run with more chunks than slots is cut as any",
        f"{K}/decode/schedule/chunks.cuh",
        "while (fixed_splits(kv_len, first_key, chunk) > own_slots_) chunk = larger_chunk(chunk);",
        "while (false) chunk = larger_chunk(chunk);",
        SCHEDULES,
    ),
    cpu(
        "decode: more tiles than are counted in are forgotten",
        f"{K}/decode/schedule/schedule.cuh",
        "share_ = tiles <= kMaxPosition ? even_share(tiles, units, sums.max_count, p.resident) : 0;",
        "share_ = even_share(tiles, units, sums.max_count, p.resident);",
        SCHEDULES,
    ),
    cpu(
        "decode: a counter of parts may overflow",
        f"{K}/decode/schedule/chunks.cuh",
        "return split_slots - p_.batch < kMaxPartials || max_splits<C>(p_, p_.chunk) <= kMaxPartials;",
        "return true;",
        f"{BEYOND} -k counter",
    ),
    cpu(
        "latent decode: parts of whole runs are not merged",
        f"{L}/add.cuh",
        "if (work.owns_units && work.partials.count > 1",
        "if (work.owns_units && work.partials.count > 10000",
        f"{BEYOND} -k latent-six-32",
    ),
    cpu(
        "latent decode: the second launch merges runs that are merged",
        f"{L}/load.cuh",
        "    if (work.owns_units) of.count = 0;\n",
        "",
        f"{BEYOND} -k latent-six",
    ),
    cpu(
        "prefill: the last split of a long request ends early",
        f"{K}/prefill/schedule.cuh",
        "split == p.num_splits - 1 ? range.end : part.end",
        "part.end",
        f"{BEYOND} -k mma_tile",
    ),
    cpu(
        "prefill: the last split of a long request of wgmma_tile ends early",
        f"{K}/prefill_sm90/work.cuh",
        "const bool rest = split == p.num_splits - 1;",
        "const bool rest = false;",
        f"{BEYOND} -k beyond and prefill",
    ),
    cpu(
        "prefill: splits follow the pool where one request is bounded",
        "opfacade/backends/cuda/attention/prefill.py",
        "tokens = descriptor.request_token_bound",
        "tokens = descriptor.kv_token_bound",
        SCHEDULE,
    ),
    cpu(
        "decode: a bound on one request is taken for one on its chunks rounded down",
        "opfacade/backends/cuda/attention/facts.py",
        "max(1, -(-descriptor.max_kv_len // chunk))",
        "max(1, descriptor.max_kv_len // chunk)",
        SCHEDULE,
    ),
    cpu(
        "validation: a request may be longer than max_kv_len",
        "opfacade/validation/host.py",
        "self.length(request) > tables.max_len",
        "self.length(request) > tables.max_len + 1",
        VALIDATION,
    ),
    cpu(
        "validation: on the device a request may be longer than max_kv_len",
        "kernels/validation/index_rules.h",
        "if (length > t.max_len) return",
        "if (length > t.max_len + 1) return",
        VALIDATION,
    ),
)
