// Attention recomputed: the row sum of its output, the hull of its values, mask and range.
//
// One pass over the keys and one over the values of a row, only as far as its queries see. Both are
// as much memory as the step's own attention reads, so that in decoding, what was found in the values
// at the last step is kept, and only those that came since are read; and in a prompt some queries
// stand for the rest. None over the values either where their sums were kept when they were written.
// Axes: R rows, H query heads, K key/value heads, G = H / K, S queries, L keys, E head size.
#pragma once
#include "attention_blocks.h"
#include "attention_kept.h"
#include "masks.h"

namespace tocsin {

// Queries that are looked at: the last one always, the others evenly spread from a place that the
// last query's own bits draw, so that in time, and over the layers, every position has its turn.
struct Spots {
  std::int64_t positions = 1, count = 1;
  double drawn = 0.0;  // in [0, 1)
  std::int64_t at(std::int64_t index) const {
    if (count >= positions) return index;
    if (index == count - 1) return positions - 1;
    return (std::int64_t)(((double)index + drawn) * (double)(positions - 1) / (double)(count - 1));
  }
};

struct Attention {
  Heads q, k, v, output, lse;  // lse [R,H,S], data null where there is none
  Mask mask;
  Spots spots;
  // Taken when keys and values were written; null where they were not.
  const double* key_sums = nullptr;     // [R,K,E]
  const float* key_reach = nullptr;     // [R,K]
  const float* value_sums = nullptr;    // [R,K,L]
  const float* value_norms = nullptr;   // [R,K,L]
  const float* value_low = nullptr;     // [R,K,EV]
  const float* value_high = nullptr;    // [R,K,EV]
};
struct AttentionForm {
  std::int64_t rows, heads, kv_heads, positions, keys, size, value_size;
  bool causal;
  float scale, softcap, row_ulp, hull_ulp, headroom;  // softcap 0: none
  float score_roundings, score_per_key;
};

constexpr std::int64_t SCORES_AT_ONCE = 1 << 16;  // that many stay near the processor

static inline vf only(const std::uint8_t* seen, vf v) {
  vb shown;
  std::memcpy(&shown, seen, sizeof shown);
  return __builtin_convertvector(shown, vi) != 0 ? v : vf{};
}

// As numerical.attention_scores: the scores' sum against that of the keys as they were written.
static float score_ratio(const AttentionForm& form, double scores, const float* q,
                         const double* key_sums, float reach) {
  double expected = 0.0;  // q comes scaled
  float squares = 0.0f;
  for (std::int64_t e = 0; e < form.size; ++e) {
    expected += (double)q[e] * key_sums[e];
    squares += q[e] * q[e];
  }
  const float keys = form.keys;
  const float share = U32 * (form.score_roundings * std::sqrt(keys) + form.score_per_key * keys);
  return over((float)(scores - expected), std::sqrt(squares) * scale_of(reach) * share + 0x1p-126f);
}

static float row_sum_ratio(const AttentionForm& form, const Mixed& mixed, float total,
                           float length, Kind kind, const float* lse) {
  const Rounding round = rounding(kind);
  const float size = form.size, keys = form.keys;
  const float scale = smaller(length, std::sqrt(mixed.length) * (1 + 0x1p-6f));
  const float spread = std::sqrt(larger(0.0f, mixed.square - mixed.sum * mixed.sum));
  const float rounded = form.softcap == 0.0f ? 3 : 10;  // roundings of a score in eager attention
  float limit = round.roundoff * (form.row_ulp * scale + std::fabs(mixed.sum) +
                                  rounded * mixed.shift * spread);
  limit += U32 * (3 * std::sqrt(size + keys) * scale + 12 * mixed.shift * spread);
  limit += 4 * std::sqrt(size) * round.step;
  float ratio = over(total - mixed.sum, limit);
  if (lse != nullptr)
    ratio = larger(ratio, over(*lse - (mixed.top + std::log(mixed.whole)),
                               (16 * U32 + rounded * round.roundoff) * mixed.shift));
  return ratio;
}

// All that is needed of one row while it is looked at.
struct Work {
  std::int64_t keys_padded, size_padded, value_padded, first = 0, last = 0;
  bool by_head = false;  // the mask differs between heads
  bool free = false;     // no mask but causality hides a key
  bool biased = false;   // `bias` is that of the only query
  std::vector<std::uint8_t> seen, live, bad, attended;  // [K|1,L], [H|1,S], [S], [L]
  std::vector<std::int64_t> counts, reach;  // [S], [S] end of the keys that a query sees
  std::vector<float> bias, sums, squares, low, high, wide, q, scores, out, turned;
  std::vector<std::uint8_t> unknown, plain;  // [K,EV] a NaN is among the values; [K] all bounded
  std::vector<std::uint16_t> q_plain;       // bfloat16, not scaled
  Values values;                            // of this row, wherever they are kept
};

// What was kept when the values were written, in place of a pass over them.
static bool written_values(const Attention& call, const AttentionForm& form, std::int64_t r,
                           Work& work) {
  if (call.value_sums == nullptr || call.value_low == nullptr) return false;
  const std::int64_t L = work.keys_padded, EV = work.value_padded;
  work.sums.resize(form.kv_heads * L);
  work.squares.resize(form.kv_heads * L);
  work.low.assign(form.kv_heads * EV, 0.0f);
  work.high.assign(form.kv_heads * EV, 0.0f);
  for (std::int64_t kv = 0; kv < form.kv_heads; ++kv) {
    const std::int64_t head = r * form.kv_heads + kv;
    const std::uint8_t* seen = work.seen.data() + (work.by_head ? kv * L : 0);
    const float* sums = call.value_sums + head * form.keys;
    const float* norms = call.value_norms + head * form.keys;
    chunks(form.keys, [&](std::int64_t at, auto take) {
      const vf length = take(norms + at);
      store(work.sums.data() + kv * L + at, only(seen + at, take(sums + at)));
      store(work.squares.data() + kv * L + at, only(seen + at, length * length));
    });
    const std::size_t bytes = form.value_size * sizeof(float);
    std::memcpy(work.low.data() + kv * EV, call.value_low + head * form.value_size, bytes);
    std::memcpy(work.high.data() + kv * EV, call.value_high + head * form.value_size, bytes);
  }
  work.values = {work.sums.data(), work.squares.data(), work.low.data(), work.high.data(), L};
  return true;
}

// Which keys any query of the row sees, and which queries see any.
static void look(const Attention& call, const AttentionForm& form, std::int64_t r, Work& work) {
  const View view{form.positions, form.keys, form.causal};
  const bool masked = call.mask.data != nullptr;
  work.by_head = masked && call.mask.heads > 1;
  const std::int64_t kinds = work.by_head ? form.heads : 1, L = work.keys_padded;
  const std::int64_t groups = work.by_head ? form.kv_heads : 1;
  work.seen.assign(groups * L, 0);
  work.live.assign(kinds * form.positions, 1);
  work.bad.assign(form.positions, 0);
  work.biased = false;
  work.reach.assign(form.positions, 0);
  work.free = !masked && !(form.causal && form.positions > form.keys);
  if (work.free) {
    std::fill(work.seen.begin(), work.seen.begin() + form.keys, 1);
    for (std::int64_t s = 0; s < form.positions; ++s)
      work.reach[s] =
          form.causal && form.positions > 1 ? s + form.keys - form.positions + 1 : form.keys;
  } else {
    work.bias.resize(L);
    work.biased = form.positions == 1 && kinds == 1;
    work.counts.resize(form.positions);
    work.attended.resize(form.keys);
    for (std::int64_t h = 0; h < kinds; ++h) {
      const auto written = [&](std::int64_t s) {
        for (std::int64_t i = work.by_head ? h : 0; i < (work.by_head ? h + 1 : form.heads); ++i) {
          const float* o = numbers(call.output.data, call.output.kind, call.output.at(r, i, s),
                                   form.value_size, work.out.data());
          for (std::int64_t e = 0; e < form.value_size; ++e)
            if (o[e] != 0.0f) return true;  // NaN is not 0
        }
        return false;
      };
      judge_mask(call.mask, view, r, h, work.bias.data(), work.counts.data(),
                 work.attended.data(), work.reach.data(), written, work.bad.data());
      std::uint8_t* seen = work.seen.data() + h * groups / kinds * L;
      for (std::int64_t j = 0; j < form.keys; ++j) seen[j] |= work.attended[j];
      for (std::int64_t s = 0; s < form.positions; ++s)
        work.live[h * form.positions + s] = work.counts[s] > 0;
    }
  }
  work.first = L, work.last = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::uint8_t* seen = work.seen.data() + g * L;
    const auto none = [&](std::int64_t at) { return std::memcmp(seen + at, NONE_SEEN, LANES) == 0; };
    std::int64_t from = 0, to = L;
    while (from < to && none(from)) from += LANES;
    while (to > from && none(to - LANES)) to -= LANES;
    if (from == to) continue;
    work.first = std::min(work.first, from);
    work.last = std::max(work.last, to);
  }
}

template <Kind KIND, int NC>
static void take_values(const Attention& call, const AttentionForm& form, std::int64_t r,
                        Work& work) {
  const std::int64_t L = work.keys_padded, EV = work.value_padded;
  work.sums.resize(form.kv_heads * L);
  work.squares.resize(form.kv_heads * L);
  work.low.assign(form.kv_heads * EV, INF);
  work.high.assign(form.kv_heads * EV, -INF);
  work.unknown.assign(form.kv_heads * EV, 0);
  work.values = {work.sums.data(), work.squares.data(), work.low.data(), work.high.data(), L};
  for (std::int64_t kv = 0; kv < form.kv_heads; ++kv)
    for (std::int64_t j = work.first; j < work.last; j += LANES) {
      const std::uint8_t* seen = work.seen.data() + (work.by_head ? kv * L : 0) + j;
      float* sums = work.sums.data() + kv * L + j;
      float* squares = work.squares.data() + kv * L + j;
      const void* rows[LANES];
      if (!gather_block<KIND>(call.v, r, kv, j, form.value_size, seen, work.wide.data(), EV, rows)) {
        store(sums, vf{});
        store(squares, vf{});
        continue;
      }
      value_block<KIND, NC>(rows, EV, work.low.data() + kv * EV, work.high.data() + kv * EV, sums,
                      squares);
      bool odd = false;
      for (int i = 0; i < LANES; ++i) {
        odd = odd || (seen[i] && sums[i] != sums[i]);
        if (!seen[i]) sums[i] = squares[i] = 0.0f;
      }
      if (!odd) continue;
      float one[LANES];
      for (int i = 0; i < LANES; ++i)
        for (std::int64_t e = 0; seen[i] && e < form.value_size; ++e)
          if (const float v = *numbers(rows[i], KIND, e, 1, one); v != v)
            work.unknown[kv * EV + e] = 1;
    }
  // A feature with a NaN among its values has no hull: the NaN shows in the output if it was used.
  const bool hides = call.mask.data != nullptr || (form.causal && form.positions > 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < work.unknown.size(); ++i)
    if (work.unknown[i]) {
      work.low[i] = hides ? -1e30f : nan;
      work.high[i] = hides ? 1e30f : nan;
    }
}

// Scaled queries [from, to) of all heads, and what a mask adds to their scores.
static void take_queries(const Attention& call, const AttentionForm& form, std::int64_t r,
                         std::int64_t from, std::int64_t to, bool pairs, Work& work) {
  const std::int64_t EP = work.size_padded, tile = to - from;
  const std::int64_t width = call.q.kind == Kind::FLOAT ? 4 : 2;
  work.q.resize(form.heads * tile * EP);
  if (pairs) work.q_plain.resize(form.heads * tile * form.size);
  for (std::int64_t h = 0; h < form.heads; ++h)
    for (std::int64_t i = 0; i < tile; ++i) {
      const std::int64_t at = call.q.at(r, h, call.spots.at(from + i));
      float* to_q = work.q.data() + (h * tile + i) * EP;
      const float* q = numbers(call.q.data, call.q.kind, at, form.size, to_q);
      for (std::int64_t e = 0; e < form.size; ++e) to_q[e] = q[e] * form.scale;
      std::fill(to_q + form.size, to_q + EP, 0.0f);
      if (pairs)
        std::memcpy(work.q_plain.data() + (h * tile + i) * form.size,
                    static_cast<const char*>(call.q.data) + at * width, form.size * width);
    }
  if (work.free || work.by_head || work.biased) return;
  const View view{form.positions, form.keys, form.causal};
  work.bias.resize(tile * work.keys_padded);
  for (std::int64_t i = 0; i < tile; ++i)
    visible(call.mask, view, r, 0, call.spots.at(from + i), work.bias.data() + i * work.keys_padded);
}

// Scores of the queries of one head of keys: [G,tile,L] into work.scores.
template <Kind KIND, int NC>
static void take_scores(const Attention& call, const AttentionForm& form, std::int64_t r,
                        std::int64_t kv, std::int64_t from, std::int64_t tile, bool pairs,
                        Work& work) {
  const std::int64_t L = work.keys_padded, EP = work.size_padded, stride = L + LANES;
  const std::int64_t group = form.heads / form.kv_heads;
  std::int64_t last = 0;  // of these queries
  for (std::int64_t i = 0; i < tile; ++i)
    last = std::max(last, work.reach[call.spots.at(from + i)]);
  last = std::min(padded(last), work.last);
  const std::uint8_t* seen = work.seen.data() + (work.by_head ? kv * L : 0);
  const float* q = work.q.data() + kv * group * tile * EP;
  const void* rows[LANES];
  const auto gather = [&](std::int64_t j) {
    return gather_block<KIND>(call.k, r, kv, j, form.size, seen + j, work.wide.data(), EP, rows);
  };
  if (tile < TALL) {
    for (std::int64_t j = work.first; j < last; j += LANES) {
      if (!gather(j)) continue;
      if (pairs)
        score_rows_pairs(rows, work.q_plain.data() + kv * group * tile * form.size, group * tile,
                         form.size, form.scale, work.scores.data() + j, stride);
      else
        score_rows<KIND, NC>(rows, q, group * tile, EP, work.scores.data() + j, stride);
    }
    return;
  }
  std::int64_t begin = 0;  // queries before it see none of these keys, nor of later ones
  for (std::int64_t j = work.first; j < last; j += BROAD) {
    for (int part = 0; part < 2; ++part) {
      float* to = work.turned.data() + part * LANES;
      if (j + part * LANES < last && gather(j + part * LANES))
        turn<KIND>(rows, form.size, to);
      else
        for (std::int64_t e = 0; e < form.size; ++e) store(to + e * BROAD, vf{});
    }
    while (begin < tile && work.reach[call.spots.at(from + begin)] <= j) ++begin;
    for (std::int64_t g = 0; g < group; ++g)
      for (std::int64_t i = std::min(begin, tile - TALL); i < tile; i += TALL) {
        const std::int64_t at = g * tile + std::min(i, tile - TALL);  // the last ones overlap
        score_tall(work.turned.data(), q + at * EP, form.size, EP,
                   work.scores.data() + at * stride + j, stride);
      }
  }
}

// Row sum, lse and key sums of the queries of one head of keys.
static void judge_rows(const Attention& call, const AttentionForm& form, std::int64_t r,
                       std::int64_t kv, std::int64_t from, std::int64_t tile, Work& work,
                       float* row_sum, float* scores) {
  const View view{form.positions, form.keys, form.causal};
  const std::int64_t L = work.keys_padded, group = form.heads / form.kv_heads;
  const Values& values = work.values;
  const float* sums = values.sums + kv * values.stride;
  const float* norms = values.squares + kv * values.stride;
  for (std::int64_t g = 0; g < group; ++g)
    for (std::int64_t i = 0; i < tile; ++i) {
      const std::int64_t s = call.spots.at(from + i), h = kv * group + g;
      const std::int64_t head = r * form.kv_heads + kv;
      const bool live = work.live[(work.by_head ? h : 0) * form.positions + s];
      const float* q = work.q.data() + (h * tile + i) * work.size_padded;
      float* own = work.scores.data() + (g * tile + i) * (L + LANES);
      Mixed mixed;
      if (live && work.free) {
        mixed = mix<false>(own, nullptr, work.first, work.reach[s], form.softcap, sums, norms);
      } else if (live) {
        float* bias = work.bias.data() + (work.by_head || work.biased ? 0 : i * L);
        if (work.by_head) visible(call.mask, view, r, h, s, bias);
        mixed = mix<true>(own, bias, work.first, work.reach[s], form.softcap, sums, norms);
      }
      if (call.key_sums != nullptr)
        scores[s] = larger(scores[s],
                           score_ratio(form, mixed.scores, q, call.key_sums + head * form.size,
                                       call.key_reach[head]));
      if (!live) continue;
      const float* o = numbers(call.output.data, call.output.kind, call.output.at(r, h, s),
                               form.value_size, work.out.data());
      vf total = {}, squares = {};
      chunks(form.value_size, [&](std::int64_t at, auto take) {
        const vf v = take(o + at);
        total += v;
        squares += v * v;
      });
      float one[LANES];
      const float* lse = call.lse.data ? numbers(call.lse.data, call.lse.kind,
                                                 call.lse.at(r, h, s), 1, one)
                                       : nullptr;
      row_sum[s] = larger(row_sum[s],
                          row_sum_ratio(form, mixed, sum(total), std::sqrt(sum(squares)),
                                        call.output.kind, lse));
    }
}

// Whether every bound is a plain number: then a number between them needs no division.
static bool bounded(const float* low, const float* high, std::int64_t size) {
  vf most = {};
  chunks(size, [&](std::int64_t at, auto take) {
    most = larger(most, larger(magnitude(take(low + at)), magnitude(take(high + at))));
  });
  return largest(most) < 1e36f;
}

static void judge_hull(const Attention& call, const AttentionForm& form, std::int64_t r,
                       Work& work, float* hull, float* finite) {
  const Rounding round = rounding(call.output.kind);
  const float share = form.hull_ulp * round.roundoff + 8 * U32;
  const std::int64_t EV = work.value_padded, group = form.heads / form.kv_heads;
  work.plain.resize(form.kv_heads);
  for (std::int64_t kv = 0; kv < form.kv_heads; ++kv)
    work.plain[kv] =
        bounded(work.values.low + kv * EV, work.values.high + kv * EV, form.value_size);
  const float top = round.most * form.headroom;
  for (std::int64_t s = 0; s < form.positions; ++s) {
    vu most = {};
    hull[s] = 0.0f;
    for (std::int64_t h = 0; h < form.heads; ++h) {
      const float* low = work.values.low + h / group * EV;
      const float* high = work.values.high + h / group * EV;
      const float* o = numbers(call.output.data, call.output.kind, call.output.at(r, h, s),
                               form.value_size, work.out.data());
      vi within = ~vi{};
      chunks(form.value_size, [&](std::int64_t at, auto take) {
        const vf v = take(o + at);
        most = larger(most, bits(v));
        within &= (v >= take(low + at)) & (v <= take(high + at));
      });
      // attention_mask says what a query without a key means.
      if ((work.plain[h / group] && everywhere(within)) ||
          !work.live[(work.by_head ? h : 0) * form.positions + s])
        continue;
      vf worst = {};
      chunks(form.value_size, [&](std::int64_t at, auto take) {
        const vf v = take(o + at), lo = take(low + at), hi = take(high + at);
        const vf excess = larger(vf{}, larger(lo - v, v - hi));
        const vf reach = larger(magnitude(lo), magnitude(hi));
        worst = larger(worst, over(excess, reach * share + round.step));
      });
      hull[s] = larger(hull[s], largest(worst));
    }
    finite[s] = largest(most) / top;
  }
}

// All of a row but its mask, with the sums of the values at hand.
template <Kind KIND, int NC>
static void judge_row(const Attention& call, const AttentionForm& form, std::int64_t r, Work& work,
                      float* row_sum, float* hull, float* scores, float* finite) {
  std::fill(row_sum, row_sum + form.positions, 0.0f);
  std::fill(scores, scores + form.positions, 0.0f);
  const std::int64_t group = form.heads / form.kv_heads, count = call.spots.count;
  const std::int64_t most =
      std::max<std::int64_t>(1, SCORES_AT_ONCE / std::max<std::int64_t>(1, group * form.keys));
  const std::int64_t tiles = (count + most - 1) / most;
  std::int64_t even = (count + tiles - 1) / tiles;
  if (even > TALL && tiles > 1) even = (even + TALL - 1) / TALL * TALL;
  work.scores.resize(group * even * (work.keys_padded + LANES));
  for (std::int64_t at = 0; at < count; at += even) {
    const std::int64_t tile = std::min(count, at + even) - at;
    const bool narrow = tile < TALL && in_pairs(call.q, KIND, form.size);
    take_queries(call, form, r, at, at + tile, narrow, work);
    for (std::int64_t kv = 0; kv < form.kv_heads; ++kv) {
      take_scores<KIND, NC>(call, form, r, kv, at, tile, narrow, work);
      judge_rows(call, form, r, kv, at, tile, work, row_sum, scores);
    }
  }
  judge_hull(call, form, r, work, hull, finite);
}

template <Kind KIND, int NC>
static void attention_row(const Attention& call, const AttentionForm& form, std::int64_t r,
                          RowKept* kept, float* row_sum, float* hull, float* mask, float* scores,
                          float* finite) {
  static thread_local Work held;
  Work& work = held;
  work.keys_padded = padded(form.keys);
  work.size_padded = padded(form.size);
  work.value_padded = padded(form.value_size);
  work.wide.resize(LANES * std::max(work.size_padded, work.value_padded));
  work.out.resize(work.value_padded);
  work.turned.resize(BROAD * work.size_padded);
  look(call, form, r, work);
  if (work.by_head) kept = nullptr;
  const auto judge = [&] {
    judge_row<KIND, NC>(call, form, r, work, row_sum, hull, scores, finite);
  };
  const auto renew = [&] {
    take_values<KIND, NC>(call, form, r, work);
    if (kept != nullptr)
      kept->keep(form.kv_heads, form.value_size, work.seen.data(), form.keys, work.values,
                 form.positions > 1);
  };
  if (written_values(call, form, r, work)) {
    judge();
  } else if (kept != nullptr && form.positions == 1 &&
             kept->follow(call.v, r, form.value_size, work.seen.data(), form.keys,
                          work.wide.data(), work.values)) {
    judge();
    if (row_sum[0] <= 1.0f && hull[0] <= 1.0f) {
      kept->served();
    } else {
      // A fault, or other values in their place: as they are now they decide.
      renew();
      judge();
      kept->missed();
    }
  } else {
    renew();
    judge();
  }
  for (std::int64_t s = 0; s < form.positions; ++s) mask[s] = work.bad[s] ? INF : 0.0f;
}

using AttentionRow = decltype(&attention_row<Kind::FLOAT, 0>);

// The kernel for head size and dtype; odd sizes are widened into scratch memory first.
static AttentionRow attention_kernel(const Attention& call, const AttentionForm& form) {
  constexpr int HEAD = 64 / LANES;
  if (form.size % LANES || form.value_size % LANES || call.k.kind != call.v.kind)
    return attention_row<Kind::FLOAT, 0>;
  const bool usual = form.size == 64 && form.value_size == 64;
  switch (call.k.kind) {
    case Kind::BFLOAT:
      return usual ? attention_row<Kind::BFLOAT, HEAD> : attention_row<Kind::BFLOAT, 0>;
    case Kind::HALF:
      return usual ? attention_row<Kind::HALF, HEAD> : attention_row<Kind::HALF, 0>;
    default: return usual ? attention_row<Kind::FLOAT, HEAD> : attention_row<Kind::FLOAT, 0>;
  }
}

}  // namespace tocsin
