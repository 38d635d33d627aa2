// Blocks of keys and values: scores, sums and hulls, LANES of them at once.
//
// Axes: H query heads, L keys, E head size; G query heads share one head of keys.
#pragma once
#include <algorithm>

#include "layers.h"

namespace tocsin {

static inline std::int64_t padded(std::int64_t n) { return (n + LANES - 1) / LANES * LANES; }

constexpr std::uint8_t ALL_SEEN[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
constexpr std::uint8_t NONE_SEEN[16] = {};
constexpr int AHEAD = 4;  // blocks that are fetched before they are needed

// Rows of a block of LANES keys or values as they lie, or widened and filled up with zeros where
// they are no whole number of vectors; hidden ones repeat one that is seen. False: none is seen.
template <Kind KIND>
static inline bool gather_block(const Heads& from, std::int64_t r, std::int64_t kv,
                                std::int64_t first, std::int64_t size, const std::uint8_t* seen,
                                float* wide, std::int64_t padded, const void** rows) {
  const std::int64_t bytes = from.kind == Kind::FLOAT ? 4 : 2;
  const char* row = static_cast<const char*>(from.data) + from.at(r, kv, first) * bytes;
  const bool direct = KIND == from.kind && padded == size;
  if (direct && std::memcmp(seen, ALL_SEEN, LANES) == 0) {
    const std::int64_t step = from.position * bytes;
    for (int i = 0; i < LANES; ++i) rows[i] = row + i * step;
    const char* later = row + AHEAD * LANES * step;  // past the end nothing comes, and no harm
    if (step == size * bytes) {
#pragma GCC unroll 8
      for (std::int64_t b = 0; b < LANES * step; b += 64) __builtin_prefetch(later + b);
    } else {
      for (int i = 0; i < LANES; ++i)
        for (std::int64_t b = 0; b < size * bytes; b += 64)
          __builtin_prefetch(later + i * step + b);
    }
    return true;
  }
  int shown = -1;
  for (int i = 0; i < LANES && shown < 0; ++i)
    if (seen[i]) shown = i;
  if (shown < 0) return false;
  for (int i = 0; i < LANES; ++i) {
    const int which = seen[i] ? i : shown;
    if (direct) {
      rows[i] = row + which * from.position * bytes;
    } else {
      rows[i] = wide + which * padded;
      if (!seen[i]) continue;
      float* to = wide + i * padded;
      const float* lie = numbers(row + i * from.position * bytes, from.kind, 0, size, to);
      if (lie != to) std::memcpy(to, lie, size * sizeof(float));
      std::fill(to + size, to + padded, 0.0f);
    }
  }
  return true;
}

// out[b][i] = q[b] . rows[i] for a block of keys. NC: vectors a head, 0 where not known here.
template <Kind KIND, int NC, int B>
static inline void score_block(const void* const* rows, const float* q, std::int64_t padded,
                               float* out, std::int64_t stride) {
  const int vectors = NC ? NC : (int)(padded / LANES);
  const auto leaf = [&](int i) __attribute__((always_inline)) {
    vf held[B][4] = {};  // as many sums as registers hold beside what they are made of
#pragma GCC unroll 2
    for (int c = 0; c < vectors; ++c) {
      vf x[B];
      for (int n = 0; n < B; ++n) x[n] = load(q + n * padded + c * LANES);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const vf key = vector_of<KIND>(rows[i + k], c);
        for (int n = 0; n < B; ++n) held[n][k] += key * x[n];
      }
    }
    Several<B> folded;
    for (int n = 0; n < B; ++n) folded.v[n] = fold_four(held[n]);
    return folded;
  };
  const auto held = fold_rows<B, LEVELS, 2>(leaf, 0);
  for (int b = 0; b < B; ++b) store(out + b * stride, held.v[b]);
}

template <Kind KIND, int NC>
static void score_rows(const void* const* rows, const float* q, std::int64_t count,
                       std::int64_t padded, float* out, std::int64_t stride) {
  std::int64_t at = 0;
  for (; at + 3 <= count; at += 3)
    score_block<KIND, NC, 3>(rows, q + at * padded, padded, out + at * stride, stride);
  for (; at < count; ++at)
    score_block<KIND, NC, 1>(rows, q + at * padded, padded, out + at * stride, stride);
}

#if defined(__AVX512BF16__)
// The same of a query and keys that are bfloat16 as they lie: products are exact, sums float32.
template <int B>
static inline void score_block_pairs(const void* const* rows, const std::uint16_t* q,
                                     std::int64_t size, float scale, float* out,
                                     std::int64_t stride) {
  const int vectors = (int)(size / (2 * LANES));
  const auto leaf = [&](int i) __attribute__((always_inline)) {
    Several<B> held = {};
#pragma GCC unroll 4
    for (int c = 0; c < vectors; ++c) {
      const __m512i k = _mm512_loadu_si512(static_cast<const std::uint16_t*>(rows[i]) + c * 32);
      for (int b = 0; b < B; ++b)
        held.v[b] = (vf)_mm512_dpbf16_ps((__m512)held.v[b], (__m512bh)k,
                                         (__m512bh)_mm512_loadu_si512(q + b * size + c * 32));
    }
    return held;
  };
  const auto held = fold_rows<B, LEVELS>(leaf, 0);
  for (int b = 0; b < B; ++b) store(out + b * stride, held.v[b] * scale);
}
#endif

static inline bool in_pairs(const Heads& q, Kind keys, std::int64_t size) {
#if defined(__AVX512BF16__)
  return q.kind == Kind::BFLOAT && keys == Kind::BFLOAT && size % (2 * LANES) == 0;
#else
  return false;
#endif
}

static inline void score_rows_pairs(const void* const* rows, const std::uint16_t* q,
                                    std::int64_t count, std::int64_t size, float scale,
                                    float* out, std::int64_t stride) {
#if defined(__AVX512BF16__)
  std::int64_t at = 0;
  for (; at + 3 <= count; at += 3)
    score_block_pairs<3>(rows, q + at * size, size, scale, out + at * stride, stride);
  for (; at < count; ++at)
    score_block_pairs<1>(rows, q + at * size, size, scale, out + at * stride, stride);
#endif
}

// Where many queries meet the same keys: a block of 2 LANES keys turned to [E, 2 LANES] first.
constexpr int BROAD = 2 * LANES;
constexpr int TALL = LANES == 16 ? 12 : 6;  // queries at once: as many sums as registers hold

template <Kind KIND>
static inline void turn(const void* const* rows, std::int64_t size, float* to) {
  std::int64_t e = 0;
  for (; e + LANES <= size; e += LANES) {
    vf v[LANES];
    for (int i = 0; i < LANES; ++i) v[i] = vector_of<KIND>(rows[i], e / LANES);
    exchange<1>(v, std::make_index_sequence<LANES>{});
    for (int k = 0; k < LANES; ++k) store(to + (e + k) * BROAD, v[k]);
  }
  if (e == size) return;
  for (int i = 0; i < LANES; ++i) {  // such rows were widened
    const float* row = static_cast<const float*>(rows[i]);
    for (std::int64_t k = e; k < size; ++k) to[k * BROAD + i] = row[k];
  }
}

// out[b][i] = q[b] . keys[i] of one turned block.
static inline void score_tall(const float* keys, const float* q, std::int64_t size,
                              std::int64_t padded, float* out, std::int64_t stride) {
  vf held[TALL][2] = {};
  for (std::int64_t e = 0; e < size; ++e) {
    const vf a = load(keys + e * BROAD), b = load(keys + e * BROAD + LANES);
#pragma GCC unroll 12
    for (int n = 0; n < TALL; ++n) {
      const vf x = all(q[n * padded + e]);
      held[n][0] += x * a;
      held[n][1] += x * b;
    }
  }
#pragma GCC unroll 12
  for (int n = 0; n < TALL; ++n) {
    store(out + n * stride, held[n][0]);
    store(out + n * stride + LANES, held[n][1]);
  }
}

// Vectors [FROM, FROM + COUNT) of a block of values: their part of the sums and squared norms of
// each row, and what they add to the hull of their head.
template <Kind KIND, int FROM, int COUNT>
static inline Several<2> value_part(const void* const* rows, float* low, float* high) {
  vf lo[COUNT], hi[COUNT];
  for (int c = 0; c < COUNT; ++c) {
    lo[c] = load(low + (FROM + c) * LANES);
    hi[c] = load(high + (FROM + c) * LANES);
  }
  const auto leaf = [&](int i) __attribute__((always_inline)) {
    Several<2> held = {};
#pragma GCC unroll 8
    for (int c = 0; c < COUNT; ++c) {
      const vf v = vector_of<KIND>(rows[i], FROM + c);
      held.v[0] += v;
      held.v[1] += v * v;
      lo[c] = lower(v, lo[c]);
      hi[c] = upper(v, hi[c]);
    }
    return held;
  };
  const auto held = fold_rows<2, LEVELS>(leaf, 0);
  for (int c = 0; c < COUNT; ++c) {
    store(low + (FROM + c) * LANES, lo[c]);
    store(high + (FROM + c) * LANES, hi[c]);
  }
  return held;
}

template <Kind KIND, int NC>
static inline void value_block(const void* const* rows, std::int64_t padded, float* low,
                               float* high, float* sums, float* squares) {
  Several<2> held;
  if constexpr (NC == 4) {
    held = value_part<KIND, 0, 4>(rows, low, high);
  } else if constexpr (NC == 8) {  // in two parts: bounds of 8 vectors leave no register
    held = value_part<KIND, 0, 4>(rows, low, high);
    const auto more = value_part<KIND, 4, 4>(rows, low, high);
    held.v[0] += more.v[0];
    held.v[1] += more.v[1];
  } else {
    const auto leaf = [&](int i) __attribute__((always_inline)) {
      Several<2> one = {};
      for (std::int64_t c = 0; c < padded / LANES; ++c) {
        const vf v = vector_of<KIND>(rows[i], c);
        one.v[0] += v;
        one.v[1] += v * v;
        store(low + c * LANES, lower(v, load(low + c * LANES)));
        store(high + c * LANES, upper(v, load(high + c * LANES)));
      }
      return one;
    };
    held = fold_rows<2, LEVELS>(leaf, 0);
  }
  store(sums, held.v[0]);
  store(squares, held.v[1]);
}

// What the scores of one query make of the sums of the values.
struct Mixed {
  float sum = 0, square = 0, length = 0, shift = 1, top = 0, whole = 1;
  double scores = 0;  // their plain sum, before cap and mask
};

static inline vi lane_numbers() {
  vi v = {};
  for (int i = 0; i < LANES; ++i) v[i] = i;
  return v;
}

// Keys [from, end) are seen where there is no bias; scores are whole vectors.
template <bool BIASED>
static Mixed mix(float* scores, const float* bias, std::int64_t from, std::int64_t end,
                 float softcap, const float* sums, const float* squares) {
  const std::int64_t to = padded(end);
  if constexpr (!BIASED)
    for (std::int64_t j = end; j < to; ++j) scores[j] = -INF;
  vf most = all(-INF), size = {}, plain = {};
  for (std::int64_t j = from; j < to; j += LANES) {
    vf s = load(scores + j);
    vi hidden = {};
    if constexpr (BIASED)
      hidden = (vi)(load(bias + j) == -INF);
    else if (j + LANES > end)
      hidden = lane_numbers() >= (std::int32_t)(end - j);
    plain += hidden ? vf{} : s;
    if (softcap != 0.0f) s = hyperbolic(s / softcap) * softcap;
    if constexpr (BIASED) s = s + load(bias + j);
    // These maxima drop a NaN; the sum of the weights below does not.
    size = upper(hidden ? vf{} : magnitude(s), size);
    s = hidden ? all(-INF) : s;
    if (BIASED || softcap != 0.0f) store(scores + j, s);
    most = upper(s, most);
  }
  const float top = largest(most);
  vf total = {}, first = {}, second = {}, third = {};
  for (std::int64_t j = from; j < to; j += LANES) {
    const vf p = exponential_down(load(scores + j) - top), v = load(sums + j);
    const vf weighted = p * v;
    total += p;
    first += weighted;
    second += weighted * v;
    third += p * load(squares + j);
  }
  const float whole = sum(total);
  return {sum(first) / whole, sum(second) / whole, sum(third) / whole, 1.0f + largest(size),
          top, whole, sum(plain)};
}

}  // namespace tocsin
