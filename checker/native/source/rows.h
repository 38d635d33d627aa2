// Numbers of any dtype as float32, and what one rounding to that dtype may do.
#pragma once
#include <vector>

#include "vectors.h"

namespace tocsin {

enum class Kind { FLOAT, BFLOAT, HALF };

// As tocsin/checker/rounding.py: unit roundoff, smallest step and largest number of a dtype.
constexpr float U32 = 0x1p-24f;
struct Rounding {
  float roundoff, step, most;
};
static inline Rounding rounding(Kind kind) {
  if (kind == Kind::HALF) return {0x1p-11f, 0x1p-24f, 65504.0f};
  if (kind == Kind::BFLOAT) return {0x1p-8f, 0x1p-126f, 0x1.fep127f};
  return {U32, 0x1p-126f, 0x1.fffffep127f};
}

// |residual| / limit, where a limit that is not finite is an alarm and never a wide gate.
constexpr float LIMIT_SHARE = 1e-37f;
static inline float over(float residual, float limit) {
  return std::fabs(residual) / limit + limit * LIMIT_SHARE;
}
static inline vf over(vf residual, vf limit) {
  return magnitude(residual) / limit + limit * LIMIT_SHARE;
}

// A size that was kept; NaN, and so an alarm, where it is negative: a sign flipped.
static inline float scale_of(float kept) {
  return kept >= 0.0f ? kept : std::numeric_limits<float>::quiet_NaN();
}

static inline vf widen(vh h, Kind kind) {
#if defined(__AVX512F__)
  if (kind == Kind::HALF) return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  if (kind == Kind::HALF) return (vf)_mm256_cvtph_ps((__m128i)h);
#endif
#if defined(__AVX512F__)
  const vu wide = (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined(__AVX2__)
  const vu wide = (vu)_mm256_cvtepu16_epi32((__m128i)h);  // what compilers make of it takes three
#else
  const vu wide = __builtin_convertvector(h, vu);
#endif
  if (kind == Kind::BFLOAT) return (vf)(wide << 16);
  // float16: rebias the exponent by a multiplication, which makes subnormals normal as well.
  const vu size = (wide & 0x7fffu) << 13;
  vf v = (vf)size * 0x1p112f;
  v = (wide & 0x7c00u) == 0x7c00u ? (vf)(size | 0x7f800000u) : v;
  return (vf)((vu)v | ((wide & 0x8000u) << 16));
}

static inline void widen(const std::uint16_t* from, Kind kind, std::int64_t n, float* to) {
  std::int64_t at = 0;
  for (; at + LANES <= n; at += LANES) {
    vh h;
    std::memcpy(&h, from + at, sizeof h);
    store(to + at, widen(h, kind));
  }
  if (at < n) {
    vh h = {};
    std::memcpy(&h, from + at, (n - at) * sizeof(std::uint16_t));
    const vf v = widen(h, kind);
    std::memcpy(to + at, &v, (n - at) * sizeof(float));
  }
}

// The c-th vector of a row.
template <Kind KIND>
static inline vf vector_of(const void* row, std::int64_t c) {
  if constexpr (KIND == Kind::FLOAT) return load(static_cast<const float*>(row) + c * LANES);
  vh h;
  std::memcpy(&h, static_cast<const std::uint16_t*>(row) + c * LANES, sizeof h);
  return widen(h, KIND);
}

// Numbers next to each other as float32: as they lie, or widened into scratch memory.
static inline const float* numbers(const void* data, Kind kind, std::int64_t offset,
                                   std::int64_t n, float* scratch) {
  if (kind == Kind::FLOAT) return static_cast<const float*>(data) + offset;
  widen(static_cast<const std::uint16_t*>(data) + offset, kind, n, scratch);
  return scratch;
}

// A matrix of rows of equal distance.
struct Rows {
  const void* data = nullptr;
  Kind kind = Kind::FLOAT;
  std::int64_t stride = 0;  // numbers from row to row
  const void* at(std::int64_t index, std::int64_t from) const {
    return static_cast<const char*>(data) +
           (index * stride + from) * (kind == Kind::FLOAT ? 4 : 2);
  }
  const float* row(std::int64_t index, std::int64_t from, std::int64_t n, float* scratch) const {
    return numbers(data, kind, index * stride + from, n, scratch);
  }
};

// Memory that a thread keeps between calls; each place in the code has its own number.
static inline float* scratch(int place, std::size_t floats) {
  static thread_local std::vector<float> kept[8];
  if (kept[place].size() < floats) kept[place].resize(floats);
  return kept[place].data();
}

// The index-th of `count` positions spread evenly over `positions`, the last one among them.
static inline std::int64_t spot(std::int64_t index, std::int64_t positions, std::int64_t count) {
  if (count >= positions) return index;
  if (count == 1) return positions - 1;
  return (std::int64_t)std::nearbyint((double)index * (positions - 1) / (count - 1));
}

}  // namespace tocsin
