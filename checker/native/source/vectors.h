// Vectors of floats as wide as the target has them, and the sums and maxima that no NaN escapes.
//
// GCC's vector extension keeps the loops readable and lets one text serve AVX-512, AVX2 and others.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tocsin {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int LEVELS = LANES == 16 ? 4 : LANES == 8 ? 3 : 2;

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef std::int32_t vi __attribute__((vector_size(LANES * 4)));
typedef std::uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef std::uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef std::uint8_t vb __attribute__((vector_size(LANES)));

constexpr float INF = std::numeric_limits<float>::infinity();

static inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The first `count` numbers, zeros behind them.
static inline vf load_part(const float* p, std::int64_t count) {
  vf v = {};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
static inline vf all(float x) { return x - vf{}; }
static inline vf magnitude(vf v) { return (vf)((vu)v & 0x7fffffffu); }
static inline vu bits(vf v) { return (vu)v & 0x7fffffffu; }
static inline vu larger(vu a, vu b) { return a > b ? a : b; }

// The larger one; a NaN in either stays (a plain maximum would drop it).
static inline vf larger(vf a, vf b) { return ((b > a) | (b != b)) ? b : a; }
static inline float larger(float a, float b) { return (b > a || b != b) ? b : a; }
static inline vf smaller(vf a, vf b) { return ((b < a) | (b != b)) ? b : a; }
static inline float smaller(float a, float b) { return (b < a || b != b) ? b : a; }

// One instruction each; a NaN in `v` is dropped, so the caller must look for it.
static inline vf lower(vf v, vf held) {
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps((__m512)v, (__m512)held);
#elif defined(__AVX__)
  return (vf)_mm256_min_ps((__m256)v, (__m256)held);
#else
  return v < held ? v : held;
#endif
}
static inline vf upper(vf v, vf held) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)v, (__m512)held);
#elif defined(__AVX__)
  return (vf)_mm256_max_ps((__m256)v, (__m256)held);
#else
  return v > held ? v : held;
#endif
}

static inline vf root(vf v) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX__)
  return (vf)_mm256_sqrt_ps((__m256)v);
#else
  for (int i = 0; i < LANES; ++i) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

template <int S, std::size_t... I>
static inline vf fold(vf a, vf b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, ((I & S) ? LANES + (int)(I ^ S) : (int)I)...) +
         __builtin_shufflevector(a, b, ((I & S) ? LANES + (int)I : (int)(I | S))...);
}

// Lane j of the result is the sum of the lanes of leaf(j): a tree that keeps few vectors alive.
// A leaf is B vectors; so is the result.
template <int B>
struct Several {
  vf v[B];
};
// With LAST = 2 a leaf gives four lanes folded into one: leaf(i) stands for i to i + 3.
template <int B, int LEVEL, int LAST = 0, class Leaf>
static inline Several<B> fold_rows(const Leaf& leaf, int base) {
  if constexpr (LEVEL == LAST) {
    return leaf(base);
  } else {
    constexpr int half = 1 << (LEVEL - 1);
    auto a = fold_rows<B, LEVEL - 1, LAST>(leaf, base);
    auto b = fold_rows<B, LEVEL - 1, LAST>(leaf, base + half);
    Several<B> r;
    for (int i = 0; i < B; ++i)
      r.v[i] = fold<half>(a.v[i], b.v[i], std::make_index_sequence<LANES>{});
    return r;
  }
}
// Rows and columns exchanged: lane i of v[k] becomes what lane k of v[i] was.
template <int S, std::size_t... I>
static inline void exchange(vf* v, std::index_sequence<I...> lanes) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) {
    if (i & S) continue;
    const vf a = v[i], b = v[i + S];
    v[i] = __builtin_shufflevector(a, b, ((I & S) ? LANES + (int)(I ^ S) : (int)I)...);
    v[i + S] = __builtin_shufflevector(a, b, ((I & S) ? LANES + (int)I : (int)(I | S))...);
  }
  if constexpr (2 * S < LANES) exchange<2 * S>(v, lanes);
}

template <std::size_t... I>
static inline vf fold_four(const vf* v, std::index_sequence<I...>) {
  // Within each 128 bits: two interleaved, both halves added, then the same of the pairs.
  const auto two = [](vf a, vf b) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, (int)((I & 1) * LANES + (I & ~3) + (I & 3) / 2)...) +
           __builtin_shufflevector(a, b, (int)((I & 1) * LANES + (I & ~3) + (I & 3) / 2 + 2)...);
  };
  const vf a = two(v[0], v[1]), b = two(v[2], v[3]);
  return __builtin_shufflevector(a, b, (int)((I & 2) / 2 * LANES + (I & ~3) + (I & 1))...) +
         __builtin_shufflevector(a, b, (int)((I & 2) / 2 * LANES + (I & ~3) + (I & 1) + 2)...);
}
static inline vf fold_four(const vf* v) {
  return fold_four(v, std::make_index_sequence<LANES>{});
}

template <int S, std::size_t... I>
static inline vf swapped(vf v, std::index_sequence<I...>) {
  return __builtin_shufflevector(v, v, (int)(I ^ S)...);
}

static inline float sum(vf v) {
  constexpr auto lanes = std::make_index_sequence<LANES>{};
  if constexpr (LANES >= 16) v += swapped<8 % LANES>(v, lanes);
  if constexpr (LANES >= 8) v += swapped<4 % LANES>(v, lanes);
  v += swapped<2>(v, lanes);
  v += swapped<1>(v, lanes);
  return v[0];
}

static inline float largest(vf v) {
  constexpr auto lanes = std::make_index_sequence<LANES>{};
  if constexpr (LANES >= 16) v = larger(v, swapped<8 % LANES>(v, lanes));
  if constexpr (LANES >= 8) v = larger(v, swapped<4 % LANES>(v, lanes));
  v = larger(v, swapped<2>(v, lanes));
  v = larger(v, swapped<1>(v, lanes));
  return v[0];
}

// The number whose sign-cleared bits are largest: infinity above all finite, NaN above infinity.
static inline float largest(vu v) {
  constexpr auto lanes = std::make_index_sequence<LANES>{};
  if constexpr (LANES >= 16) v = larger(v, (vu)swapped<8 % LANES>((vf)v, lanes));
  if constexpr (LANES >= 8) v = larger(v, (vu)swapped<4 % LANES>((vf)v, lanes));
  v = larger(v, (vu)swapped<2>((vf)v, lanes));
  v = larger(v, (vu)swapped<1>((vf)v, lanes));
  return ((vf)v)[0];
}

// Whether a comparison holds in every lane.
static inline bool everywhere(vi truth) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)truth, (__m512i)truth) == 0xffff;
#elif defined(__AVX__)
  return _mm256_movemask_ps((__m256)truth) == 0xff;
#else
  std::int32_t held = -1;
  for (int i = 0; i < LANES; ++i) held &= truth[i];
  return held != 0;
#endif
}

// Runs f(offset, loader) over [0, n); the loader fills up the last vector with zeros.
struct Whole {
  vf operator()(const float* p) const { return load(p); }
};
struct Part {
  std::int64_t count;
  vf operator()(const float* p) const { return load_part(p, count); }
};
template <class F>
static inline void chunks(std::int64_t n, const F& f) {
  std::int64_t at = 0;
  for (; at + LANES <= n; at += LANES) f(at, Whole{});
  if (at < n) f(at, Part{n - at});
}

// e^x within about one unit in the last place; NaN stays, overflow gives infinity, underflow 0.
static inline vf exponential(vf x) {
#if defined(__AVX512F__)
  x = lower(all(89.0f), upper(all(-104.0f), x));  // in this order a NaN stays
#else
  x = x < -104.0f ? all(-104.0f) : x;
  x = x > 89.0f ? all(89.0f) : x;
#endif
  const vf shifted = x * 1.44269504088896341f + 12582912.0f;
  const vf n = shifted - 12582912.0f;
  vf r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#endif
  const vi whole = (vi)shifted - 0x4B400000;
  const vi half = whole >> 1;  // in two steps: 2^n may be no normal number
  return p * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
}

// e^x of numbers that are not above 0; -infinity gives 0, NaN stays.
static inline vf exponential_down(vf x) {
#if defined(__AVX512F__)
  x = upper(all(-200.0f), x);  // in this order a NaN stays
  const vf shifted = x * 1.44269504088896341f + 12582912.0f;
  const vf n = shifted - 12582912.0f;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = all(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const vf held = upper(all(-87.0f), x);  // in this order a NaN stays
  const vf shifted = held * 1.44269504088896341f + 12582912.0f;
  const vf n = shifted - 12582912.0f;
  const vf r = (held - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = all(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  p = p * (vf)(((vi)shifted - (0x4B400000 - 127)) << 23);  // 2^n is a normal number here
  return x < -87.0f ? vf{} : p;
#endif
}

// tanh with a small relative error near zero too (Cephes' polynomial there).
static inline vf hyperbolic(vf x) {
  const vf size = magnitude(x);
  const vf z = x * x;
  vf p = all(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const vf near = p * z * x + x;
  const vf far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  return size < 0.625f ? near : (x < 0.0f ? -far : far);  // NaN takes the polynomial's far branch
}

}  // namespace tocsin
