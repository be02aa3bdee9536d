"""Planted faults in kernels and bindings that tests without a GPU must catch, because the code also runs on the host or in
the emulator.
"""

from tests.mutation.mutant import HOST, QUICK, SCHEDULE, TEAMS, K, cpu

CPU_KERNEL_FAULTS = (
    cpu(
        "device: what cuts a fixed split sees the batch",
        f"{K}/decode/schedule/cut.cuh",
        "int fixed_splits(int kv_len, int first_key, int chunk) {",
        "int fixed_splits(int kv_len, int first_key, int chunk, int batch = 0) {",
        SCHEDULE,
    ),
    cpu(
        "merge: three states are added in another order than by 32 lanes",
        "kernels/cascade/merge_states.cuh",
        "  if (kStates == 3) total += state_weight(lse[kStates - 1], base);\n"
        "  return {base, total + state_weight(lse[1], base)};",
        "  total += state_weight(lse[1], base);\n"
        "  return {base, kStates == 3 ? total + state_weight(lse[kStates - 1], base) : total};",
        "tests/families/cascade/test_merge_shapes.py",
    ),
    cpu(
        "replay: a guard is held after the host library has its address",
        "opfacade/backends/cuda/host/direct.py",
        "            self._replay_guards[id(guard)] = guard  #",
        "            self.paths.replay(id(guard))\n            self._replay_guards[id(guard)] = guard  #",
        QUICK,
    ),
    cpu(
        "bundle: the host library stays at home",
        "opfacade/jit/cache/bundle.py",
        'found.meta.get("arch") in (arch, HOST_ARCH)',
        'found.meta.get("arch") == arch',
        HOST,
    ),
    cpu(
        "decode: teams are merged from one's own on",
        f"{K}/decode/schedule/shared_unit.cuh",
        "all.lse[i] = stored.lse(i), all.o[i] = stored.o(i, column);",
        "all.lse[i] = stored.lse((rows.partials.index + i) % C::kClustersPerUnit), "
        "all.o[i] = stored.o((rows.partials.index + i) % C::kClustersPerUnit, column);",
        TEAMS,
    ),
    cpu(
        "decode: a team's share is that of a team alone",
        f"{K}/decode/schedule/schedule.cuh",
        "tiles_per_cta(count_of<C>(p_, kv_len), kCtasPerItem<C>)",
        "tiles_per_cta(count_of<C>(p_, kv_len), C::kClusterSize)",
        TEAMS,
    ),
    cpu(
        "decode: every team begins at the first key",
        f"{K}/decode/schedule/schedule.cuh",
        "blockIdx.x % kCtasPerItem<C>) * share",
        "blockIdx.x % C::kClusterSize) * share",
        TEAMS,
    ),
)
