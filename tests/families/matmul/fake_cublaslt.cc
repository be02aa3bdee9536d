// A cuBLASLt for tests: products of column-major matrices on the host, with the documented interface. It checks calls against
// the documentation more strictly than the library does, and its heuristics offer algorithms that a caller must not use.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

enum Status { kSuccess = 0, kInvalid = 7, kNotSupported = 15 };

struct Layout {
  uint32_t type;
  uint64_t rows, columns;
  int64_t step;
  int32_t batches = 1;
  int64_t far = 0;
};

struct Description {
  int32_t compute, scale;
  int32_t transa = 0, transb = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
  int8_t fast = 1;  // detects a caller that does not forbid it
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = 7;
  uint32_t alignments[4] = {256, 256, 256, 256};
  uint64_t implementations = ~uint64_t{0};
};

struct Algo {
  uint64_t data[8];  // scheme, implementation, workspace, split, alignment, name
};

struct Result {
  Algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

std::string log_text;
bool trusted = true;  // whether the heuristics respect the preference
int live = 0;

void say(const std::string& line) { log_text += line + "\n"; }

uint32_t bits_of(float x) { uint32_t b; std::memcpy(&b, &x, 4); return b; }
float float_of(uint32_t b) { float x; std::memcpy(&x, &b, 4); return x; }

double half(uint16_t h) {
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

double load(const void* p, uint32_t type, int64_t i) {
  if (type == 0) return static_cast<const float*>(p)[i];
  if (type == 1) return static_cast<const double*>(p)[i];
  uint16_t h = static_cast<const uint16_t*>(p)[i];
  return type == 14 ? float_of(uint32_t{h} << 16) : half(h);
}

void store(void* p, uint32_t type, int64_t i, double value) {
  if (type == 0) static_cast<float*>(p)[i] = static_cast<float>(value);
  else if (type == 1) static_cast<double*>(p)[i] = value;
  else if (type == 14) {
    uint32_t b = bits_of(static_cast<float>(value));
    bool nan = std::isnan(value);
    static_cast<uint16_t*>(p)[i] = nan ? 0x7fc0 : static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
  } else {
    _Float16 h = static_cast<_Float16>(static_cast<float>(value));
    std::memcpy(static_cast<uint16_t*>(p) + i, &h, 2);
  }
}


template <class T>
int take(T& to, const void* from, size_t size) {
  if (size != sizeof(T) || !from) return kInvalid;
  std::memcpy(&to, from, size);
  return kSuccess;
}

bool sound(const Layout& l) {
  return l.rows > 0 && l.columns > 0 && (l.columns == 1 || l.step >= static_cast<int64_t>(l.rows)) && l.step >= 1;
}

bool fits(const Description& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out) {
  uint64_t m = d.transa ? a.columns : a.rows, ka = d.transa ? a.rows : a.columns;
  uint64_t n = d.transb ? b.rows : b.columns, kb = d.transb ? b.columns : b.rows;
  bool same = a.batches == b.batches && b.batches == c.batches && c.batches == out.batches;
  bool types = a.type == b.type && c.type == out.type && (out.type == a.type || (out.type == 0 && a.type != 1));
  // A compute type that may use emulation is not taken for f32 and f64, and TF32 is one of its own.
  int32_t compute = a.type == 0 ? 69 : a.type == 1 ? 71 : 68;
  bool computes = (d.compute == compute || (a.type == 0 && d.compute == 77)) && d.scale == (a.type == 1 ? 1 : 0) && d.fast == 0;
  return sound(a) && sound(b) && sound(c) && sound(out) && ka == kb && out.rows == m && out.columns == n && c.rows == m &&
         c.columns == n && same && types && computes;
}

// The algorithms of the heuristics: only the last two satisfy a bound.
std::vector<Algo> known(uint32_t type) {
  const uint64_t f32 = 0x02 << 8, f64 = 0x04 << 8;
  const uint64_t input = type == 0 ? 0x08 << 16 : type == 1 ? 0x10 << 16 : type == 2 ? 0x01 << 16 : 0x02 << 16;
  const uint64_t plain = (type == 1 ? f64 | 0x08 : type == 0 ? f32 | 0x01 : f32 | 0x02) | input;
  const uint64_t rounded = type == 0 ? (f32 | 0x02 | 0x04 << 16) : type == 1 ? (0x04 | 0x08 << 8 | 0x20 << 16) : (0x01 << 8 | 0x02 | input);
  return {
      Algo{{1, plain, 4096, 4, 16, 1}},         // parts are added in place, in the type of the output
      Algo{{4, plain, 4096, 4, 16, 2}},         // parts in the type of the output
      Algo{{0, rounded, 0, 1, 16, 3}},          // TF32, emulation, or an accumulator in f16
      Algo{{2, plain, 64 << 20, 8, 16, 4}},     // too large a workspace
      Algo{{2, plain, 1 << 20, 2, 16, 5}},      // two parts in f32
      Algo{{0, plain, 0, 1, 2, 6}},             // one part; any address is valid
  };
}

bool wanted(const Algo& algo, const Preference& p) {
  bool scheme = algo.data[0] == 0 || (algo.data[0] & p.schemes);
  bool near = true;
  for (uint32_t alignment : p.alignments) near = near && alignment >= algo.data[4];
  return near && (!trusted || (scheme && !(algo.data[1] & ~p.implementations) && algo.data[2] <= p.workspace));
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130100; }

int cublasLtCreate(void** handle) {
  *handle = reinterpret_cast<void*>(0x10);
  say("create");
  return kSuccess;
}

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  *made = new Description{compute, scale};
  ++live;
  return kSuccess;
}

int cublasLtMatmulDescDestroy(void* d) { delete static_cast<Description*>(d); --live; return kSuccess; }

int cublasLtMatmulDescSetAttribute(void* made, int attribute, const void* from, size_t size) {
  auto& d = *static_cast<Description*>(made);
  switch (attribute) {
    case 3: return take(d.transa, from, size);
    case 4: return take(d.transb, from, size);
    case 7: return take(d.epilogue, from, size);
    case 8: return take(d.bias, from, size);
    case 25: return take(d.fast, from, size);
    default: return kInvalid;
  }
}

int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t step) {
  *made = new Layout{static_cast<uint32_t>(type), rows, columns, step};
  ++live;
  return kSuccess;
}

int cublasLtMatrixLayoutDestroy(void* l) { delete static_cast<Layout*>(l); --live; return kSuccess; }

int cublasLtMatrixLayoutSetAttribute(void* made, int attribute, const void* from, size_t size) {
  auto& l = *static_cast<Layout*>(made);
  if (attribute == 5) return take(l.batches, from, size);
  return attribute == 6 ? take(l.far, from, size) : kInvalid;
}

int cublasLtMatmulPreferenceCreate(void** made) { *made = new Preference; ++live; return kSuccess; }

int cublasLtMatmulPreferenceDestroy(void* p) { delete static_cast<Preference*>(p); --live; return kSuccess; }

int cublasLtMatmulPreferenceSetAttribute(void* made, int attribute, const void* from, size_t size) {
  auto& p = *static_cast<Preference*>(made);
  if (attribute == 1) return take(p.workspace, from, size);
  if (attribute == 3) return take(p.schemes, from, size);
  if (attribute >= 5 && attribute <= 8) return take(p.alignments[attribute - 5], from, size);
  return attribute == 12 ? take(p.implementations, from, size) : kInvalid;
}

int cublasLtMatmulAlgoGetHeuristic(
    void* handle, void* d, void* a, void* b, void* c, void* out, void* p, int count, Result results[], int* found) {
  auto& preference = *static_cast<Preference*>(p);
  auto& first = *static_cast<Layout*>(a);
  if (!handle || !fits(*static_cast<Description*>(d), first, *static_cast<Layout*>(b), *static_cast<Layout*>(c),
                       *static_cast<Layout*>(out)))
    return kInvalid;
  *found = 0;
  for (const Algo& algo : known(first.type))
    if (*found < count && wanted(algo, preference)) results[(*found)++] = Result{algo, algo.data[2], kSuccess, 1.0f, {}};
  say("heuristic " + std::to_string(*found) + " schemes " + std::to_string(preference.schemes));
  return *found ? kSuccess : kNotSupported;
}

int cublasLtMatmulAlgoCheck(void* handle, void* d, void* a, void* b, void* c, void* out, const Algo* algo, Result* result) {
  auto& first = *static_cast<Layout*>(a);
  if (!handle || !fits(*static_cast<Description*>(d), first, *static_cast<Layout*>(b), *static_cast<Layout*>(c),
                       *static_cast<Layout*>(out)))
    return kInvalid;
  for (const Algo& one : known(first.type))
    if (!std::memcmp(&one, algo, sizeof one)) {
      result->workspace = algo->data[2];
      result->state = kSuccess;
      say("check " + std::to_string(algo->data[5]));
      return kSuccess;
    }
  return kNotSupported;
}

int cublasLtMatmulAlgoConfigGetAttribute(const Algo* algo, int attribute, void* to, size_t size, size_t* written) {
  if (size != 4 || (attribute != 2 && attribute != 3)) return kInvalid;
  uint32_t value = static_cast<uint32_t>(algo->data[attribute == 2 ? 3 : 0]);
  std::memcpy(to, &value, *written = size);
  return kSuccess;
}

int cublasLtMatmulAlgoCapGetAttribute(const Algo* algo, int attribute, void* to, size_t size, size_t* written) {
  if (size != 8 || attribute != 15) return kInvalid;
  std::memcpy(to, &algo->data[1], *written = size);
  return kSuccess;
}

int cublasLtMatmul(
    void* handle, void* description, const void* alpha, const void* A, void* a, const void* B, void* b, const void* beta,
    const void* C, void* c, void* D, void* out, const Algo* algo, void* workspace, size_t bytes, void* stream) {
  auto& d = *static_cast<Description*>(description);
  auto &la = *static_cast<Layout*>(a), &lb = *static_cast<Layout*>(b), &lc = *static_cast<Layout*>(c),
       &lo = *static_cast<Layout*>(out);
  if (!handle || !fits(d, la, lb, lc, lo) || bytes != algo->data[2] || (bytes && !workspace)) return kInvalid;
  double factor = load(alpha, d.scale, 0), old = load(beta, d.scale, 0);
  uint64_t k = d.transa ? la.rows : la.columns;
  if (bytes) std::memset(workspace, 0xff, bytes);
  const bool cut = la.type == 0 && algo->data[1] & 0x04 << 16;  // TF32: 10 bits of mantissa
  if (cut && d.compute != 77) return kInvalid;
  auto operand = [cut](double x) { return cut ? static_cast<double>(float_of(bits_of(static_cast<float>(x)) & ~0x1fffu)) : x; };
  for (int32_t batch = 0; batch < lo.batches; ++batch)
    for (uint64_t j = 0; j < lo.columns; ++j)
      for (uint64_t i = 0; i < lo.rows; ++i) {
        double sum = 0;
        for (uint64_t p = 0; p < k; ++p) {
          int64_t at = batch * la.far + (d.transa ? i * la.step + p : p * la.step + i);
          int64_t bt = batch * lb.far + (d.transb ? p * lb.step + j : j * lb.step + p);
          sum += operand(load(A, la.type, at)) * operand(load(B, lb.type, bt));
        }
        double value = factor * sum;
        if (old != 0) value += old * load(C, lc.type, batch * lc.far + j * lc.step + i);
        if (d.epilogue & 4) value += load(d.bias, lo.type, i);
        if (d.epilogue & 2 && value < 0) value = 0;
        store(D, lo.type, batch * lo.far + j * lo.step + i, value);
      }
  say("matmul algo " + std::to_string(algo->data[5]) + " workspace " + std::to_string(bytes) + " stream " +
      std::to_string(reinterpret_cast<uintptr_t>(stream)));
  return kSuccess;
}

const char* fake_log() { return log_text.c_str(); }
void fake_reset(bool respects) { log_text.clear(); trusted = respects; }
int fake_live() { return live; }
}
