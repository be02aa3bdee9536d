// The numbers that codes of any format represent, in f32 arithmetic, and their operands of wgmma.
#pragma once
#include "kernels/common/stored.cuh"
#include "kernels/matmul/code_kinds.cuh"
#include "kernels/matmul/matmul_params.h"

namespace opfacade {

// 2^126: multiplies an f32 with the exponent bits of e2m1 to the number of e2m1
constexpr float kOfE2m1 = 8.507059173023462e37f;

// Eight packed numbers, and with two terms their rounding errors.
struct EightNumbers {
  uint4 pairs, behind;
};

// A config Q of codes. kCode: kind of codes. Scale, Zero: types of the tables. kZero: kind of zero points. kWholeZero: zero
// points are codes. kGroup: elements of k per scale; 0: all of k. kOrdered: weight_groups contains the group of each element.
// kScaled: each number is multiplied by its scale; otherwise sums are. kGlobal: each number is also multiplied by the scale of
// the whole weight. C::T: type of x; C::kTerms: operands whose sum is a number.
template <class C>
struct CodeNumbers {
  using Q = typename C::Codes;
  static constexpr bool kBytes = Q::kCode == Code::kE4M3;
  struct Entry {
    typename Stored<typename Q::Scale>::Bits scale;
    typename Stored<typename Q::Zero>::Bits zero;
  };

  // The numbers of a table entry, as f32. base: 2^23 plus the code that represents 0.
  struct Terms {
    float factor, shift, base;
  };

  // The table entry of a column and a group.
  static __device__ __forceinline__ Entry entry(const MatmulParams& p, int batch, int column, int group) {
    Entry found{0, 0};
    if constexpr (Q::kScaled) found.scale = at<typename Q::Scale>(p.weight_scale, batch, column, group);
    if constexpr (Q::kZero != ZeroPoint::kNone) found.zero = at<typename Q::Zero>(p.weight_zero, batch, column, group);
    return found;
  }
  // The numbers of eight codes, which `of` computes from their index. Those from number `rest` on are after the end of k and
  // become zero, whatever their scale; with kInside there are none.
  template <bool kInside, class Of>
  static __device__ __forceinline__ EightNumbers eight(const MatmulParams& p, int rest, const Of& of) {
    const float whole = Q::kGlobal ? *p.weight_global : 1.f;
    uint32_t pair[4], behind[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low = 0.f, high = 0.f;
      if (kInside || 2 * j < rest) low = of(2 * j);
      if (kInside || 2 * j + 1 < rest) high = of(2 * j + 1);
      if constexpr (Q::kGlobal) low *= whole, high *= whole;
      pair[j] = C::T::pack(low, high);
      if constexpr (C::kTerms == 2) behind[j] = rest_of(low, high, pair[j]);
    }
    return {make_uint4(pair[0], pair[1], pair[2], pair[3]), make_uint4(behind[0], behind[1], behind[2], behind[3])};
  }
  // Eight codes in the form that `number` reads.
  static __device__ __forceinline__ uint2 prepared(uint2 word) {
    if (Q::kCode == Code::kSigned) word.x ^= 0x88888888u;
    return word;
  }
  static __device__ __forceinline__ Terms terms(const Entry& entry) {
    const float factor = Q::kScaled ? Stored<typename Q::Scale>::load(entry.scale) : 1.f;
    const float shift = static_cast<float>(Stored<typename Q::Zero>::load(entry.zero));
    return {factor, shift, Q::kWholeZero ? __uint_as_float(0x4b000000u | entry.zero) : Q::kCode == Code::kSigned ? 8388616.f : 8388608.f};
  }
  // The number of code i of eight codes.
  static __device__ __forceinline__ float number(uint2 word, int i, const Terms& of) {
    if constexpr (kBytes) {
      const uint2 wide = E4M3::widen(i < 4 ? word.x : word.y);
      return scaled(f32_of_f16(static_cast<uint16_t>((i % 4 < 2 ? wide.x : wide.y) >> 16 * (i % 2))), of);
    } else {
      const uint32_t code = word.x >> 4 * i & 15;
      if constexpr (Q::kCode == Code::kE2M1) return scaled(__uint_as_float((code & 8) << 28 | (code & 7) << 22) * kOfE2m1, of);
      const float made = __uint_as_float(0x4b000000u | code) - of.base;
      return scaled(Q::kZero == ZeroPoint::kSubtracted && !Q::kWholeZero ? made - of.shift : made, of);
    }
  }

 private:
  static __device__ __forceinline__ float scaled(float number, const Terms& of) {
    const float found = Q::kScaled ? number * of.factor : number;
    return Q::kZero == ZeroPoint::kAdded ? found + of.shift : found;
  }
  // Rounding errors of two numbers that were packed to bf16, also packed; 0 if the packed number is not finite.
  static __device__ __forceinline__ uint32_t rest_of(float low, float high, uint32_t pair) {
    const float first = __uint_as_float(pair << 16), second = __uint_as_float(pair & 0xffff0000u);
    return C::T::pack((pair & 0x7f80u) == 0x7f80u ? 0.f : low - first, (pair & 0x7f800000u) == 0x7f800000u ? 0.f : high - second);
  }
  template <class S>
  static __device__ __forceinline__ typename Stored<S>::Bits at(const MatmulScales& of, int batch, int column, int group) {
    return static_cast<const typename Stored<S>::Bits*>(of.data)[batch * of.batch + column * of.row + group * of.part];
  }
};

}  // namespace opfacade
