// Which keys a query may attend to, and whether an attention mask means what it says.
#pragma once
#include "layers.h"

namespace tocsin {

constexpr float MASKED_BELOW = -9000.0f;  // as tocsin/checker/masks.py

struct Mask {
  const void* data = nullptr;  // null: none
  bool truth = false;          // bool, True = may attend; else added to the scores
  Kind kind = Kind::FLOAT;
  std::int64_t row = 0, head = 0, position = 0, key = 0;  // strides, 0 along an axis of size 1
  std::int64_t rows = 1, heads = 1, elements = 0;
};

struct View {
  std::int64_t positions, keys;
  bool causal;
};

// One past the last key that causality shows to a query.
static inline std::int64_t last_key(const View& view, std::int64_t s) {
  if (!view.causal || view.positions == 1) return view.keys;
  return std::max<std::int64_t>(0, std::min(view.keys, s + view.keys - view.positions + 1));
}

// What is added to the scores of one query: -infinity where it may not attend.
// Returns the number of keys that it sees. `to` is filled up with -infinity to a whole vector.
static std::int64_t visible(const Mask& mask, const View& view, std::int64_t r, std::int64_t h,
                            std::int64_t s, float* to) {
  const std::int64_t keys = view.keys;
  const std::int64_t end = last_key(view, s);
  const std::int64_t offset = r * mask.row + h * mask.head + s * mask.position;
  std::int64_t count = end;
  if (mask.data == nullptr) {
    std::fill(to, to + end, 0.0f);
  } else if (mask.truth) {
    const std::uint8_t* from = static_cast<const std::uint8_t*>(mask.data) + offset;
    std::int32_t seen = 0;
    if (mask.key == 1) {
      for (std::int64_t j = 0; j < end; ++j) to[j] = from[j] ? 0.0f : -INF;
      for (std::int64_t j = 0; j < end; ++j) seen += from[j] != 0;
    } else {  // one answer for all keys
      std::fill(to, to + end, *from ? 0.0f : -INF);
      seen = *from ? end : 0;
    }
    count = seen;
  } else {
    if (mask.key == 1) {
      const float* added = numbers(mask.data, mask.kind, offset, end, to);
      if (added != to) std::memcpy(to, added, end * sizeof(float));
    } else {
      float one[LANES];
      std::fill(to, to + end, *numbers(mask.data, mask.kind, offset, 1, one));
    }
    std::int32_t seen = 0;
    for (std::int64_t j = 0; j < end; ++j) {
      const bool hidden = to[j] <= MASKED_BELOW;  // NaN is not: it reaches the scores
      to[j] = hidden ? -INF : to[j];
      seen += !hidden;
    }
    count = seen;
  }
  const std::int64_t padded = (keys + LANES - 1) / LANES * LANES;
  std::fill(to + end, to + padded, -INF);
  return count;
}

// An additive mask of zeros and ones was meant as a bool; +infinity and NaN mean nothing.
static bool turned(const Mask& mask, std::int64_t last) {
  if (mask.data == nullptr || mask.truth || mask.elements == 0) return false;
  bool only = true, ones = false, odd = false;
  for (std::int64_t i = 0; i < last; ++i) {
    float one[LANES];
    const float a = *numbers(mask.data, mask.kind, i, 1, one);
    only = only && (a == 0.0f || a == 1.0f);
    ones = ones || a == 1.0f;
    odd = odd || !(a < INF);
  }
  return (only && ones) || odd;
}

// One past the last key that a query sees, as a whole number of vectors.
static inline std::int64_t end_of(const float* row, std::int64_t keys) {
  std::int64_t end = (keys + LANES - 1) / LANES * LANES;
  while (end > 0) {
    const auto seen = ~(load(row + end - LANES) == -INF);
    bool any = false;
    for (int i = 0; i < LANES; ++i) any = any || seen[i];
    if (any) break;
    end -= LANES;
  }
  return end;
}

// The same three of a bool mask whose keys lie together, byte by byte.
static std::int64_t bytes_seen(const std::uint8_t* from, std::int64_t end, std::uint8_t* attended,
                               std::int64_t* reach) {
  std::int64_t count = 0;
  for (std::int64_t at = 0; at < end; at += 128) {
    const std::int64_t to = std::min(end, at + 128);
    std::uint8_t part = 0;
    for (std::int64_t j = at; j < to; ++j) {
      const std::uint8_t one = from[j] != 0;
      part += one;
      attended[j] |= one;
    }
    count += part;
  }
  while (end > 0 && !from[end - 1]) --end;
  *reach = std::max(*reach, (end + LANES - 1) / LANES * LANES);
  return count;
}

// As numerical.attention_mask on one row and head of the mask: bad[s] is set, never cleared;
// counts[s] and attended[j] are filled, reach[s] is raised to the end of what s sees.
// `written(s)`: an output of this query is not zero; asked only for left padding.
template <class Written>
static void judge_mask(const Mask& mask, const View& view, std::int64_t r, std::int64_t h,
                       float* row, std::int64_t* counts, std::uint8_t* attended,
                       std::int64_t* reach, const Written& written, std::uint8_t* bad) {
  const std::int64_t positions = view.positions, keys = view.keys;
  std::fill(attended, attended + keys, 0);
  for (std::int64_t s = 0; s < positions; ++s) {
    if (positions > 1 && mask.truth && mask.key == 1) {  // `row` is filled when it is asked for
      const std::int64_t offset = r * mask.row + h * mask.head + s * mask.position;
      counts[s] = bytes_seen(static_cast<const std::uint8_t*>(mask.data) + offset,
                             last_key(view, s), attended, reach + s);
      continue;
    }
    counts[s] = visible(mask, view, r, h, s, row);
    reach[s] = std::max(reach[s], end_of(row, keys));
    for (std::int64_t j = 0; j < keys; ++j) attended[j] |= !(row[j] == -INF);
  }
  if (positions == 1) {
    if (counts[0] == 0) bad[0] = 1;
    return;
  }
  bool falls = true;
  for (std::int64_t s = 1; s < positions; ++s) falls = falls && counts[s] < counts[s - 1];
  const bool hides = mask.data == nullptr || mask.truth;
  bool live_later = false;
  for (std::int64_t s = positions - 1; s >= 0; --s) {
    const bool blind = counts[s] == 0;
    const bool padding =
        blind && live_later && (keys < positions || !attended[keys - positions + s]);
    if ((blind && !padding) || falls || (padding && hides && written(s))) bad[s] = 1;
    live_later = live_later || !blind;
  }
}

}  // namespace tocsin
