// Wrap-around sums of 64-bit words, plain or with an odd factor for each position.
#pragma once
#include <cstdint>
#include <cstring>

namespace tocsin {

typedef std::uint64_t vq __attribute__((vector_size(32)));

// The i-th of `count` words times 2i + 1, modulo 2^64; they are copied to `to` on the way.
//
// No product a word: with T vectors of four, the running sum of running sums holds (T - t) times
// the t-th, from which its position follows at the end.
template <bool COPY>
static inline std::uint64_t weighted_sum(const std::uint64_t* words, std::int64_t count,
                                         std::uint64_t* to) {
  const std::int64_t whole = count / 4;
  vq plain = {}, running = {};
  for (std::int64_t t = 0; t < whole; ++t) {
    vq word;
    std::memcpy(&word, words + 4 * t, sizeof word);
    if (COPY) std::memcpy(to + 4 * t, &word, sizeof word);
    plain += word;
    running += plain;
  }
  std::uint64_t total = 0;
  for (int j = 0; j < 4; ++j)
    total += 8 * ((std::uint64_t)whole * plain[j] - running[j]) + (2 * j + 1) * plain[j];
  for (std::int64_t i = 4 * whole; i < count; ++i) {
    if (COPY) to[i] = words[i];
    total += words[i] * (std::uint64_t)(2 * i + 1);
  }
  return total;
}

static inline std::int64_t word_sum(const std::uint64_t* words, std::int64_t count,
                                    bool weighted) {
  if (weighted) return (std::int64_t)weighted_sum<false>(words, count, nullptr);
  std::uint64_t total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += words[i];
  return (std::int64_t)total;
}

}  // namespace tocsin
