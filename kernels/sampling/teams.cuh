// Rows in teams: several rows share a cluster, and a team of its CTAs draws one whose k is short. Rows that no short list can draw
// are held by the whole cluster, one after another.
#pragma once
#include "kernels/sampling/shortlist.cuh"

namespace opfacade {

// Whether rows may be drawn from a short list: no output concerns the other candidates.
template <class C>
constexpr bool kShortens = C::kTopK && !C::kJoint && !C::kReport && !C::kProbs;

// The rows of this CTA's cluster, computed again where they are used, since registers are short.
struct RowsOfCluster {
  const SampleParams& p;

  // CTAs of a row, and how many rows there are.
  __device__ __forceinline__ int team() const { return blockIdx.x / p.ctas < p.whole ? p.team : p.last_team; }
  __device__ __forceinline__ uint32_t count() const { return static_cast<uint32_t>(p.ctas / team()); }
  __device__ __forceinline__ uint32_t first() const {
    const uint32_t cluster = blockIdx.x / p.ctas;
    const uint32_t whole = min(cluster, p.whole);
    return whole * static_cast<uint32_t>(p.ctas / p.team) + (cluster - whole) * count();
  }
};

template <class C>
class Team {
 public:
  __device__ __forceinline__ explicit Team(const SampleParams& p)
      : p_(p), rows_{p}, shared_(*reinterpret_cast<HeldShared*>(dynamic_shared())),
        lists_(*reinterpret_cast<ShortShared*>(dynamic_shared() + kHeldShared)) {}

  // Draws the row. Returns for which CTAs of the cluster there was no room in a list, a bit for each.
  __device__ __forceinline__ uint32_t draw() {
    if (threadIdx.x == 0) lists_.num_noted = lists_.num_own = lists_.listed = 0, lists_.k = 0;
    if (at() < p_.rows && is_valid_row(p_, at())) list();
    const ClusterRow cluster(shared_.reduce, p_.ctas);
    const int size = rows_.team();
    TeamLists team(lists_, size);
    cluster.sync();
    const uint32_t listed = cluster.word_of_lane(&lists_.listed), crowded = __ballot_sync(0xffffffffu, listed == kCrowded);
    const bool leads = lists_.k > 0 && rank() % size == 0 && (crowded >> rank() & ((1u << size) - 1)) == 0;
    if (leads && size > 1) team.copy(cluster, listed, rank());
    cluster.sync();  // no CTA exits or goes on while others read its shared memory
    if (leads) finish(team);
    return crowded;
  }

 private:
  __device__ __forceinline__ int rank() const { return static_cast<int>(blockIdx.x) % p_.ctas; }
  __device__ __forceinline__ uint32_t at() const {
    return rows_.first() + static_cast<uint32_t>(rank() / rows_.team());
  }

  __device__ __forceinline__ void list() {
    flag_biases<C>(p_, at(), shared_.flags, bias_index(shared_), first_biased<C>(p_, at()));
    const Row<C> row(p_, at(), shared_.flags, &bias_index(shared_));
    const uint32_t slice = p_.slice * rows_.count();
    const uint32_t first = rank() % rows_.team() * slice, end = min(row.vocab(), first + slice);
    ask(row, first, end);
    const int k = short_k(row);
    if (threadIdx.x == 0) tell(row, k);
    __syncthreads();
    if (k > 0) Shortlist<C>(row, lists_, k).find(first, end);
  }

  // Prefetches the first chunk before it is known whether the row has a short k.
  __device__ __forceinline__ void ask(const Row<C>& row, uint32_t first, uint32_t end) const {
#pragma unroll 1
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t token = first + 4 * (threadIdx.x + kSampleThreads * i);
      if (token < end) prefetch_l2(row.logits + token);
    }
  }

  // How many of the order the row needs; 0: too many for a short list.
  __device__ __forceinline__ int short_k(const Row<C>& row) const {
    if (row.greedy()) return 1;
    const uint64_t limit = Filters<C>(p_, row.row).limit;
    return limit <= kShortK ? static_cast<int>(limit) : 0;
  }

  __device__ __forceinline__ void tell(const Row<C>& row, int k) {
    const Filters<C> filters(p_, row.row);
    lists_.seed = p_.seed[row.row], lists_.offset = p_.offset[row.row];
    lists_.share = filters.share, lists_.most = filters.most(), lists_.greedy = row.greedy();
    lists_.k = k, lists_.listed = k > 0 ? 0 : kCrowded;
  }

  __device__ __forceinline__ void finish(TeamLists& team) {
    int count = static_cast<int>(lists_.listed);
    const uint64_t* list = lists_.noted;
    if (rows_.team() > 1) count = team.merge(lists_.k), list = team.merged();
    const uint64_t drawn = count == 0 ? 0 : drawn_of_sorted<C>(lists_, p_.stream, list, count);
    if (threadIdx.x == 0) write_token(p_, at(), drawn);
  }

  const SampleParams& p_;
  RowsOfCluster rows_;
  HeldShared& shared_;
  ShortShared& lists_;
};

// held(row): draws a row by the whole cluster. Shared memory says which rows are left, because `held` needs all registers.
template <class C, class F>
__device__ __forceinline__ void sample_in_teams(const SampleParams& p, F held) {
  uint32_t& left = reinterpret_cast<HeldShared*>(dynamic_shared())->left;
  const RowsOfCluster rows{p};
  const uint32_t crowded = Team<C>(p).draw();
  if (threadIdx.x == 0) left = crowded;
#pragma unroll 1
  for (;;) {
    __syncthreads();
    const uint32_t now = left;
    if (now == 0) return;
    const uint32_t row = static_cast<uint32_t>(__ffs(static_cast<int>(now)) - 1) / rows.team();
    __syncthreads();
    if (threadIdx.x == 0) left = now & ~(((1u << rows.team()) - 1) << row * rows.team());
    held(rows.first() + row);
  }
}

}  // namespace opfacade
