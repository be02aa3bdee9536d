// Merges the attention states of all ranks in one launch. Each rank pushes the heads that a peer keeps into the peer's memory,
// and merges its own heads when all states have arrived. The order of states is: state 0 of every rank, then state 1 of every
// rank, and so on.
//
// A unit is one head of one row. A CTA sends the units that the CTA with the same index merges on peers. A receive buffer
// (place) holds o of all units, state by state, and then their log-sum-exps. States that arrive in flagged lines are copied to
// shared memory, together with those of this rank, which are loaded before the CTA waits. The arithmetic and its bits are those
// of merge_states. A sink has the weight of one more state, whose o is 0.
#pragma once
#include "kernels/cascade/merge_states.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ranks/merge_across_params.h"
#include "kernels/ranks/round.cuh"

namespace opfacade {

// The states of one unit. States of this rank are in its tensors, others in receive buffers; if they came in flagged lines, all
// are in shared memory.
template <class M>
struct StatesOfRanks {
  const M& merge;
  int unit;
  int count;
};

template <class M>
__device__ __forceinline__ float lse_of(const StatesOfRanks<M>& states, int s) {
  return *states.merge.lse_from(s, states.unit);
}
template <class C, class M>
__device__ __forceinline__ auto row_of(const StatesOfRanks<M>& states, int s) {
  return reinterpret_cast<const typename Element<typename C::T>::Bits*>(states.merge.o_from(s, states.unit));
}

// The same states, followed by the sink of the unit's head. The sink has a weight, but no o.
template <class M>
struct StatesAndSink {
  const StatesOfRanks<M>& states;
  float sink;
  int count;
};

template <class M>
__device__ __forceinline__ float lse_of(const StatesAndSink<M>& all, int s) {
  return s < all.states.count ? lse_of(all.states, s) : all.sink;
}

// Sum of numbers in the order of a warp's butterfly reduction.
template <int kCount>
__device__ __forceinline__ float sum_of_lanes(const float (&x)[kCount]) {
  if constexpr (kCount == 1) {
    return x[0];
  } else {
    float half[kCount / 2];
#pragma unroll
    for (int s = 0; s < kCount / 2; ++s) half[s] = x[s] + x[s + kCount / 2];
    return sum_of_lanes(half);
  }
}

// Weights of a row computed by one lane that holds all of its states, bit-equal to row_weights with 32 lanes. A missing state
// counts as empty.
template <int kStates>
__device__ __forceinline__ RowWeights weights_held(const float (&lse)[kStates]) {
  static_assert((kStates & (kStates - 1)) == 0 && kStates <= 32, "as a warp adds them up");
  float most = lse[0], weight[kStates];
#pragma unroll
  for (int s = 1; s < kStates; ++s) most = fmaxf(most, lse[s]);
  const float base = finite_max(most);
#pragma unroll
  for (int s = 0; s < kStates; ++s) weight[s] = state_weight(lse[s], base);
  return {base, sum_of_lanes(weight)};
}

// C: defines T, kHeadDim and kSinks.
template <class C>
struct MergeAcross {
  using T = typename C::T;
  using Bits = typename Element<T>::Bits;
  static constexpr int kBytes = C::kHeadDim * sizeof(Bits), kPieces = kBytes / 16, kVec = 16 / sizeof(Bits);
  static constexpr int kInFlight = 4;  // chunks that a thread loads before it sends the first
  static constexpr int kPeersAtOnce = 4;  // peers whose lines a thread polls together, if there are several
  static_assert(kBytes % 16 == 0, "whole lines");

  const MergeAcrossParams& p;
  Round round;
  const int units, first, count;  // of the launch; of this CTA
  uint4 ahead;  // the first chunk that this thread sends; its load is in flight when the round begins

  __device__ explicit MergeAcross(const MergeAcrossParams& params)
      : p(params),
        round(params.round, *reinterpret_cast<RoundShared*>(dynamic_shared())),
        units(static_cast<int>(params.rows) * params.kept),
        first(at(blockIdx.x)),
        count(at(blockIdx.x + 1) - first) {}

  __device__ void run() {
    wait_for_previous();
    allow_dependents();  // the next kernel waits for the end of this one, after which all earlier kernels have ended
    load_ahead();
    if (!round.begin()) return fill();
    const bool met = p.flagged ? meet_by_lines() : meet_by_places();
    round.end(int64_t{count} * p.states * (kBytes + int64_t{sizeof(float)}));
    if (!met) return fill();
    merge();
  }

  // Address of a state after its arrival. s: number the states by state, then by rank.
  __device__ const uint8_t* o_from(int s, int unit) const {
    if (p.flagged) return held_o(s, unit);
    const int source = s % p.round.world, state = s / p.round.world, own = p.round.rank;
    if (source == own) return p.o_part + index(own, state, unit) * kBytes;
    return round.place(own, source) + (int64_t{state} * units + unit) * kBytes;
  }
  __device__ const float* lse_from(int s, int unit) const {
    if (p.flagged) return held_lse(s, unit);
    const int source = s % p.round.world, state = s / p.round.world, own = p.round.rank;
    return source == own ? p.lse_part + index(own, state, unit) : lses(own, source) + int64_t{state} * units + unit;
  }

 private:
  __device__ int at(uint32_t cta) const { return static_cast<int>(static_cast<uint64_t>(units) * cta / gridDim.x); }
  // Index, in this rank's tensors, of the head and row that is a unit of rank `to`.
  __device__ int64_t index(int to, int state, int unit) const {
    const int row = unit / p.kept, head = unit % p.kept + (p.kept == p.heads ? 0 : to * p.kept);
    return (state * p.all_rows + row) * p.heads + head;
  }
  __device__ float* lses(int at, int source) const {
    return reinterpret_cast<float*>(round.place(at, source) + int64_t{p.states} * units * kBytes);
  }
  // Shared memory holds o of all states of this CTA's units, and then their log-sum-exps.
  __device__ uint8_t* held_o(int s, int unit) const {
    return dynamic_shared() + kRoundShared + (s * count + unit - first) * kBytes;
  }
  __device__ float* held_lse(int s, int unit) const {
    float* const lse = reinterpret_cast<float*>(dynamic_shared() + kRoundShared + p.states * p.round.world * count * kBytes);
    return lse + s * count + unit - first;
  }
  // Calls step(state, i) for each chunk i of this CTA's units. A log-sum-exp is a chunk too, so that the threads of a warp wait
  // for both kinds in one loop. o of all units comes first.
  template <class F>
  __device__ void each(F step) const {
    for (int state = 0; state < p.states; ++state)
      for (int i = threadIdx.x; i < count * (kPieces + 1); i += kMergeAcrossThreads) step(state, i);
  }
  __device__ bool is_o(int i) const { return i < count * kPieces; }
  // Number of a chunk among those of all CTAs.
  __device__ int64_t chunk(int state, int i) const {
    if (is_o(i)) return (int64_t{state} * units + first) * kPieces + i;
    return int64_t{p.states} * units * kPieces + int64_t{state} * units + first + i - count * kPieces;
  }
  // A chunk of this rank for rank `to`.
  __device__ uint4 own_chunk(int to, int state, int i) const {
    if (is_o(i)) return mine(to, state, first + i / kPieces, i % kPieces);
    return make_uint4(__float_as_uint(p.lse_part[index(to, state, first + i - count * kPieces)]), 0, 0, 0);
  }

  __device__ void load_ahead() {
    const int i = threadIdx.x;
    if (p.flagged && i < count * (kPieces + 1)) ahead = own_chunk(round.peer(1), 0, i);
  }
  __device__ bool meet_by_places() const {
    for (int hop = 1; hop < p.round.world; ++hop)
      for (int state = 0; state < p.states; ++state) push_state(round.peer(hop), state);
    return round.meet(0);
  }
  // Several loads are issued before the stores: a compiler moves no load before a store that may alias it.
  __device__ void push_state(int to, int state) const {
    uint4* const o = reinterpret_cast<uint4*>(round.place(to, p.round.rank)) + (int64_t{state} * units + first) * kPieces;
    float* const lse = lses(to, p.round.rank) + int64_t{state} * units;
    for (int i = threadIdx.x; i < count; i += kMergeAcrossThreads)
      push(lse + first + i, p.lse_part[index(to, state, first + i)]);
    for (int i = threadIdx.x; i < count * kPieces; i += kInFlight * kMergeAcrossThreads) {
      uint4 value[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int own = i + k * kMergeAcrossThreads;
        if (own < count * kPieces) value[k] = mine(to, state, first + own / kPieces, own % kPieces);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int own = i + k * kMergeAcrossThreads;
        if (own < count * kPieces) push(o + own, value[k]);
      }
    }
  }
  __device__ uint4 mine(int to, int state, int unit, int piece) const {
    return __ldcg(reinterpret_cast<const uint4*>(p.o_part + index(to, state, unit) * kBytes) + piece);
  }

  __device__ bool meet_by_lines() const {
    round.tell(0);
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int to = round.peer(hop);
      each([&](int state, int i) {
        const bool loaded = hop == 1 && state == 0 && i == static_cast<int>(threadIdx.x);
        round.send(to, chunk(state, i), loaded ? ahead : own_chunk(to, state, i));
      });
    }
    round.note_begun();
    hold_own();
    __syncthreads();  // all data are sent before any thread waits
    if (p.round.world == 2) hold_lines<1>(1);
    else
      for (int hop = 1; hop < p.round.world; hop += kPeersAtOnce) hold_lines<kPeersAtOnce>(hop);
    round.hear_the_rest();
    return round.met();
  }
  __device__ void hold(int source, int state, int i, uint4 value) const {
    const int s = state * p.round.world + source;
    if (is_o(i)) reinterpret_cast<uint4*>(held_o(s, first))[i] = value;
    else held_lse(s, first)[i - count * kPieces] = __uint_as_float(value.x);
  }
  __device__ void hold_own() const {
    each([&](int state, int i) { hold(p.round.rank, state, i, own_chunk(p.round.rank, state, i)); });
  }
  // Copies the lines of some peers, from `hop` on, to shared memory.
  template <int kMany>
  __device__ void hold_lines(int hop) const {
    each([&](int state, int i) {
      uint4 found[kMany];
      round.receive_some(found, hop, chunk(state, i));
#pragma unroll
      for (int k = 0; k < kMany; ++k)
        if (hop + k < p.round.world) hold(round.peer(hop + k), state, i, found[k]);
    });
  }

  __device__ float sink_of(int unit) const {
    return p.sinks[index(p.round.rank, 0, unit) % p.heads];
  }
  template <int kLanes>
  __device__ RowWeights weights_of_unit(const StatesOfRanks<MergeAcross>& states) const {
    if constexpr (C::kSinks) {
      return weights_by<kLanes>(StatesAndSink<MergeAcross>{states, sink_of(states.unit), states.count + 1});
    } else {
      return weights_by<kLanes>(states);
    }
  }

  __device__ void merge() const {
    const int states = p.states * p.round.world;
    if (states <= 2) merge_few<2, 4>();
    else if (states <= 4) merge_few<4, 2>();
    else if (states <= 8) merge_few<8, 1>();
    else merge_many();
  }
  // A thread has one chunk of all states of a unit. It takes kAtOnce units together, so that their loads are in flight
  // together.
  template <int kStates, int kAtOnce>
  __device__ void merge_few() const {
    const int states = p.states * p.round.world;
    for (int base = threadIdx.x; base < count * kPieces; base += kAtOnce * kMergeAcrossThreads) {
      Fetched<T, kVec> part[kAtOnce][kStates];
      float lse[kAtOnce][C::kSinks ? 2 * kStates : kStates];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = min(base + k * kMergeAcrossThreads, count * kPieces - 1), unit = first + i / kPieces;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          lse[k][s] = minus_infinity();
          if (s >= states) continue;
          lse[k][s] = *lse_from(s, unit);
          part[k][s] = *reinterpret_cast<const Fetched<T, kVec>*>(o_from(s, unit) + i % kPieces * 16);
        }
        if constexpr (C::kSinks) {
          const float sink = sink_of(unit);
#pragma unroll
          for (int s = 0; s < 2 * kStates; ++s)
            if (s >= states) lse[k][s] = s == states ? sink : minus_infinity();
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = base + k * kMergeAcrossThreads, unit = first + i / kPieces;
        if (i >= count * kPieces) break;
        const RowWeights weights = weights_held(lse[k]);
        float sum[kVec] = {};
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
          if (s >= states || lse[k][s] == minus_infinity()) continue;
          const float weight = state_weight(lse[k][s], weights.base);
#pragma unroll
          for (int e = 0; e < kVec; ++e) sum[e] += weight * part[k][s].at(e);
        }
        store_merged<T>(p.o + int64_t{unit} * kBytes, i % kPieces * kVec, sum, reciprocal_or_zero(weights.total), true);
        if (i % kPieces == 0) p.lse[unit] = merged_lse(weights);
      }
    }
  }
  __device__ void merge_many() const {
    constexpr int kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits)), kAtOnce = kMergeAcrossThreads / kLanes, kMany = 4;
    static_assert(kVec == merge_piece(C::kHeadDim, sizeof(Bits)), "heads are whole lines");
    const int lane = threadIdx.x % kLanes, last_column = C::kHeadDim - kVec;
    for (int base = 0; base < count; base += kAtOnce) {
      const int place = base + static_cast<int>(threadIdx.x) / kLanes;
      const bool there = place < count;
      const StatesOfRanks<MergeAcross> states{*this, first + (there ? place : count - 1), p.states * p.round.world};
      HeldStates<C, kVec, kMany> held;
      held.load(states, 0, min(lane * kVec, last_column));
      const RowWeights weights = weights_of_unit<kLanes>(states);
      if (!there) continue;
      for (int column = lane * kVec; column < C::kHeadDim;) {
        float sum[kVec] = {};
        held.add(weights, sum);
        for (int next = kMany; next < states.count; next += kMany) {
          held.load(states, next, column);
          held.add(weights, sum);
        }
        store_merged<T>(p.o + int64_t{states.unit} * kBytes, column, sum, reciprocal_or_zero(weights.total), true);
        column += kLanes * kVec;
        if (kLanes * kVec < C::kHeadDim && column < C::kHeadDim) held.load(states, 0, column);
      }
      if (lane == 0) p.lse[states.unit] = merged_lse(weights);
    }
  }

  // Fills this CTA's units with NaN.
  __device__ void fill() const {
    uint32_t* const o = reinterpret_cast<uint32_t*>(p.o + int64_t{first} * kBytes);
    for (int i = threadIdx.x; i < count * (kBytes / 4); i += kMergeAcrossThreads) o[i] = ~0u;
    for (int i = threadIdx.x; i < count; i += kMergeAcrossThreads) p.lse[first + i] = __uint_as_float(~0u);
  }
};

}  // namespace opfacade
