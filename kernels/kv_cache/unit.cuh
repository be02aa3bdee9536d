// Partition of a head into units. A lane transforms one unit at a time: two runs of neighbours, each one load and store of up
// to 16 bytes, half a head apart. Both elements of a rotated pair are in one lane in either RoPE layout, and neighbouring lanes
// access neighbouring memory.
#pragma once
#include "kernels/ptx/float_math.cuh"
#include "kernels/ptx/fp8.cuh"
#include "kernels/common/run.cuh"

namespace opfacade {

enum class Rope { kNone, kInterleaved, kHalf };

// Keeps the load at this place; the compiler would move it down to the first use of its value.
__device__ __forceinline__ void keep_load_here(float& x) {
  uint32_t bits = __float_as_uint(x);
  asm volatile("" : "+r"(bits));
  x = __uint_as_float(bits);
}

struct Unit {
  int a;  // first elements of its two runs
  int b;
  bool rotates;
};

// The first kTurned of the kUnits units are rotated.
template <class C, bool kRotate, bool kWide>
struct UnitCut {
  static constexpr int kRotated = kRotate ? C::kRotated : 0, kRest = C::kHeadDim - kRotated;
  static constexpr bool fits(int run) { return kRotated % (2 * run) == 0 && kRest % (2 * run) == 0; }
  static constexpr int longest(int run) { return run == 1 || fits(run) ? run : longest(run / 2); }
  static constexpr int kRun = kWide ? longest(16 / sizeof(typename Element<typename C::New>::Bits)) : 1;
  static constexpr int kTurned = kRotated / (2 * kRun), kKept = (kRest + 2 * kRun - 1) / (2 * kRun);
  static constexpr int kUnits = kTurned + kKept;
  static constexpr bool kNeighbours = C::kRope == Rope::kInterleaved && kRun == 1;  // a run contains no whole pair

  static __device__ __forceinline__ Unit unit(int u) {
    if (u >= kTurned) {
      const int a = kRotated + (u - kTurned) * kRun;
      return {a, a + kKept * kRun, false};
    }
    return kNeighbours ? Unit{2 * u, 2 * u + 1, true} : Unit{u * kRun, (kTurned + u) * kRun, true};
  }
  // The pair of angles of element k of a run, as in Rotation.
  static __device__ __forceinline__ int pair(const Unit& unit, int k) {
    if (C::kRope == Rope::kHalf || kRun == 1) return (C::kRope == Rope::kHalf ? unit.a : unit.a / 2) + k;
    return k < kRun / 2 ? unit.a / 2 + k : unit.b / 2 + k - kRun / 2;
  }
  // With an odd number of units, the last one is half a unit.
  static __device__ __forceinline__ bool has_b(const Unit& unit) { return kRest % (2 * kRun) == 0 || unit.b < C::kHeadDim; }
};

// The angles of a unit's pairs: (x, y) becomes (x cos - y sin, y cos + x sin). 16-bit angles are converted exactly.
template <class C, class Cut>
struct Rotation {
  using Angle = Element<typename C::Angle>;
  using Bits = typename Angle::Bits;
  static constexpr int kPairs = Cut::kRun;
  static constexpr bool kHalf = C::kRope == Rope::kHalf;
  float cosines[kPairs];
  float sines[kPairs];

  template <int kCount>
  static __device__ __forceinline__ void read(const Bits* at, float* out) {
    constexpr int kMost = 16 / sizeof(Bits), kVec = kCount < kMost ? kCount : kMost;
#pragma unroll
    for (int i = 0; i < kCount; i += kVec) {
      const Run<Bits, kVec> run = *reinterpret_cast<const Run<Bits, kVec>*>(at + i);
#pragma unroll
      for (int k = 0; k < kVec; ++k) out[i + k] = Angle::load(run.e[k]);
    }
  }
  static __device__ __forceinline__ void of_pairs(const Bits* angles, const Unit& unit, float* out) {
    if constexpr (kHalf || kPairs == 1) {
      read<kPairs>(angles + (kHalf ? unit.a : unit.a / 2), out);
    } else {
      read<kPairs / 2>(angles + unit.a / 2, out);
      read<kPairs / 2>(angles + unit.b / 2, out + kPairs / 2);
    }
  }

  __device__ __forceinline__ void load(const Bits* angles, const Unit& unit) {
    of_pairs(angles, unit, cosines);
    of_pairs(angles + Cut::kRotated / 2, unit, sines);
  }

  __device__ __forceinline__ void keep_here() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) keep_load_here(cosines[i]), keep_load_here(sines[i]);
  }

  // Every product and sum is rounded separately, so that the bits do not depend on contractions by the compiler. kInverse:
  // rotates in the opposite direction.
  template <bool kInverse>
  __device__ __forceinline__ void apply_rounded(float (&x)[2 * kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float& first = x[kHalf ? i : 2 * i];
      float& second = x[kHalf ? i + kPairs : 2 * i + 1];
      const float sine = kInverse ? -sines[i] : sines[i];
      const float from_first = mul_rounded(first, sine), from_second = mul_rounded(second, sine);
      first = sub_rounded(mul_rounded(first, cosines[i]), from_second);
      second = add_rounded(mul_rounded(second, cosines[i]), from_first);
    }
  }

  __device__ __forceinline__ void apply(float (&x)[2 * kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float& first = x[kHalf ? i : 2 * i];
      float& second = x[kHalf ? i + kPairs : 2 * i + 1];
      const float from_first = first * sines[i], from_second = second * sines[i];
      first = fmaf(first, cosines[i], -from_second);
      second = fmaf(second, cosines[i], from_first);
    }
  }
};

// A run as stored in the cache.
template <class T, int kRun>
struct Stored {
  using Packed = Run<typename Element<T>::Bits, kRun>;
  static constexpr int kBytes = sizeof(typename Element<T>::Bits);
  static __device__ __forceinline__ Packed pack(const float* x) {
    Packed out;
#pragma unroll
    for (int i = 0; i < kRun; ++i) out.e[i] = Element<T>::store(x[i]);
    return out;
  }
};
template <class T, int kRun>
struct StoredBytes {
  using Word = uint16_t;
  using Packed = Run<Word, kRun / 2>;
  static constexpr int kBytes = 1;
  static __device__ __forceinline__ Packed pack(const float* x) {
    Packed out;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) out.e[i] = T::narrow(x[2 * i], x[2 * i + 1]);
    return out;
  }
};
template <class T>
struct StoredBytes<T, 1> {
  using Packed = uint8_t;
  static constexpr int kBytes = 1;
  static __device__ __forceinline__ Packed pack(const float* x) { return static_cast<uint8_t>(T::narrow(x[0], 0.f)); }
};
template <int kRun>
struct Stored<E4M3, kRun> : StoredBytes<E4M3, kRun> {};
template <int kRun>
struct Stored<E5M2, kRun> : StoredBytes<E5M2, kRun> {};

template <class C, class Cut>
__device__ __forceinline__ void store_unit(char* head, const Unit& unit, const float (&x)[2 * Cut::kRun]) {
  using Out = Stored<typename C::Cache, Cut::kRun>;
  *reinterpret_cast<typename Out::Packed*>(head + unit.a * Out::kBytes) = Out::pack(x);
  if (Cut::has_b(unit)) *reinterpret_cast<typename Out::Packed*>(head + unit.b * Out::kBytes) = Out::pack(x + Cut::kRun);
}

}  // namespace opfacade
