"""Random corruptions of index tensors on a GPU: each is reported, neighbours are unchanged, and no access is out of bounds.

compute-sanitizer --error-exitcode 99 python -m tests.support.gpu_corruptions --count 5000
"""

import argparse
import os
import sys
import time
from dataclasses import replace

import torch

from opfacade import Plan, Preference
from opfacade.errors import IndexDataError
from opfacade.testing.families.attention import oracle
from opfacade.validation import host
from opfacade.validation.rules import ALL_PAGES, tables_of
from tests.support.index_corruption import PROBLEMS, case, same_bits, touched

OUTPUTS = ("o", "lse")


def reported(plan):
    """Requests that the device reported as wrong, after all earlier work has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    try:
        plan.check()
    except IndexDataError as error:
        return {int(issue.got.partition("for request ")[2].partition(" ")[0]) for issue in error.issues}
    return set()


def run(plan, args):
    """Outputs (or pools) of one run, on memory that is NaN (or a copy) before."""
    if plan.descriptor.op == "paged_kv_append":
        args = replace(args, k_data=args.k_data.clone(), v_data=args.v_data.clone())
    for name in OUTPUTS:
        if getattr(args, name, None) is not None:
            getattr(args, name).fill_(float("nan"))
    plan.run(args)
    return args


def rows_of(corrupted, request):
    if not hasattr(corrupted.sound, "q_indptr"):
        return slice(request, request + 1)
    return slice(*corrupted.sound.q_indptr[request : request + 2].tolist())


def check_rows(corrupted, right, got, neighbours):
    for request in neighbours:
        rows = rows_of(corrupted, request)
        for name, wanted in right.items():
            assert same_bits(wanted[rows], getattr(got, name)[rows]), f"{name} of request {request}"


def pages_of(descriptor, args, requests):
    """Pages that these requests name and that are in bounds."""
    pages = set()
    for request in requests:
        if args.block_table is not None:
            pages |= set(args.block_table[request].tolist())
        else:
            low, high = args.kv_indptr[request : request + 2].tolist()
            pages |= set(args.kv_indices[max(low, 0) : max(high, 0)].tolist())
    return pages & set(range(descriptor.paged_kv.num_total_pages))


def check_pools(corrupted, got, neighbours):
    """New rows of neighbours are stored; pages that no request names are unchanged."""
    descriptor, sound = corrupted.descriptor, corrupted.sound
    everyone = range(descriptor.batch_size)
    foreign = pages_of(descriptor, corrupted.args, set(everyone) - neighbours)
    for request in neighbours:
        page, slot = oracle.token_places(descriptor, sound, request)
        if set(page.tolist()) & foreign:
            continue
        first, stop = sound.append_indptr[request : request + 2].tolist()
        for pool, new in ((got.k_data, sound.k_new), (got.v_data, sound.v_new)):
            at = page[len(page) - (stop - first) :], slot[len(slot) - (stop - first) :]
            assert same_bits(oracle.by_token(pool, descriptor)[at], new[first:stop]), f"new rows of request {request}"
    named = pages_of(descriptor, corrupted.args, everyone) | pages_of(descriptor, sound, everyone)
    rest = sorted(set(range(descriptor.paged_kv.num_total_pages)) - named)
    assert same_bits(got.k_data[rest], sound.k_data[rest])
    assert same_bits(got.v_data[rest], sound.v_data[rest])


class Checker:
    def __init__(self, plans, device):
        self.plans, self.device = plans, device
        self.right = {}
        self.wrong = self.silent = 0

    def outputs(self, plan, args):
        """The result of a sound call, once."""
        key = id(args)
        if key not in self.right:
            made = run(plan, args)
            assert reported(plan) == set()
            self.right[key] = {n: getattr(made, n).clone() for n in OUTPUTS if getattr(made, n, None) is not None}
        return self.right[key]

    def one(self, seed):
        corrupted = case(seed, self.device)
        plan, tables = self.plans[seed % len(PROBLEMS)], tables_of(corrupted.descriptor)
        right = self.outputs(plan, corrupted.sound)
        wanted = host.findings(tables, corrupted.args)
        got = run(plan, corrupted.args)
        found = reported(plan)
        self.wrong += bool(wanted)
        self.silent += not {f.request for f in wanted} <= found
        assert bool(found) == bool(wanted), f"reported {found}, wrong {wanted}"
        late = {f.request for f in wanted if f.rule == ALL_PAGES}
        neighbours = set(range(tables.requests)) - touched(corrupted) - late
        if tables.appends:
            check_pools(corrupted, got, neighbours)
        else:
            check_rows(corrupted, right, got, neighbours)


def main(count, first=0):
    plans = [Plan.select(d, Preference(backend="cuda")) for d in PROBLEMS]
    checker, started = Checker(plans, "cuda"), time.monotonic()
    for seed in range(first, first + count):
        try:
            checker.one(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    seconds = time.monotonic() - started
    print(f"{count} corruptions, {checker.wrong} wrong, {checker.silent} not reported, {seconds:.0f} s")
    return checker.silent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    os.environ["OPFACADE_VALIDATE"] = "indices"
    sys.exit(main(given.count, given.first) > 0)
