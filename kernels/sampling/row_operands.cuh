// The operands of one row of logits: loads and prefetches of four tokens at a time, in their stored form. C::kAnywhere: rows
// may begin at any element; a group is then loaded as single f32 elements, or as the 32-bit words that contain it, which are
// shifted. The binding chooses.
#pragma once
#include "kernels/common/run.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/sampling/order.cuh"
#include "kernels/sampling/sample_params.h"

namespace opfacade {

// Loaded tokens with the values that adjust them.
template <int kCount>
struct Loaded {
  float a[kCount], bias[kCount];
  int32_t count[kCount];
  uint8_t prompt[kCount];
  uint32_t allowed;
};

// Four tokens loaded from aligned operands. Each operand stays in whole words until it is used: unpacking would wait for the
// load and delay the next one.
template <class C>
struct Packed {
  Fetched<typename C::T, 4> x;
  uint32_t allowed, prompt;
  Run<float, 4> bias;
  Run<int32_t, 4> count;
};

// Whether rows have windows; only some kernels support them.
template <class C, class = void>
constexpr bool kIsWindowed = false;
template <class C>
constexpr bool kIsWindowed<C, decltype(void(C::kWindows))> = C::kWindows;

template <class C>
constexpr int kAddedBytes = 4 * sizeof(typename Element<typename C::T>::Bits) + (C::kBitmask ? 4 : 0) + (C::kBias ? 16 : 0);

template <class C>
struct RowOperands {
  using Bits = typename Element<typename C::T>::Bits;
  const SampleParams& p;
  uint32_t row;  // a grid has fewer than 2^31 rows
  const Bits* logits;
  bool aligned;  // groups of the row are aligned
  uint32_t window_first, window_end;  // for a row with a window

  __device__ __forceinline__ RowOperands(const SampleParams& p, uint32_t row) : p(p), row(row) {
    int64_t from = row;
    if constexpr (C::kIndices) {
      from = p.indices[row];
      from = from >= 0 && from < p.num_logits ? from : 0;
    }
    logits = static_cast<const Bits*>(p.logits) + from * p.logits_row;
    aligned = reinterpret_cast<uintptr_t>(logits) % (4 * sizeof(Bits)) == 0;
    if constexpr (kIsWindowed<C>) {
      window_first = static_cast<uint32_t>(min(max(p.starts[row], 0), p.vocab));
      window_end = static_cast<uint32_t>(min(max(p.ends[row], 0), p.vocab));
    }
  }

  // End of the row's tokens.
  __device__ __forceinline__ uint32_t vocab() const {
    if constexpr (kIsWindowed<C>) return window_end;
    return static_cast<uint32_t>(p.vocab);
  }

  // Loads one token, or the four of a group; -inf past the vocabulary.
  template <int kCount>
  __device__ __forceinline__ void load(uint32_t token, Loaded<kCount>& to) const {
    const AdjustParams& by = p.adjust;
    if (kCount == 4 && aligned && token + 4 <= vocab()) {
      const Fetched<typename C::T, 4> four = *reinterpret_cast<const Fetched<typename C::T, 4>*>(logits + token);
#pragma unroll
      for (int j = 0; j < kCount; ++j) to.a[j] = four.at(j);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        to.a[j] = token + j < vocab() ? Element<typename C::T>::load(logits[token + j]) : minus_infinity();
    }
    if constexpr (C::kBitmask)
      to.allowed = token < vocab() ? static_cast<uint32_t>(by.bitmask[row * by.bitmask_row + token / 32]) >> token % 32 : 0;
    if constexpr (C::kBias) few(by.bias + row * by.bias_row, token, to.bias);
    if constexpr (C::kPenalties) {
      few(by.prompt_mask + row * by.prompt_mask_row, token, to.prompt);
      few(by.output_counts + row * by.output_counts_row, token, to.count);
    }
  }

  // End of the groups that can be loaded as whole words; `first` if operands are not aligned.
  __device__ __forceinline__ uint32_t whole(uint32_t first, uint32_t end) const {
    const AdjustParams& by = p.adjust;
    bool is = aligned;
    if constexpr (C::kAnywhere) is = !straddles() || logits > static_cast<const Bits*>(p.logits);  // else a word begins before the tensor
    if constexpr (C::kBias) is = is && reinterpret_cast<uintptr_t>(by.bias + row * by.bias_row) % 16 == 0;
    if constexpr (C::kPenalties) {
      is = is && reinterpret_cast<uintptr_t>(by.prompt_mask + row * by.prompt_mask_row) % 4 == 0;
      is = is && reinterpret_cast<uintptr_t>(by.output_counts + row * by.output_counts_row) % 16 == 0;
    }
    uint32_t groups = vocab() / 4 * 4;
    if constexpr (C::kAnywhere) groups = (vocab() - (straddles() ? 1 : 0)) / 4 * 4;
    return is ? max(first, min(end, groups)) : first;
  }

  // Loads the groups from `from` on, `step` tokens apart, before `stop`, the result of `whole`.
  template <int kCount>
  __device__ __forceinline__ void fetch(uint32_t from, uint32_t step, uint32_t stop, Packed<C> (&to)[kCount]) const {
    if constexpr (C::kAnywhere) fetch_logits_anywhere(from, step, stop, to);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (from + step * i >= stop) continue;
      fetch_added(from, step * i, to[i]);
      fetch_counts(from, step * i, to[i]);
    }
  }
  // The same without the operands of penalties.
  template <int kCount>
  __device__ __forceinline__ void fetch_added(uint32_t from, uint32_t step, uint32_t stop, Packed<C> (&to)[kCount]) const {
    if constexpr (C::kAnywhere) fetch_logits_anywhere(from, step, stop, to);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (from + step * i < stop) fetch_added(from, step * i, to[i]);
  }
  // Loads the group `further` tokens after `from`. The offsets are added to pointers, so that one register serves many groups.
  __device__ __forceinline__ void fetch_counts(uint32_t from, uint32_t further, Packed<C>& to) const {
    const AdjustParams& by = p.adjust;
    if constexpr (C::kPenalties) {
      to.prompt = *reinterpret_cast<const uint32_t*>(by.prompt_mask + row * by.prompt_mask_row + from + further);
      to.count = *reinterpret_cast<const Run<int32_t, 4>*>(by.output_counts + row * by.output_counts_row + from + further);
    }
  }
  // Prefetches the cache lines of one group that `fetch_added` reads.
  __device__ __forceinline__ void ask_added(uint32_t from, uint32_t further) const {
    const AdjustParams& by = p.adjust;
    prefetch_l2(logits + from + further);
    if constexpr (C::kBitmask) prefetch_l2(by.bitmask + row * by.bitmask_row + from / 32 + further / 32);
    if constexpr (C::kBias) prefetch_l2(by.bias + row * by.bias_row + from + further);
  }
  // Prefetches the logits and the mask of tokens `from` to `to`, one warp per operand.
  __device__ __forceinline__ void ask(uint32_t from, uint32_t to) const {
    const int32_t* const mask = p.adjust.bitmask + row * p.adjust.bitmask_row;
    if (thread() / 32 == 0) ask_of(logits + from, logits + to);
    if (C::kBitmask && thread() / 32 == 1) ask_of(mask + from / 32, mask + to / 32);
  }
  // The same for the operands of penalties.
  __device__ __forceinline__ void ask_counts(uint32_t from, uint32_t to) const {
    if constexpr (!C::kPenalties) return;
    const AdjustParams& by = p.adjust;
    const uint32_t warp = thread() / 32;
    if (warp == 2) ask_of(by.prompt_mask + row * by.prompt_mask_row + from, by.prompt_mask + row * by.prompt_mask_row + to);
    if (warp == 3) ask_of(by.output_counts + row * by.output_counts_row + from, by.output_counts + row * by.output_counts_row + to);
  }
  // Prefetches the penalty counts of one token.
  __device__ __forceinline__ void ask_counts(uint32_t token) const {
    if constexpr (!C::kPenalties) return;
    const AdjustParams& by = p.adjust;
    prefetch_l2(by.prompt_mask + row * by.prompt_mask_row + token);
    prefetch_l2(by.output_counts + row * by.output_counts_row + token);
  }
  __device__ __forceinline__ void unpack(uint32_t token, const Packed<C>& from, Loaded<4>& to) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to.a[j] = from.x.at(j);
      if constexpr (C::kBias) to.bias[j] = from.bias.e[j];
      if constexpr (C::kPenalties) to.count[j] = from.count.e[j], to.prompt[j] = static_cast<uint8_t>(from.prompt >> 8 * j);
    }
    if constexpr (C::kBitmask) to.allowed = from.allowed >> token % 32;
  }

 private:
  // Whether 32-bit words contain tokens of two groups.
  __device__ __forceinline__ bool straddles() const { return sizeof(Bits) == 2 && reinterpret_cast<uintptr_t>(logits) % 4 != 0; }

  // Loads the logits of groups of any alignment.
  template <int kCount>
  __device__ __forceinline__ void fetch_logits_anywhere(uint32_t from, uint32_t step, uint32_t stop, Packed<C> (&to)[kCount]) const {
    constexpr int kAtOnce = kCount % 4 == 0 ? 4 : kCount % 3 == 0 ? 3 : kCount % 2 == 0 ? 2 : 1;  // registers are scarce
#pragma unroll
    for (int i = 0; i < kCount; i += kAtOnce) fetch_together<kAtOnce>(from + step * i, step, stop, to + i);
  }
  // Issues all loads before it waits for the first.
  template <int kCount>
  __device__ __forceinline__ void fetch_together(uint32_t from, uint32_t step, uint32_t stop, Packed<C>* to) const {
    if constexpr (sizeof(Bits) == 4) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (from + step * i >= stop) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i].x.words.e[j] = reinterpret_cast<const uint32_t*>(logits + from + step * i)[j];
      }
    } else {
      const bool late = straddles();
      uint32_t words[kCount][3] = {};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (from + step * i >= stop) continue;
        const uint32_t* const at = reinterpret_cast<const uint32_t*>(logits + from + step * i - (late ? 1 : 0));
        words[i][0] = at[0], words[i][1] = at[1];
        if (late) words[i][2] = at[2];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) to[i].x.words.e[j] = late ? words[i][j] >> 16 | words[i][j + 1] << 16 : words[i][j];
      }
    }
  }
  // Loads the group `further` tokens after `from`, without the operands of penalties and without unaligned logits.
  __device__ __forceinline__ void fetch_added(uint32_t from, uint32_t further, Packed<C>& to) const {
    const AdjustParams& by = p.adjust;
    if constexpr (!C::kAnywhere) to.x = *reinterpret_cast<const Fetched<typename C::T, 4>*>(logits + from + further);
    if constexpr (C::kBitmask) to.allowed = static_cast<uint32_t>((by.bitmask + row * by.bitmask_row + from / 32)[further / 32]);
    if constexpr (C::kBias) to.bias = *reinterpret_cast<const Run<float, 4>*>(by.bias + row * by.bias_row + from + further);
  }
  // Prefetches the whole 16-byte units between both addresses.
  __device__ __forceinline__ static void ask_of(const void* from, const void* to) {
    const uintptr_t first = (reinterpret_cast<uintptr_t>(from) + 15) & ~uintptr_t{15}, end = reinterpret_cast<uintptr_t>(to) & ~uintptr_t{15};
    if (first < end) prefetch_l2_span(reinterpret_cast<const void*>(first), static_cast<uint32_t>(end - first), thread() % 32);
  }

  // Reads the values of one token or of a group, in one access if a group is aligned; 0 past the vocabulary.
  template <class T, int kCount>
  __device__ __forceinline__ void few(const T* from, uint32_t token, T (&to)[kCount]) const {
    if (kCount == 4 && reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0 && token + 4 <= vocab()) {
      const Run<T, 4> four = *reinterpret_cast<const Run<T, 4>*>(from + token);
#pragma unroll
      for (int j = 0; j < kCount; ++j) to[j] = four.e[j];
      return;
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = token + j < vocab() ? from[token + j] : T(0);
  }
};

}  // namespace opfacade
