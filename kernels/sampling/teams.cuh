// Small-k sampling in teams: several rows share a cluster, and a row with a small k is drawn by a team of the cluster's CTAs. A
// team of one CTA also draws a row without cuts. The whole cluster holds the other rows, one after another.
#pragma once
#include "kernels/sampling/filter_shared.cuh"

namespace opfacade {

// The rows of this CTA's cluster. Values are recomputed at each use, since registers are scarce. All sizes are powers of two,
// because a division is slow.
struct RowsOfCluster {
  const SampleParams& p;

  static __device__ __forceinline__ int log2_of(int size) { return 31 - __clz(size); }
  __device__ __forceinline__ uint32_t cluster() const { return blockIdx.x >> log2_of(p.ctas); }
  __device__ __forceinline__ int rank() const { return static_cast<int>(blockIdx.x) & (p.ctas - 1); }

  // CTAs per row, and number of rows.
  __device__ __forceinline__ int team() const { return cluster() < p.whole ? p.team : p.last_team; }
  __device__ __forceinline__ uint32_t count() const { return static_cast<uint32_t>(p.ctas) >> log2_of(team()); }
  __device__ __forceinline__ uint32_t first() const {
    const uint32_t whole = min(cluster(), p.whole);
    return (whole * static_cast<uint32_t>(p.ctas) >> log2_of(p.team)) + (cluster() - whole) * count();
  }
  // The row of this CTA's team.
  __device__ __forceinline__ uint32_t own() const { return first() + (static_cast<uint32_t>(rank()) >> log2_of(team())); }
};

// Loads immediately: the compiler would move the load down to its use, which costs the latency of a second load.
template <class T>
__device__ __forceinline__ T loaded_here(const T* from) {
  return *static_cast<const volatile T*>(from);
}

// Draws a row without cuts, by one CTA. Not inlined: registers are scarce.
template <class C>
__device__ __noinline__ void race_alone(const SampleParams& p, uint32_t at) {
  HeldShared& shared = filter_shared().held;
  const Row<C> row(p, at, shared.flags, &bias_index(shared));
  Race<true> race(p, at, &shared.best);
  row.each_group(0, row.vocab(), [&](uint32_t token, float (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = row.heated(a[j]);
    race.group(token, a, kLog2E, [](float x, float noise) { return fmaf(x, kLog2E, noise); });
  });
  const uint64_t best = ClusterRow(shared.reduce, 1).reduce(race.found(), Larger());
  if (threadIdx.x == 0) write_token(p, at, best);
}

// Lists the first tokens of a row with a team of CTAs. find(row) lists those of this CTA, and sets k, the maximum number.
// finish(row, count), called in the team's first CTA, uses the merged list; it is not called for rows without k, or if a list
// overflowed. Returns a bit for each CTA of the cluster whose list overflowed.
template <class F, class G>
__device__ __forceinline__ uint32_t list_in_teams(const SampleParams& p, F find, G finish) {
  HeldShared& shared = filter_shared().held;
  ShortShared& lists = filter_shared().short_k;
  const RowsOfCluster rows{p};
  const ClusterRow cluster(shared.reduce, p.ctas);
  cluster.arrive();
  if (threadIdx.x == 0) lists.num_noted = lists.num_own = 0, lists.k = lists.is_held = 0;
  if (rows.own() < p.rows && is_valid_row(p, rows.own())) find(rows.own());
  __syncthreads();
  cluster.wait();  // all CTAs are running
  const int size = rows.team(), rank = rows.rank();
  const TeamLists team(lists, filter_shared().team_lists(), size, rank & -size);
  const uint32_t own = team.send(cluster, rank);
  cluster.publish();
  if (size == 1) {
    __syncthreads();
    if (lists.k > 0 && own != kCrowded) finish(rows.own(), static_cast<int>(own));  // while other lists arrive
  }
  cluster.wait();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t crowded = __ballot_sync(0xffffffffu, lane < p.ctas && lists.listed[lane] == kCrowded);
  const bool leads = size > 1 && (rank & (size - 1)) == 0 && (crowded >> rank & ((1u << size) - 1)) == 0;
  if (leads && lists.k > 0) finish(rows.own(), team.merge(lists.k));
  return crowded;
}

template <class C>
class Team {
 public:
  __device__ __forceinline__ explicit Team(const SampleParams& p)
      : p_(p), rows_{p}, shared_(filter_shared().held), lists_(filter_shared().short_k) {}

  // Draws the row. Returns a bit for each CTA of the cluster whose list overflowed.
  __device__ __forceinline__ uint32_t draw() {
    return list_in_teams(p_, [&](uint32_t at) { list(at); }, [&](uint32_t at, int count) { finish(at, count); });
  }

 private:
  // All independent loads are issued together: the row's parameters, and its first chunk, even before it is known whether its k
  // is small.
  __device__ __forceinline__ void list(uint32_t at) {
    const Row<C> row(p_, at, shared_.flags, &bias_index(shared_));
    Filters<C> filters(p_, row.row);
    if constexpr (C::kTopP) filters.share = loaded_here(p_.top_p + row.row);
    const int64_t seed = loaded_here(p_.seed + row.row), offset = loaded_here(p_.offset + row.row);
    const Biased biased = first_biased<C>(p_, row.row);
    const uint32_t slice = p_.slice * rows_.count();
    const uint32_t first = (rows_.rank() & (rows_.team() - 1)) * slice, end = min(row.vocab(), first + slice);
    Shortlist<C> list(row, lists_, first, end);
    flag_biases<C>(p_, row.row, shared_.flags, bias_index(shared_), biased);
    const int k = short_k(row, filters);
    const bool alone = k == 0 && rows_.team() == 1 && !filters.cuts() && filters.least == 0.f;
    if (threadIdx.x == 0) {
      shared_.best = 0;
      lists_.seed = seed, lists_.offset = offset;
      lists_.share = filters.share, lists_.most = filters.most(), lists_.greedy = row.greedy();
      lists_.k = k, lists_.is_held = k == 0 && !alone;
    }
    __syncthreads();
    if (k > 0) list.find(k);
    else if (alone) race_alone<C>(p_, at);
  }

  // How many tokens of the order the row needs; 0: too many for a short list.
  __device__ __forceinline__ int short_k(const Row<C>& row, const Filters<C>& filters) const {
    if (row.greedy()) return 1;
    return filters.limit <= kShortK ? static_cast<int>(filters.limit) : 0;
  }

  // Draws from the first k tokens. count: their number.
  __device__ __forceinline__ void finish(uint32_t at, int count) {
    const uint64_t drawn = count == 0 ? 0 : drawn_of_sorted<C>(lists_, p_.stream, lists_.noted, count);
    if (threadIdx.x == 0) write_token(p_, at, drawn);
  }

  const SampleParams& p_;
  RowsOfCluster rows_;
  HeldShared& shared_;
  ShortShared& lists_;
};

// held(row): draws a row with the whole cluster. Shared memory stores which rows remain, because `held` needs all registers.
template <class C, class F>
__device__ __forceinline__ void sample_in_teams(const SampleParams& p, F held) {
  uint32_t& left = filter_shared().held.left;
  const RowsOfCluster rows{p};
  const uint32_t crowded = Team<C>(p).draw();
  if (threadIdx.x == 0) left = crowded;
#pragma unroll 1
  for (;;) {
    __syncthreads();
    const uint32_t now = left;
    if (now == 0) return;
    const uint32_t row = static_cast<uint32_t>(__ffs(static_cast<int>(now)) - 1) >> rows.log2_of(rows.team());
    __syncthreads();
    if (threadIdx.x == 0) left = now & ~(((1u << rows.team()) - 1) << row * rows.team());
    held(rows.first() + row);
  }
}

}  // namespace opfacade
