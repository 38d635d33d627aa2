// The ends of a step: logits against what hidden state and weight can give, and rotary tables.
#pragma once
#include "layers.h"

namespace tocsin {

struct Head {
  Rows hidden, weight;              // data null where there is none
  const float* row_sums = nullptr;  // [V]
  std::int64_t hidden_size = 0;
  bool bounded = false;  // weight_norm_max is known
  float softcap = 0, weight_norm_max = 0, limit = 1, winner_ulp = 4, accumulation = 2;
};

// The index of the first number that is this one; for NaN of the first NaN.
static std::int64_t index_of(const float* x, std::int64_t size, float top) {
  std::int64_t at = 0;
  for (; at + LANES <= size; at += LANES) {
    const vf v = load(x + at);
    const vi hit = (v == top) | ((top != top) & (v != v));
    if (largest((vu)hit & 1u) != 0.0f) break;
  }
  for (; at < size; ++at)
    if (x[at] == top || (top != top && x[at] != x[at])) return at;
  return 0;
}

static float winner_ratio(const Head& head, const float* h, const float* row, float top,
                          std::int64_t winner, const Rounding& round, float weight_roundoff) {
  vf dot = {}, h_squares = {}, row_squares = {}, total = {};
  chunks(head.hidden_size, [&](std::int64_t at, auto take) {
    const vf a = take(h + at), b = take(row + at);
    dot += a * b;
    h_squares += a * a;
    row_squares += b * b;
    total += b;
  });
  const float root_size = std::sqrt((float)head.hidden_size);
  float length = std::sqrt(sum(row_squares));
  if (head.bounded)
    length = smaller(length, head.weight_norm_max * (1 + 4 * weight_roundoff));
  const float share = (head.accumulation * root_size + 4) * U32;
  const float reach = std::sqrt(sum(h_squares)) * length;
  float exact = sum(dot), rounded = std::fabs(exact);
  if (head.softcap != 0.0f) {
    exact = std::tanh(exact / head.softcap) * head.softcap;
    rounded += std::fabs(exact);  // the product was rounded, then the cap of it
  }
  const float limit = reach * share + round.step +
                      smaller(rounded, reach * 2) * (head.winner_ulp * round.roundoff);
  const float ratio = over(top - exact, limit);
  if (head.row_sums == nullptr) return ratio;
  const float kept = length * ((head.accumulation + root_size) * U32) + 0x1p-126f;
  return larger(ratio, over(sum(total) - head.row_sums[winner], kept));
}

// As numerical.logits_bound, numerical.logits_winner and numerical.finite on one token.
static void judge_logits(const Head& head, const Rows& logits, std::int64_t t, std::int64_t size,
                         float headroom, float* bound, float* winner, float* finite) {
  const Rounding round = rounding(logits.kind);
  const float* x = logits.row(t, 0, size, scratch(1, size));
  vu sizes = {};
  vf tops = all(-INF);
  chunks(size, [&](std::int64_t at, auto take) {
    const vf v = take(x + at);
    sizes = larger(sizes, bits(v));
    if (at + LANES <= size) tops = upper(v, tops);
  });
  const float most = largest(sizes);
  float top = largest(tops);
  for (std::int64_t i = size / LANES * LANES; i < size; ++i) top = x[i] > top ? x[i] : top;
  if (most != most) top = most;
  *finite = most / (round.most * headroom);
  *winner = 0.0f;
  const float* h = nullptr;
  if (head.hidden.data != nullptr)
    h = head.hidden.row(t, 0, head.hidden_size, scratch(2, head.hidden_size));
  const float slack = 1 + 4 * round.roundoff;
  if (head.softcap != 0.0f) {
    *bound = most / (head.softcap * slack * head.limit);
  } else if (h == nullptr || !head.bounded) {
    *bound = most / round.most / head.limit;
  } else {
    vf squares = {};
    chunks(head.hidden_size, [&](std::int64_t at, auto take) {
      const vf a = take(h + at);
      squares += a * a;
    });
    const float reach = std::sqrt(sum(squares)) * head.weight_norm_max *
                        (slack + 2 * std::sqrt((float)head.hidden_size) * U32);
    *bound = over(most, reach * head.limit + round.step);
  }
  if (head.weight.data == nullptr || size == 0) return;
  const std::int64_t best = index_of(x, size, top);
  const float* row = head.weight.row(best, 0, head.hidden_size, scratch(3, head.hidden_size));
  *winner = winner_ratio(head, h, row, x[best], best, round,
                         rounding(head.weight.kind).roundoff);
}

struct TableForm {
  std::int64_t turned;
  float scale, limit_ulp;
  const double* inv_freq;
};

// cos² + sin² = scale² at one position.
static float judge_table(const Rows& cos, const Rows& sin, std::int64_t position,
                         const TableForm& form) {
  const float roundoff = rounding(cos.kind).roundoff, square = form.scale * form.scale;
  const float limit = square * (form.limit_ulp * roundoff + 4 * U32);
  const float* c = cos.row(position, 0, form.turned, scratch(1, form.turned));
  const float* s = sin.row(position, 0, form.turned, scratch(2, form.turned));
  float worst = 0.0f;
  for (std::int64_t i = 0; i < form.turned; ++i)
    worst = larger(worst, std::fabs(c[i] * c[i] + s[i] * s[i] - square) / limit);
  return worst;
}

// Both halves of a table's row against the angles in float64.
static float judge_angles(const Rows& cos, const Rows& sin, std::int64_t position,
                          std::int64_t id, const TableForm& form) {
  const std::int64_t half = form.turned / 2;
  const double roundoff = rounding(cos.kind).roundoff;
  const float* c = cos.row(position, 0, form.turned, scratch(1, form.turned));
  const float* s = sin.row(position, 0, form.turned, scratch(2, form.turned));
  float worst = 0.0f;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = (double)id * form.inv_freq[i];
    const float exact_cos = std::cos(angle) * form.scale, exact_sin = std::sin(angle) * form.scale;
    // Beyond a quarter nothing is left of an angle; a position that exploded widens no limit.
    const double own = 4.0 * U32 * (1.0 + std::fabs(angle));
    const float limit =
        std::fabs((double)form.scale) * (form.limit_ulp * roundoff + (own > 0.25 ? 0.25 : own));
    for (const std::int64_t at : {i, half + i}) {
      worst = larger(worst, over(c[at] - exact_cos, limit));
      worst = larger(worst, over(s[at] - exact_sin, limit));
    }
  }
  return worst;
}

}  // namespace tocsin
