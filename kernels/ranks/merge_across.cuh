// The merge of attention states of all ranks in one launch: each rank pushes the heads that a peer keeps into its memory, and
// merges its own when all have come, in the order of states: state 0 of every rank, then state 1 of every rank, and so on.
//
// A head of a row is a unit. A CTA sends the units that the CTA of its index merges on peers. A place holds o of all units,
// state by state, and then their log-sum-exps. The arithmetic is that of merge_states, with its bits. A sink has the weight of
// one more state, whose o is 0.
#pragma once
#include "kernels/cascade/merge_states.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ranks/merge_across_params.h"
#include "kernels/ranks/round.cuh"

namespace opfacade {

// The states of one unit: those of this rank in its tensors, others in places.
template <class M>
struct StatesOfRanks {
  const M& merge;
  int64_t unit;
  int count;
};

template <class M>
__device__ __forceinline__ float lse_of(const StatesOfRanks<M>& states, int s) {
  return *states.merge.lse_from(s % states.merge.p.round.world, s / states.merge.p.round.world, states.unit);
}
template <class C, class M>
__device__ __forceinline__ auto row_of(const StatesOfRanks<M>& states, int s) {
  const uint8_t* const row = states.merge.o_from(s % states.merge.p.round.world, s / states.merge.p.round.world, states.unit);
  return reinterpret_cast<const typename Element<typename C::T>::Bits*>(row);
}

// The same states and the sink of the unit's head behind them. The sink has a weight, but no o.
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

// C: T, kHeadDim and kSinks.
template <class C>
struct MergeAcross {
  using T = typename C::T;
  using Bits = typename Element<T>::Bits;
  static constexpr int kBytes = C::kHeadDim * sizeof(Bits), kPieces = kBytes / 16;
  static_assert(kBytes % 16 == 0, "whole lines");

  const MergeAcrossParams& p;
  Round round;
  const int64_t units, first, last;  // of the launch, and of this CTA
  uint4 ahead;  // the first piece that this thread sends: its load is in flight while the round begins

  __device__ explicit MergeAcross(const MergeAcrossParams& params)
      : p(params),
        round(params.round, *reinterpret_cast<RoundShared*>(dynamic_shared())),
        units(params.rows * params.kept),
        first(units * blockIdx.x / gridDim.x),
        last(units * (blockIdx.x + 1) / gridDim.x) {}

  __device__ void run() {
    wait_for_previous();
    allow_dependents();  // they wait for the end of this kernel, and all before it has ended
    load_ahead();
    if (!round.begin()) return fill();
    const bool met = p.flagged ? meet_by_lines() : meet_by_places();
    round.end((last - first) * p.states * (kBytes + int64_t{sizeof(float)}));
    if (!met) return fill();
    merge();
  }

  // Where a state of a rank is, once it has come to this one.
  __device__ const uint8_t* o_from(int source, int state, int64_t unit) const {
    const int own = p.round.rank;
    if (source == own) return p.o_part + index(own, state, unit) * kBytes;
    return round.place(own, source) + (state * units + unit) * kBytes;
  }
  __device__ const float* lse_from(int source, int state, int64_t unit) const {
    const int own = p.round.rank;
    return source == own ? p.lse_part + index(own, state, unit) : lses(own, source) + state * units + unit;
  }

 private:
  // The head of a row that is a unit of rank `to`, in this rank's tensors.
  __device__ int64_t index(int to, int state, int64_t unit) const {
    const int64_t row = unit / p.kept, head = unit % p.kept + (p.kept == p.heads ? 0 : int64_t{to} * p.kept);
    return (state * p.all_rows + row) * p.heads + head;
  }
  __device__ float* lses(int at, int source) const {
    return reinterpret_cast<float*>(round.place(at, source) + p.states * units * kBytes);
  }
  // step(state, unit, piece) of all pieces of this CTA's units, and each(state, unit) of all log-sum-exps.
  template <class F, class G>
  __device__ void each(F step, G of_lse) const {
    const int count = static_cast<int>(last - first);
    for (int state = 0; state < p.states; ++state) {
      for (int i = threadIdx.x; i < count * kPieces; i += blockDim.x) step(state, first + i / kPieces, i % kPieces);
      for (int i = threadIdx.x; i < count; i += blockDim.x) of_lse(state, first + i);
    }
  }

  __device__ void load_ahead() {
    const int64_t unit = first + threadIdx.x / kPieces;
    if (p.flagged && unit < last) ahead = mine(round.peer(1), 0, unit, threadIdx.x % kPieces);
  }
  // The piece of a state, from where load_ahead left it or from memory.
  __device__ uint4 piece_for(int hop, int state, int64_t unit, int piece) const {
    const bool loaded = hop == 1 && state == 0 && (unit - first) * kPieces + piece == threadIdx.x;
    return loaded ? ahead : mine(round.peer(hop), state, unit, piece);
  }
  __device__ bool meet_by_places() const {
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int to = round.peer(hop);
      uint4* const o = reinterpret_cast<uint4*>(round.place(to, p.round.rank));
      float* const lse = lses(to, p.round.rank);
      each([&](int state, int64_t unit, int piece) {
        push(o + (state * units + unit) * kPieces + piece, mine(to, state, unit, piece));
      }, [&](int state, int64_t unit) { push(lse + state * units + unit, p.lse_part[index(to, state, unit)]); });
    }
    return round.meet(0);
  }
  __device__ uint4 mine(int to, int state, int64_t unit, int piece) const {
    return __ldcg(reinterpret_cast<const uint4*>(p.o_part + index(to, state, unit) * kBytes) + piece);
  }

  // Lines of a source: two for each piece, and behind all of them two for each log-sum-exp.
  __device__ int64_t line(int state, int64_t unit, int piece) const { return 2 * ((state * units + unit) * kPieces + piece); }
  __device__ int64_t line_of_lse(int state, int64_t unit) const { return 2 * (p.states * units * kPieces + state * units + unit); }
  __device__ void push_lines(uint4* there, uint4 value) const {
    push_flagged(there, value.x, value.y, round.shared.flag), push_flagged(there + 1, value.z, value.w, round.shared.flag);
  }
  __device__ bool meet_by_lines() const {
    round.tell(0);
    for (int hop = 1; hop < p.round.world; ++hop) {
      const int to = round.peer(hop);
      uint4* const there = round.lines(to, p.round.rank);
      each([&](int state, int64_t unit, int piece) {
        push_lines(there + line(state, unit, piece), piece_for(hop, state, unit, piece));
      }, [&](int state, int64_t unit) {
             const uint32_t lse = __float_as_uint(p.lse_part[index(to, state, unit)]);
             push_lines(there + line_of_lse(state, unit), make_uint4(lse, 0, 0, 0));
           });
    }
    round.note_begun();
    __syncthreads();  // all is sent before any thread waits
    round.hear(0);
    for (int hop = 1; hop < p.round.world; ++hop) take_lines(round.peer(hop));
    return round.met();
  }
  // Lays out what has come in lines as in a place.
  __device__ void take_lines(int source) const {
    const int own = p.round.rank;
    uint4* const from = round.lines(own, source);
    uint4* const o = reinterpret_cast<uint4*>(round.place(own, source));
    float* const lse = lses(own, source);
    each([&](int state, int64_t unit, int piece) {
      o[(state * units + unit) * kPieces + piece] = round.receive(from + line(state, unit, piece), source);
    }, [&](int state, int64_t unit) {
      lse[state * units + unit] = __uint_as_float(round.receive(from + line_of_lse(state, unit), source).x);
    });
  }

  template <int kLanes>
  __device__ RowWeights weights_of_unit(const StatesOfRanks<MergeAcross>& states) const {
    if constexpr (C::kSinks) {
      const float sink = p.sinks[index(p.round.rank, 0, states.unit) % p.heads];
      return weights_by<kLanes>(StatesAndSink<MergeAcross>{states, sink, states.count + 1});
    } else {
      return weights_by<kLanes>(states);
    }
  }

  __device__ void merge() const {
    constexpr int kVec = merge_piece(C::kHeadDim, sizeof(Bits)), kLanes = lanes_of_a_row(C::kHeadDim, sizeof(Bits));
    constexpr int kAtOnce = kMergeAcrossThreads / kLanes, kMany = 4;
    const int lane = threadIdx.x % kLanes, last_column = C::kHeadDim - kVec;
    for (int64_t base = first; base < last; base += kAtOnce) {
      const int64_t place = base + threadIdx.x / kLanes;
      const bool there = place < last;
      const StatesOfRanks<MergeAcross> states{*this, there ? place : last - 1, p.states * p.round.world};
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
        Bits* const to = reinterpret_cast<Bits*>(p.o + place * kBytes);
        store_merged<T>(to, column, sum, reciprocal_or_zero(weights.total), true);
        column += kLanes * kVec;
        if (kLanes * kVec < C::kHeadDim && column < C::kHeadDim) held.load(states, 0, column);
      }
      if (lane == 0) p.lse[place] = merged_lse(weights);
    }
  }

  // NaN in every element of this CTA's units.
  __device__ void fill() const {
    uint32_t* const o = reinterpret_cast<uint32_t*>(p.o);
    for (int64_t i = first * (kBytes / 4) + threadIdx.x; i < last * (kBytes / 4); i += blockDim.x) o[i] = ~0u;
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x) p.lse[i] = __uint_as_float(~0u);
  }
};

}  // namespace opfacade
