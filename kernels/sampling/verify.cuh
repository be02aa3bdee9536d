// Verification of drafted tokens. Few numbers decide what is accepted, so every CTA of a request computes it; then the cluster
// draws one token of the vocabulary by a race, which dominates the time.
#pragma once
#include "kernels/common/run.cuh"
#include "kernels/sampling/cluster_row.cuh"
#include "kernels/sampling/noise.cuh"
#include "kernels/sampling/order.cuh"
#include "kernels/sampling/verify_params.h"

namespace opfacade {

struct VerifyShared {
  ReduceShared reduce;
  int32_t tokens[kMostDrafts], nodes[kMostDrafts], rejected[kMostDrafts];
  int32_t accepted, node, num_rejected;
  uint8_t takes[kMostDrafts];  // whether a draft of a chain is accepted
  uint8_t again[kMostDrafts];  // the token of a tree's draft may occur again: in another draft, or because links form a cycle
};
static_assert(sizeof(VerifyShared) <= kVerifyShared, "as the binding launches it");

// With a wrong count, no request is valid.
__device__ __forceinline__ bool is_valid_request(const VerifyParams& p, int64_t request) {
  if (p.num_valid == nullptr) return request < p.rows;
  const int64_t count = *p.num_valid;
  return count <= p.rows && request < count;
}

class Request {
 public:
  __device__ __forceinline__ Request(const VerifyParams& p, int64_t at, VerifyShared& shared)
      : p_(p), at_(at), shared_(shared), drafts_(p.draft_tokens + at * p.drafts), target_(p.target_probs + at * p.target_request) {}

  // A uniform number: a multiple of 2^-24 in [0, 1).
  __device__ __forceinline__ float coin(int depth) const {
    uint32_t words[4];
    Philox(p_.seed[at_], p_.offset[at_] + depth, p_.stream + 0x80000000u).words(0, words);
    return static_cast<float>(words[0] >> 8) * 0x1p-24f;
  }
  __device__ __forceinline__ bool has(int32_t token) const { return token >= 0 && token < p_.vocab; }

  __device__ __forceinline__ void chain() {
    if (threadIdx.x < p_.drafts) {
      const int i = threadIdx.x;
      const int32_t token = drafts_[i];
      bool takes = false;
      if (has(token)) takes = __fmul_rn(coin(i), draft(i)[token]) < target_[i * p_.target_row + token];
      shared_.takes[i] = takes, shared_.tokens[i] = token;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int count = 0;
      while (count < p_.drafts && shared_.takes[count]) ++count;
      shared_.accepted = shared_.node = count, shared_.num_rejected = 0;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void tree() {
    if (threadIdx.x < p_.drafts) shared_.again[threadIdx.x] = is_drafted_twice(threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) walk();
    __syncthreads();
  }

  __device__ __forceinline__ const float* target() const { return target_ + shared_.node * p_.target_row; }
  // Distribution of the draft that a chain rejected; null if none was rejected.
  __device__ __forceinline__ const float* rejected_draft() const {
    return shared_.node < p_.drafts ? draft(shared_.node) : nullptr;
  }
  __device__ __forceinline__ bool is_rejected(int32_t token) const { return is_rejected(token, shared_.num_rejected); }

  __device__ __forceinline__ void write(uint64_t raced, bool tree) {
    const int count = shared_.accepted, emitted = count + (raced != 0);
    for (int i = threadIdx.x; i <= p_.drafts; i += kSampleThreads) {
      const int64_t to = at_ * (p_.drafts + 1) + i;
      p_.tokens[to] = i < count ? shared_.tokens[i] : i < emitted ? static_cast<int32_t>(token_of(raced)) : -1;
      if (tree) p_.nodes[to] = i < count ? shared_.nodes[i] : -1;
    }
    if (threadIdx.x == 0) p_.accepted[at_] = count, p_.emitted[at_] = emitted;
  }

 private:
  __device__ __forceinline__ const float* draft(int i) const {
    return p_.draft_probs + at_ * p_.draft_request + i * p_.draft_row;
  }
  // The linked node if it exists, else 0.
  __device__ __forceinline__ int linked(const int32_t* links, int node) const {
    const int found = links[at_ * (p_.drafts + 1) + node];
    return found >= 1 && found <= p_.drafts ? found : 0;
  }

  __device__ __forceinline__ bool is_rejected(int32_t token, int count) const {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < count; ++i) found |= shared_.rejected[i] == token;
    return found;
  }
  // Whether another draft has the same token. Few trees have repeated tokens; the walk compares only these with the rejected
  // tokens.
  __device__ __forceinline__ bool is_drafted_twice(int draft) const {
    bool found = false;
    for (int i = 0; i < p_.drafts; ++i) found |= i != draft && drafts_[i] == drafts_[draft];
    return found;
  }

  // Links may be wrong, so the number of steps is limited to the number of drafts. A token that was rejected at this depth has
  // no mass left.
  __device__ __forceinline__ void walk() {
    int node = 0, accepted = 0, rejected = 0, child = linked(p_.first_child, 0);
    float mass = 0.f, toss = coin(0);
#pragma unroll 1
    for (int steps = 0; child != 0 && steps < p_.drafts; ++steps) {
      const int32_t token = drafts_[child - 1];
      const bool left = has(token) && !(shared_.again[child - 1] && is_rejected(token, rejected));
      const float own = left ? target_[node * p_.target_row + token] : 0.f;
      mass = __fadd_rn(mass, own);
      if (own > 0.f && (toss < __fdiv_rn(mass, p_.threshold_acc) || own >= p_.threshold_single)) {
        shared_.tokens[accepted] = token, shared_.nodes[accepted++] = child;
        node = child, rejected = 0, mass = 0.f, toss = coin(accepted);
        child = linked(p_.first_child, child);
      } else {
        shared_.rejected[rejected++] = token, shared_.again[child - 1] = true;
        child = linked(p_.next_sibling, child);
      }
    }
    shared_.accepted = accepted, shared_.node = node, shared_.num_rejected = rejected;
  }

  const VerifyParams& p_;
  int64_t at_;
  VerifyShared& shared_;
  const int32_t* drafts_;
  const float* target_;
};

// Draws a token of this CTA's slice with probabilities proportional to weight(token), and returns the best key of the race.
template <class F>
__device__ __forceinline__ uint64_t race_weights(const VerifyParams& p, const Philox& philox, F weight) {
  const uint32_t first = blockIdx.x % p.ctas * p.slice, end = min(static_cast<uint32_t>(p.vocab), first + p.slice);
  uint64_t best = 0;
#pragma unroll 1
  for (uint32_t token = first + 4 * threadIdx.x; token < end; token += 4 * kSampleThreads) {
    float w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = token + j < end ? weight(token + j) : 0.f;
    if (!(w[0] > 0.f || w[1] > 0.f || w[2] > 0.f || w[3] > 0.f)) continue;
    uint32_t words[4];
    philox.words(token / 4, words);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (w[j] > 0.f) best = Larger()(best, ranked(__fadd_rn(log2f(w[j]), minus_log2_exponential(words[j])), token + j));
  }
  return best;
}

template <bool kTree>
__device__ __forceinline__ void verify_by_race(const VerifyParams& p) {
  VerifyShared& shared = *reinterpret_cast<VerifyShared*>(dynamic_shared());
  const int64_t at = blockIdx.x / p.ctas;
  if (!is_valid_request(p, at)) return;
  Request request(p, at, shared);
  if constexpr (kTree) request.tree();
  else request.chain();
  ClusterRow cluster(shared.reduce, p.ctas);
  const Philox philox(p.seed[at], p.offset[at] + shared.accepted, p.stream);
  const float *const target = request.target(), *const draft = kTree ? nullptr : request.rejected_draft();
  uint64_t best = race_weights(p, philox, [&](uint32_t token) {
    if (kTree) return request.is_rejected(static_cast<int32_t>(token)) ? 0.f : target[token];
    return draft == nullptr ? target[token] : __fsub_rn(target[token], draft[token]);
  });
  best = cluster.reduce(best, Larger());
  if (best == 0) best = cluster.reduce(race_weights(p, philox, [&](uint32_t token) { return target[token]; }), Larger());
  if (blockIdx.x % p.ctas == 0) request.write(best, kTree);
  cluster.sync();  // no CTA exits while others read its shared memory
}

__device__ __forceinline__ void verify_by_equality(const VerifyParams& p) {
  const int64_t at = int64_t{blockIdx.x} * kSampleThreads + threadIdx.x;
  if (at >= p.rows || !is_valid_request(p, at)) return;
  const int32_t *const drafts = p.draft_tokens + at * p.drafts, *const target = p.target_tokens + at * (p.drafts + 1);
  int count = 0;
  while (count < p.drafts && drafts[count] >= 0 && drafts[count] == target[count]) ++count;
  const int emitted = count + (target[count] >= 0);
  for (int i = 0; i <= p.drafts; ++i) p.tokens[at * (p.drafts + 1) + i] = i < emitted ? target[i] : -1;
  p.accepted[at] = count, p.emitted[at] = emitted;
}

}  // namespace opfacade
