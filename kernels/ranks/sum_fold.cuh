// The sum over ranks and the fold of its rows in one launch, by stores to peer memory. A row is added in f32 in the order of
// ranks and rounded once. The fold that follows is the one of a single GPU, so its bits are the same.
//
// In one step, every rank gets all rows. In two steps, rank r gets the rows i with i mod kWorld = r, and sends the results of
// their fold. A row's arithmetic is the same in both.
#pragma once
#include "kernels/ranks/round.cuh"
#include "kernels/ranks/sum_fold_params.h"
#include "kernels/reduction/fold.cuh"

namespace opfacade {

constexpr int kInFlight = 4;  // words that a thread loads before it stores the first

// Copies bytes by all threads of a CTA, in the widest words for which addresses and size are aligned.
template <class T, bool kPush>
__device__ __forceinline__ void copy_words(uint8_t* to, const uint8_t* from, int64_t bytes) {
  const int count = static_cast<int>(bytes / static_cast<int64_t>(sizeof(T))), step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kInFlight * step) {
    T value[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k)
      if (first + k * step < count) value[k] = __ldcg(reinterpret_cast<const T*>(from) + first + k * step);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      T* const there = reinterpret_cast<T*>(to) + first + k * step;
      if (first + k * step >= count) continue;
      if constexpr (kPush) push(there, value[k]);
      else *there = value[k];
    }
  }
}
template <bool kPush>
__device__ __forceinline__ void copy_bytes(uint8_t* to, const uint8_t* from, int64_t bytes) {
  const uint64_t lies = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | static_cast<uint64_t>(bytes);
  if (lies % 16 == 0) copy_words<uint4, kPush>(to, from, bytes);
  else if (lies % 4 == 0) copy_words<uint32_t, kPush>(to, from, bytes);
  else if (lies % 2 == 0) copy_words<uint16_t, kPush>(to, from, bytes);
  else copy_words<uint8_t, kPush>(to, from, bytes);
}

// M: the program of the fold. S: defines kWorld, kTwoShot, kMade (number of results), and the Element of rows.
template <class M, Lie kLie, class S>
struct SumFold {
  using Params = SumFoldParams<typename M::Params, M::kOperands, S::kMade>;
  using Bits = typename Stored<typename S::Element>::Bits;
  static constexpr int kInputs = M::kOperands - S::kMade, kVec = 16 / sizeof(Bits);
  static constexpr int64_t kElement = sizeof(Bits);  // bytes of an element of a row; a constant, because divisions are slow
  // Terms of a row that a thread loads before the round begins, and terms whose lines it polls together.
  static constexpr int kHeldTerms = S::kTwoShot ? 1 : M::kThreads * M::kRows <= 256 ? 4 : 2;
  static constexpr int kPolled = S::kWorld > 4 || S::kTwoShot ? 1 : S::kWorld > 2 ? 2 : kHeldTerms;
  struct alignas(16) Shared {
    RoundShared round;
    typename M::Params fold;

    __device__ uint8_t* sums() { return reinterpret_cast<uint8_t*>(this + 1); }
  };
  static_assert(sizeof(Shared) <= kRoundShared + (sizeof(typename M::Params) + 15) / 16 * 16, "what launches reserve");

  const Params& p;
  Shared& shared;
  Round round;
  int64_t valid, slots;  // valid rows; maximum number of rows that this rank folds
  uint4 ahead[kHeldTerms];  // terms of this thread for the first row of its CTA

  __device__ explicit SumFold(const Params& params, int64_t fold_bytes)
      : p(params), shared(*reinterpret_cast<Shared*>(dynamic_shared() + fold_bytes)), round(params.round, shared.round) {}

  __device__ void run() {
    copy_fold();
    wait_for_previous();
    allow_dependents();  // the next kernel waits for the end of this one, after which all earlier kernels have ended
    valid = valid_here();
    slots = S::kTwoShot ? (p.rows + S::kWorld - 1) / S::kWorld : p.rows;
    load_ahead();
    if (!round.begin()) return fill();
    const bool met = p.flagged ? sum_by_lines() : meet_by_places();
    if constexpr (S::kTwoShot) {
      if (met) fold_all(round.parity() ^ 1);
      const bool met_again = met && share();
      round.end(blockIdx.x == 0 ? sent() : 0);
      if (!met_again) return fill();
      each_slot([&](int64_t slot) { take(slot); });
    } else {
      round.end(blockIdx.x == 0 ? sent() : 0);  // its stores are in flight while the rows are folded
      met ? fold_all(0) : fill();
    }
  }

 private:
  __device__ int64_t valid_here() const {
    if (p.num_valid == nullptr) return p.rows;
    const int64_t counted = *p.num_valid;
    if (counted < p.before || counted > p.all) return 0;
    return min(counted - p.before, p.rows);
  }
  __device__ uint64_t facts() const {
    const uint64_t word = p.alike == nullptr ? 0 : *p.alike;
    return word << 32 | static_cast<uint32_t>(valid);
  }
  __device__ void copy_fold() const {
    static_assert(sizeof(typename M::Params) % 4 == 0, "whole words");
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(&p.fold);
    uint32_t* const to = reinterpret_cast<uint32_t*>(&shared.fold);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(typename M::Params) / 4); i += blockDim.x) to[i] = from[i];
  }

  // Visits the slots of this CTA: groups of kRows adjacent slots, which the fold takes together.
  template <class F>
  __device__ void each_slot(F step) const {
    for (int64_t first = int64_t{blockIdx.x} * M::kRows; first < slots; first += int64_t{gridDim.x} * M::kRows)
      for (int64_t slot = first; slot < slots && slot < first + M::kRows; ++slot) step(slot);
  }
  // Maximum number of bytes from this launch to each peer: invalid rows are not sent.
  __device__ int64_t sent() const {
    if constexpr (!S::kTwoShot) return valid * p.row_bytes;
    int64_t made = 0;
    for (const Made& one : p.made) made += one.travels ? int64_t{one.count} * one.size : 0;
    return valid / S::kWorld * (p.row_bytes + made);
  }
  __device__ bool meet_by_places() const {
    each_slot([&](int64_t slot) { push_terms(slot); });
    return round.meet(facts());
  }
  // Small rounds of one step: rows are sent in flagged lines, and are added as they arrive.
  __device__ bool sum_by_lines() const {
    if constexpr (!S::kTwoShot) {
      const uint64_t alike = facts();
      round.tell(alike);
      each_slot([&](int64_t slot) { push_lines(slot); });
      round.note_begun();
      load_beside();
      turn(0, 0);  // here, because no later step hides its time
      __syncthreads();  // all data are sent before any thread waits
      int64_t number = 0;
      each_slot([&](int64_t slot) { add_lines(slot, number++); });
      round.hear_the_rest();
    }
    return round.met();
  }
  __device__ int64_t row_of(int64_t slot, int rank) const { return S::kTwoShot ? slot * S::kWorld + rank : slot; }

  __device__ void push_terms(int64_t slot) const {
    for (int hop = 1; hop < S::kWorld; ++hop) {
      const int to = round.peer(hop);
      const int64_t row = row_of(slot, to);
      if (row < valid) copy_bytes<true>(round.place(to, p.round.rank) + slot * p.pitch, p.x + row * p.step, p.row_bytes);
    }
  }

  __device__ void push_lines(int64_t slot) const {
    if (slot >= valid) return;
    each_term(slot, [&](int i, uint4 value) {
#pragma unroll
      for (int hop = 1; hop < S::kWorld; ++hop) round.send(round.peer(hop), slot * pieces() + i, value);
    });
  }
  // Loads of the first row are in flight while the round begins.
  __device__ void load_ahead() {
    const int64_t slot = int64_t{blockIdx.x} * M::kRows;
    if (S::kTwoShot || !p.flagged || slot >= valid) return;
#pragma unroll
    for (int k = 0; k < kHeldTerms; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i < pieces()) ahead[k] = term(slot, i);
    }
  }
  __device__ static bool is_first(int64_t slot) { return slot == int64_t{blockIdx.x} * M::kRows; }  // of this CTA
  __device__ int pieces() const { return static_cast<int>(p.row_bytes / 16); }
  // Calls step(index, value) for the 16-byte chunks of this thread.
  template <class F>
  __device__ void each_term(int64_t slot, F step) const {
    const bool loaded = is_first(slot);
#pragma unroll
    for (int k = 0; k < kHeldTerms; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      if (i < pieces()) step(i, loaded ? ahead[k] : term(slot, i));
    }
    for (int i = static_cast<int>(threadIdx.x + kHeldTerms * blockDim.x); i < pieces(); i += static_cast<int>(blockDim.x))
      step(i, term(slot, i));
  }
  // 16 bytes of a row of this rank.
  __device__ uint4 term(int64_t row, int i) const {
    const uint8_t* const from = p.x + row * p.step + 16 * i;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return __ldcg(reinterpret_cast<const uint4*>(from));
    Pack<typename S::Element, kVec> found;
#pragma unroll
    for (int k = 0; k < kVec; ++k) found.set_bits(k, reinterpret_cast<const Bits*>(from)[k]);
    return make_uint4(found.word[0], found.word[1], found.word[2], found.word[3]);
  }
  // number: of the slot among those of this CTA.
  __device__ void add_lines(int64_t slot, int64_t number) const {
    if (slot >= valid) return;
    uint4* const to = sum_at(slot, number);
    const int step = static_cast<int>(blockDim.x);
    int first = static_cast<int>(threadIdx.x);
    if (is_first(slot)) {
#pragma unroll
      for (int k = 0; k < kHeldTerms; k += kPolled, first += kPolled * step)
        add_some(slot, first, to, [&](int i) { return ahead[k + i]; });
    }
    for (; first < pieces(); first += kPolled * step)
      add_some(slot, first, to, [&](int i) {
        return first + i * step < pieces() ? term(slot, first + i * step) : make_uint4(0, 0, 0, 0);
      });
  }
  // Adds the chunks from `first` on that this thread adds together. to: the sum of the slot. mine(i): this rank's term of chunk i.
  template <class F>
  __device__ __forceinline__ void add_some(int64_t slot, int first, uint4* to, F mine) const {
    constexpr int kStep = M::kThreads * M::kRows;  // threads of a CTA
    const int there = min(kPolled, (pieces() - first + kStep - 1) / kStep);
    if (first >= pieces()) return;
    uint4 lines[kPolled][S::kWorld];
#pragma unroll
    for (int k = 0; k < kPolled; ++k) {
      const uint4 own = mine(k);
#pragma unroll
      for (int r = 0; r < S::kWorld; ++r) lines[k][r] = own;
    }
    round.receive_all(lines, slot * pieces() + first, kStep, there);
#pragma unroll
    for (int k = 0; k < kPolled; ++k)
      if (k < there) to[first + k * kStep] = sum_of(lines[k]);
  }
  // Buffer for the sum of a row of this rank until the fold: in shared memory, the rows of a CTA are contiguous.
  __device__ uint4* sum_at(int64_t slot, int64_t number) const {
    uint8_t* const to = p.held == 0 ? round.place(p.round.rank, p.round.rank) + slot * p.pitch : shared.sums() + number * p.pitch;
    return reinterpret_cast<uint4*>(to);
  }
  // Prefetches the other inputs of the first row to L1, because the fold reads them together with the sum.
  __device__ void load_beside() const {
    const int64_t row = int64_t{blockIdx.x} * M::kRows;
    if (row >= valid) return;
#pragma unroll
    for (int k = 1; k < kInputs; ++k) {
      const uint8_t* const from = static_cast<const uint8_t*>(p.fold.operand[k]) + row * p.fold.stride[k][0] * p.size[k];
      const int64_t bytes = min(p.fold.span[k] * p.size[k], p.row_bytes / kElement * p.size[k]);
      for (int64_t i = int64_t{threadIdx.x} * 128; i < bytes; i += int64_t{blockDim.x} * 128) load_to_l1(from + i);
    }
  }

  // Adds the terms of a row into this rank's own place.
  __device__ void add(int64_t slot) const {
    const int64_t row = row_of(slot, p.round.rank);
    if (row >= valid) return;
    const uint8_t* terms[S::kWorld];
#pragma unroll
    for (int r = 0; r < S::kWorld; ++r)
      terms[r] = r == p.round.rank ? p.x + row * p.step : round.place(p.round.rank, r) + slot * p.pitch;
    uint8_t* const to = round.place(p.round.rank, p.round.rank) + slot * p.pitch;
    const bool wide = (reinterpret_cast<uintptr_t>(p.x + row * p.step) | static_cast<uint64_t>(p.row_bytes)) % 16 == 0;
    if (wide) add_vectors(to, terms);
    else add_elements(to, terms);
  }
  __device__ void add_vectors(uint8_t* to, const uint8_t* const (&terms)[S::kWorld]) const {
    constexpr int kAtOnce = S::kWorld <= 4 ? 8 / S::kWorld : 1;
    const int count = static_cast<int>(p.row_bytes / 16), step = static_cast<int>(blockDim.x);
    for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * step) {
      uint4 lines[kAtOnce][S::kWorld];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
        for (int r = 0; r < S::kWorld; ++r)
          if (first + k * step < count) lines[k][r] = __ldcg(reinterpret_cast<const uint4*>(terms[r]) + first + k * step);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (first + k * step < count) reinterpret_cast<uint4*>(to)[first + k * step] = sum_of(lines[k]);
    }
  }
  // The sum of 16 bytes of each rank.
  __device__ static uint4 sum_of(const uint4 (&lines)[S::kWorld]) {
    Pack<typename S::Element, kVec> term[S::kWorld], sum;
#pragma unroll
    for (int r = 0; r < S::kWorld; ++r)
      term[r].word[0] = lines[r].x, term[r].word[1] = lines[r].y, term[r].word[2] = lines[r].z, term[r].word[3] = lines[r].w;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      float total = Stored<typename S::Element>::load(term[0].bits(k));
#pragma unroll
      for (int r = 1; r < S::kWorld; ++r) total = __fadd_rn(total, Stored<typename S::Element>::load(term[r].bits(k)));
      sum.set_bits(k, Stored<typename S::Element>::store(total));
    }
    return make_uint4(sum.word[0], sum.word[1], sum.word[2], sum.word[3]);
  }
  __device__ void add_elements(uint8_t* to, const uint8_t* const (&terms)[S::kWorld]) const {
    for (int64_t i = threadIdx.x; i < p.row_bytes / static_cast<int64_t>(sizeof(Bits)); i += blockDim.x) {
      float total = Stored<typename S::Element>::load(__ldcg(reinterpret_cast<const Bits*>(terms[0]) + i));
      for (int r = 1; r < S::kWorld; ++r)
        total = __fadd_rn(total, Stored<typename S::Element>::load(__ldcg(reinterpret_cast<const Bits*>(terms[r]) + i)));
      reinterpret_cast<Bits*>(to)[i] = Stored<typename S::Element>::store(total);
    }
  }

  // parity_of_made: parity of the places in which results wait to be sent.
  __device__ void fold_all(int parity_of_made) const {
    const int64_t count = folded();
    int64_t number = 0;
    for (int64_t first = int64_t{blockIdx.x} * M::kRows; first < count; first += int64_t{gridDim.x} * M::kRows, ++number) {
      if (!p.flagged)
        for (int64_t slot = first; slot < count && slot < first + M::kRows; ++slot) add(slot);
      if (!p.flagged || number > 0) {
        turn(number, parity_of_made);
        __syncthreads();
      }
      Fold<M, kLie>(shared.fold).run();
      __syncthreads();
    }
  }
  // Number of rows that this rank folds.
  __device__ int64_t folded() const {
    const int own = p.round.rank;
    return S::kTwoShot ? (valid > own ? (valid - own + S::kWorld - 1) / S::kWorld : 0) : valid;
  }
  // Prepares the fold of a group of adjacent slots. The fold derives its rows from its block index; shifted pointers make it take
  // later rows. number: of the group among those of this CTA.
  __device__ void turn(int64_t number, int parity_of_made) const {
    const int k = threadIdx.x;
    const int64_t later = number * gridDim.x * M::kRows, count = folded();
    if (k == 0) shared.fold.rows = count - later;
    if (k >= M::kOperands) return;
    uint8_t* const sums = round.place(p.round.rank, p.round.rank);
    uint8_t* base = static_cast<uint8_t*>(p.fold.operand[k]);
    int64_t step = p.fold.stride[k][0];
    if (k == 0) {
      base = sums, step = p.pitch / kElement;
      if (p.held != 0) base = shared.sums() - (int64_t{blockIdx.x} * M::kRows + later - number * M::kRows) * p.pitch;
    } else if (S::kTwoShot && k >= kInputs) {
      const Made& one = p.made[k - kInputs];
      uint8_t* const made = sums + (int64_t{parity_of_made} - round.parity()) * p.round.world * p.round.place;
      if (one.travels) base = made + one.offset, step = one.count;
    }
    shared.fold.operand[k] = base + later * step * p.size[k];
    shared.fold.stride[k][0] = step;
    shared.fold.span[k] = (k == 0 ? count * step : p.fold.span[k]) - later * step;
  }

  // The second step: sends the results. Returns whether all ranks sent theirs.
  __device__ bool share() const {
    round.next();
    each_slot([&](int64_t slot) {
      if (row_of(slot, p.round.rank) >= valid) return;
      for (int hop = 1; hop < S::kWorld; ++hop) {
        for (const Made& one : p.made) {
          const int64_t at = one.offset + slot * one.count * one.size;
          if (one.travels)
            copy_bytes<true>(round.place(round.peer(hop), p.round.rank) + at, round.place(p.round.rank, p.round.rank) + at,
                             int64_t{one.count} * one.size);
        }
      }
    });
    return round.meet(facts());
  }
  __device__ void take(int64_t slot) const {
    for (int source = 0; source < S::kWorld; ++source) {
      const int64_t row = row_of(slot, source);
      if (row >= valid) return;
      for (const Made& one : p.made) {
        if (!one.travels) continue;
        const uint8_t* const from = round.place(p.round.rank, source) + one.offset + slot * one.count * one.size;
        uint8_t* const to = one.to + row * one.step;
        if (one.inner == one.size) {
          copy_bytes<false>(to, from, int64_t{one.count} * one.size);
        } else {
          for (int i = threadIdx.x; i < one.count; i += blockDim.x)
            for (int byte = 0; byte < one.size; ++byte) to[i * one.inner + byte] = __ldcg(from + i * one.size + byte);
        }
      }
    }
  }

  // Fills all rows that this CTA would have written with bytes that mean "no result".
  __device__ void fill() const {
    each_slot([&](int64_t slot) {
      for (const Made& one : p.made) {
        const bool apart = S::kTwoShot && one.travels;
        for (int r = 0; r < (apart ? S::kWorld : 1); ++r) {
          const int64_t row = apart ? row_of(slot, r) : slot;
          if ((S::kTwoShot && !apart ? row_of(slot, p.round.rank) : row) >= valid) continue;
          for (int64_t i = threadIdx.x; i < int64_t{one.count} * one.size; i += blockDim.x)
            one.to[row * one.step + i / one.size * one.inner + i % one.size] = static_cast<uint8_t>(one.fill);
        }
      }
    });
  }
};

}  // namespace opfacade
