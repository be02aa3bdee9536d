// The first tokens of each row of a shard, in order: a team of CTAs streams a row once, and its first CTA writes the merged
// list. If a row has more ties than a list has room for, the whole cluster reads it again for each of its listed tokens.
#pragma once
#include "kernels/sampling/teams.cuh"

namespace opfacade {

// Adjusted logits and columns of one row in the lists of all rows; entries from `count` on are not tokens.
class ShardList {
 public:
  __device__ __forceinline__ ShardList(const SampleParams& p, int64_t row)
      : values_(static_cast<float*>(p.values) + row * p.values_row), columns_(p.top_tokens + row * p.top_tokens_row), size_(p.top_n) {}

  __device__ __forceinline__ int size() const { return size_; }
  __device__ __forceinline__ void write(int at, uint64_t own) const {
    values_[at] = own == 0 ? minus_infinity() : key_of(own);
    columns_[at] = own == 0 ? 0 : static_cast<int32_t>(token_of(own));
  }
  // Called by all threads of a CTA.
  __device__ __forceinline__ void write_all(const uint64_t* list, int count) const {
    for (int i = threadIdx.x; i < size_; i += kSampleThreads) write(i, i < count ? list[i] : 0);
  }

 private:
  float* values_;
  int32_t* columns_;
  int size_;
};

template <class C>
class ShardLister {
 public:
  __device__ __forceinline__ explicit ShardLister(const SampleParams& p)
      : p_(p), rows_{p}, shared_(filter_shared().held), lists_(filter_shared().short_k) {}

  // Lists the row of this team. Returns a bit for each CTA of the cluster whose list overflowed.
  __device__ __forceinline__ uint32_t list() {
    return list_in_teams(p_, [&](uint32_t at) { find(at); },
                         [&](uint32_t at, int count) { ShardList(p_, at).write_all(lists_.noted, count); });
  }

  // Lists a row with the whole cluster, one token after another.
  __device__ __forceinline__ void list_slowly(uint32_t at) {
    ClusterRow cluster(shared_.reduce, p_.ctas);
    const Row<C> row(p_, at, shared_.flags, &bias_index(shared_));
    const uint32_t first = rows_.rank() * p_.slice, end = min(row.vocab(), first + p_.slice);
    const ShardList to(p_, at);
    uint64_t last = ~uint64_t{0};
#pragma unroll 1
    for (int i = 0; i < to.size(); ++i) {
      uint64_t next = 0;
      row.each_group(first, end, [&](uint32_t token, float (&a)[4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint64_t own = token + j < end && is_candidate(a[j]) ? ranked(row.heated(a[j]), token + j) : 0;
          if (own < last) next = Larger()(next, own);
        }
      });
      last = cluster.reduce(next, Larger());
      if (rows_.rank() == 0 && threadIdx.x == 0) to.write(i, last);
    }
    cluster.sync();  // no CTA exits while others read its shared memory
  }

 private:
  __device__ __forceinline__ void find(uint32_t at) {
    const Row<C> row(p_, at, shared_.flags, &bias_index(shared_));
    const uint32_t slice = p_.slice * rows_.count();
    const uint32_t first = (rows_.rank() & (rows_.team() - 1)) * slice, end = min(row.vocab(), first + slice);
    Shortlist<C> list(row, lists_, first, end);
    if (threadIdx.x == 0) lists_.k = p_.top_n;
    __syncthreads();
    list.find(p_.top_n);
  }

  const SampleParams& p_;
  RowsOfCluster rows_;
  HeldShared& shared_;
  ShortShared& lists_;
};

template <class C>
__device__ __forceinline__ void list_shard(const SampleParams& p) {
  ShardLister<C> lister(p);
  const RowsOfCluster rows{p};
  uint32_t left = lister.list();
#pragma unroll 1
  while (left != 0) {  // the same in all CTAs of the cluster
    const uint32_t row = static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1) >> rows.log2_of(rows.team());
    left &= ~(((1u << rows.team()) - 1) << row * rows.team());
    lister.list_slowly(rows.first() + row);
  }
}

}  // namespace opfacade
