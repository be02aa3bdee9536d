// A pass over a row for a few positions of its order: sums, in f32, the mass of all tokens and the mass before each position.
// The comparison with a position is exact, and an error bound of the sums tells whether they decide.
#pragma once
#include "kernels/sampling/front.cuh"
#include "kernels/sampling/likelihood.cuh"

namespace opfacade {

// Masses; the most likely token has mass 1.
struct Masses {
  float before[kPlaces], all;
  bool tied;  // whether some token is close to a position
};

enum class Verdict { kKept, kLost, kUnsure };

template <class C>
class RoughPass {
 public:
  // top: octaves of the most likely token.
  __device__ __forceinline__ RoughPass(const Row<C>& row, const Noted* places, float top) : row_(row), places_(places), top_(top) {
    scale_ = C::kTemperature ? __fdiv_rn(kLog2E, row.temperature) : kLog2E;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      x_[i] = places[i].x, group_[i] = token_of(places[i].place) / 4;
    }
    ties_ = kTies && row.temperature != 1.f;
  }

  // Sums the part of this thread. The next chunk is loaded while one is added.
  __device__ __forceinline__ void run(uint32_t base, uint32_t end, Masses& sums) const {
    const uint32_t stop = row_.whole(base, end), first = base;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) sums.before[i] = 0.f;
    sums.all = 0.f, sums.tied = false;
    Packed<C> next[kAhead];
    fetch(base, stop, next);
    if (thread() < kPlaces) add_equal(first, end, sums);
#pragma unroll 1
    while (base < end) {
      if (base < stop) {
        Packed<C> here[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) here[i] = next[i];
        fetch(base + kChunk, stop, next);
        if (base + kChunk <= stop && !has_place(base)) add_whole(base, here, sums);
        else add_chunk(base, stop, here, sums);
        base = min(stop, base + kChunk);
      } else {
        add_narrow(base + 4 * thread(), end, sums), base += kGroupStep;
      }
    }
    if constexpr (kTies)
      if (ties_ && __syncthreads_or(sums.tied)) add_tied(first, end, sums);
  }

  // The verdict is the same in every thread of the row. The error bound uses the number of additions per thread, slice /
  // kSampleThreads.
  __device__ __forceinline__ Verdict verdict(int place, float before, float all, float share) const {
    const float octaves = fmaf(places_[place].x, scale_, -top_);
    const bool usual = fabsf(top_) < 4096.f && scale_ < 0x1p100f && scale_ > 0x1p-13f && octaves > -64.f;
    if (!usual) return Verdict::kUnsure;
    const float error = 0x1p-17f + (fabsf(top_) + 64.f) * 0x1p-22f + static_cast<float>(row_.p.slice) * (0x1p-24f / kSampleThreads);
    const float middle = fmaxf(share, 0.f) * all, margin = 2.f * error * all;
    if (before < middle - margin) return Verdict::kKept;
    return before > middle + margin ? Verdict::kLost : Verdict::kUnsure;
  }

 private:
  static constexpr int kAhead = (sizeof(typename Row<C>::Bits) == 2 ? 4 : 2) / (C::kBitmask ? 2 : 1);  // groups whose loads are in flight together
  static constexpr uint32_t kChunk = kAhead * kGroupStep;
  static constexpr float kFar = 1024.f;  // octaves below the most likely token at which a mass is 0
  // Different f32 logits may have equal quotients; 16-bit logits are too far apart.
  static constexpr bool kTies = C::kTemperature && sizeof(typename Row<C>::Bits) == 4;

  // Groups whose loads are in flight together.
  __device__ __forceinline__ void fetch(uint32_t base, uint32_t stop, Packed<C> (&to)[kAhead]) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) to[i] = {};
    row_.fetch(base + 4 * thread(), kGroupStep, stop, to);
  }
  // Whether the chunk contains the token of a position.
  __device__ __forceinline__ bool has_place(uint32_t base) const {
    bool any = false;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) any |= group_[i] - base / 4 < kChunk / 4;
    return any;
  }
  // Limit that a logit must exceed to precede a position. Equal logits in groups before the position's token also precede it,
  // so there the limit is the next smaller number.
  __device__ __forceinline__ void limits(uint32_t token, float (&limit)[kPlaces]) const {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) limit[i] = token / 4 < group_[i] ? below(x_[i]) : x_[i];
  }
  // Adds a whole chunk without a position's token.
  __device__ __forceinline__ void add_whole(uint32_t base, const Packed<C> (&here)[kAhead], Masses& sums) const {
    float limit[kPlaces];
    limits(base, limit);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = base + 4 * thread() + kGroupStep * i;
      Loaded<4> group;
      row_.unpack(token, here[i], group);
      add(token, group, limit, sums);
    }
  }
  // Adds the groups before `stop`.
  __device__ __forceinline__ void add_chunk(uint32_t base, uint32_t stop, const Packed<C> (&here)[kAhead], Masses& sums) const {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t token = base + 4 * thread() + kGroupStep * i;
      if (token >= stop) continue;
      Loaded<4> group;
      float limit[kPlaces];
      row_.unpack(token, here[i], group);
      limits(token, limit);
      add(token, group, limit, sums);
    }
  }
  // Adds one group, of any alignment.
  __device__ __forceinline__ void add_narrow(uint32_t token, uint32_t end, Masses& sums) const {
    if (token >= end) return;
    Loaded<4> group;
    float limit[kPlaces];
    row_.load(token, group);
    limits(token, limit);
    add(token, group, limit, sums);
  }

  // Adds the masses of a group.
  __device__ __forceinline__ void add(uint32_t token, Loaded<4>& group, const float (&limit)[kPlaces], Masses& sums) const {
    row_.change(token, group);
    float mass[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) mass[j] = mass_of(group.a[j]);
    sums.all += mass[0] + mass[1] + (mass[2] + mass[3]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i)
        if (group.a[j] > limit[i]) sums.before[i] += mass[j];
    }
    if (!kTies || !ties_) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) sums.tied |= is_near(group.a[j], x_[i]);
    }
  }
  __device__ __forceinline__ float mass_of(float x) const { return exp2_approx(fmaxf(fmaf(x, scale_, -top_), -kFar)); }
  static __device__ __forceinline__ bool is_near(float x, float other) { return fabsf(x - other) < fmaf(fabsf(other), 0x1p-22f, 0x1p-120f) && x != other; }
  // Corrects the sums for tokens close to a position, whose quotients may be equal. This is a separate pass, because few parts
  // of rows have such tokens.
  __device__ __forceinline__ void add_tied(uint32_t first, uint32_t end, Masses& sums) const {
    row_.each_group(first, end, [&](uint32_t token, const float (&a)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll 1
        for (int i = 0; i < kPlaces; ++i) {
          if (!is_near(a[j], places_[i].x)) continue;
          const float tied = often(places_[i], a[j], token + j) * mass_of(a[j]);
#pragma unroll
          for (int at = 0; at < kPlaces; ++at) sums.before[at] += at == i ? tied : 0.f;
        }
      }
    });
  }
  // The correction, -1, 0 or 1 times, that makes a token count if and only if it precedes the position, given equal quotients.
  __device__ __forceinline__ float often(const Noted& place, float x, uint32_t token) const {
    if (row_.settled(x) != row_.settled(place.x)) return 0.f;
    return (token < token_of(place.place) ? 1.f : 0.f) - (x > place.x ? 1.f : 0.f);
  }
  // Adds the mass of equal logits that precede a position's token within its group. One thread per position.
  __device__ __forceinline__ void add_equal(uint32_t first, uint32_t end, Masses& sums) const {
    const uint32_t place = thread(), placed = token_of(places_[place].place), token = placed / 4 * 4;
    if (token < first || token >= end) return;
    Loaded<4> group;
    row_.load(token, group);
    row_.change(token, group);
    const float x = places_[place].x;
    float count = 0.f;
#pragma unroll
    for (int j = 0; j < 3; ++j) count += token + j < placed && group.a[j] == x ? 1.f : 0.f;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) sums.before[i] += place == i ? count * mass_of(x) : 0.f;
  }
  // The next smaller number.
  static __device__ __forceinline__ float below(float x) { return x == 0.f ? -0x1p-149f : of_ordered(ordered(x) - 1); }

  const Row<C>& row_;
  const Noted* const places_;
  float top_, scale_, x_[kPlaces];
  uint32_t group_[kPlaces];
  bool ties_;
};

}  // namespace opfacade
