// Block checksums of a linear layer: several tokens at once against a pair of weight block sums.
#pragma once
#include "rows.h"

namespace tocsin {

struct Linear {
  Rows x, y;
  const float* sums;        // [G,D]
  const float* norms;       // [G]
  const float* bias_sums;   // [G] or null
  const float* bias_norms;  // [G] or null
  const float* weights;     // [block] factor of each feature in its block's sum, or null: ones
};
struct LinearForm {
  std::int64_t hidden, features, block;
  float limit_ulp, accumulation, headroom;
};

template <int TT, int GG>
static inline void dots(const float* const* x, const float* sums, std::int64_t hidden,
                        float (*out)[2]) {
  vf held[TT][GG] = {};
  chunks(hidden, [&](std::int64_t at, auto take) __attribute__((always_inline)) {
    vf s[GG];
    for (int g = 0; g < GG; ++g) s[g] = take(sums + g * hidden + at);
    for (int t = 0; t < TT; ++t) {
      const vf v = take(x[t] + at);
      for (int g = 0; g < GG; ++g) held[t][g] += v * s[g];
    }
  });
  for (int t = 0; t < TT; ++t)
    for (int g = 0; g < GG; ++g) out[t][g] = sum(held[t][g]);
}

template <int TT>
static void linear_tile(const Linear& call, const LinearForm& form, std::int64_t first,
                        float* ratio, float* finite) {
  const std::int64_t hidden = form.hidden, groups = (form.features + form.block - 1) / form.block;
  const Rounding round = rounding(call.y.kind);
  float* wide = scratch(0, TT * hidden);
  float* part = scratch(1, form.block);
  const float* x[TT];
  float length[TT], worst[TT] = {};
  vu most[TT] = {};
  for (int t = 0; t < TT; ++t) {
    x[t] = call.x.row(first + t, 0, hidden, wide + t * hidden);
    vf squares[2] = {};
    int turn = 0;
    chunks(hidden, [&](std::int64_t at, auto take) {
      const vf v = take(x[t] + at);
      squares[turn ^= 1] += v * v;
    });
    length[t] = std::sqrt(sum(squares[0] + squares[1]));
  }
  const float share = (form.accumulation * std::sqrt((float)hidden) + 4.0f) * U32;
  const float floor = form.limit_ulp * std::sqrt((float)form.block) * round.step;
  const bool coarse = round.roundoff > U32;
  const float store_share = form.limit_ulp * round.roundoff;
  for (std::int64_t g = 0; g < groups; g += 2) {
    float expected[TT][2];
    const int pair = g + 1 < groups ? 2 : 1;
    if (pair == 2)
      dots<TT, 2>(x, call.sums + g * hidden, hidden, expected);
    else
      dots<TT, 1>(x, call.sums + g * hidden, hidden, expected);
    for (int i = 0; i < pair; ++i) {
      const std::int64_t from = (g + i) * form.block;
      const std::int64_t count = std::min(form.block, form.features - from);
      for (int t = 0; t < TT; ++t) {
        const float* y = call.y.row(first + t, from, count, part);
        vf total[2] = {}, squares = {};
        int turn = 0;
        chunks(count, [&](std::int64_t at, auto take) {
          const vf v = take(y + at);
          total[turn ^= 1] += call.weights ? v * take(call.weights + at) : v;
          if (coarse) squares += v * v;
          most[t] = larger(most[t], bits(v));
        });
        const float bias = call.bias_sums ? call.bias_sums[g + i] : 0.0f;
        const float residual = sum(total[0] + total[1]) - (expected[t][i] + bias);
        float reach = length[t] * scale_of(call.norms[g + i]);
        if (call.bias_norms) reach += call.bias_norms[g + i];
        float limit = reach * share + floor;
        if (coarse) limit += smaller(std::sqrt(sum(squares)), reach) * store_share;
        worst[t] = larger(worst[t], over(residual, limit));
      }
    }
  }
  for (int t = 0; t < TT; ++t) {
    ratio[first + t] = worst[t];
    finite[first + t] = largest(most[t]) / (round.most * form.headroom);
  }
}

// The same of half as many tokens as a vector has lanes: lane 2 t + i is token t, block g + i.
template <Kind KIND>
static void linear_full(const Linear& call, const LinearForm& form, std::int64_t first,
                        float* ratio, float* finite) {
  constexpr int TT = LANES / 2;
  const std::int64_t hidden = form.hidden, groups = (form.features + form.block - 1) / form.block;
  const Rounding round = rounding(call.y.kind);
  float* wide = scratch(0, TT * hidden);
  float* part = scratch(1, form.block);
  const float* x[TT];
  float length[LANES];
  vu most[TT] = {};
  for (int t = 0; t < TT; ++t) {
    x[t] = call.x.row(first + t, 0, hidden, wide + t * hidden);
    vf squares = {};
    chunks(hidden, [&](std::int64_t at, auto take) {
      const vf v = take(x[t] + at);
      squares += v * v;
    });
    length[2 * t] = length[2 * t + 1] = std::sqrt(sum(squares));
  }
  const float share = (form.accumulation * std::sqrt((float)hidden) + 4.0f) * U32;
  const float floor = form.limit_ulp * std::sqrt((float)form.block) * round.step;
  const float store_share = form.limit_ulp * round.roundoff;
  const auto fold_all = [](const vf* held) {
    return fold_rows<1, LEVELS>([&](int i) { return Several<1>{{held[i]}}; }, 0).v[0];
  };
  vf worst = {};
  for (std::int64_t g = 0; g < groups; g += 2) {
    // A last block without a partner stands for both.
    const std::int64_t pair[2] = {g, g + 1 < groups ? g + 1 : g};
    const float* sums[2] = {call.sums + pair[0] * hidden, call.sums + pair[1] * hidden};
    vf dot[LANES] = {}, total[LANES] = {}, squares[LANES] = {};
    chunks(hidden, [&](std::int64_t at, auto take) __attribute__((always_inline)) {
      const vf a = take(sums[0] + at), b = take(sums[1] + at);
#pragma GCC unroll 8
      for (int t = 0; t < TT; ++t) {
        const vf v = take(x[t] + at);
        dot[2 * t] += v * a;
        dot[2 * t + 1] += v * b;
      }
    });
    vf norms, extra = {}, bias = {};
    for (int i = 0; i < 2; ++i) {
      const std::int64_t from = pair[i] * form.block;
      const std::int64_t count = std::min(form.block, form.features - from);
      for (int t = 0; t < TT; ++t) {
        vf sum_y = {}, sum_squares = {};
        vu top = most[t];
        const auto add = [&](vf v, vf weight) __attribute__((always_inline)) {
          sum_y += call.weights ? v * weight : v;
          if (KIND != Kind::FLOAT) sum_squares += v * v;
          top = larger(top, bits(v));
        };
        if (count % LANES == 0) {
          const void* y = call.y.at(first + t, from);
          for (std::int64_t c = 0; c < count / LANES; ++c)
            add(vector_of<KIND>(y, c), call.weights ? load(call.weights + c * LANES) : vf{});
        } else {
          const float* y = call.y.row(first + t, from, count, part);
          chunks(count, [&](std::int64_t at, auto take) {
            add(take(y + at), call.weights ? take(call.weights + at) : vf{});
          });
        }
        total[2 * t + i] = sum_y;
        squares[2 * t + i] = sum_squares;
        most[t] = top;
        norms[2 * t + i] = scale_of(call.norms[pair[i]]);
        if (call.bias_sums) bias[2 * t + i] = call.bias_sums[pair[i]];
        if (call.bias_norms) extra[2 * t + i] = call.bias_norms[pair[i]];
      }
    }
    const vf residual = fold_all(total) - (fold_all(dot) + bias);
    const vf reach = load(length) * norms + extra;
    vf limit = reach * share + floor;
    if (KIND != Kind::FLOAT) limit += smaller(root(fold_all(squares)), reach) * store_share;
    worst = larger(worst, over(residual, limit));
  }
  for (int t = 0; t < TT; ++t) {
    ratio[first + t] = larger(worst[2 * t], worst[2 * t + 1]);
    finite[first + t] = largest(most[t]) / (round.most * form.headroom);
  }
}

static void linear(const Linear& call, const LinearForm& form, std::int64_t from, std::int64_t to,
                   float* ratio, float* finite) {
  std::int64_t at = from;
  const auto full = call.y.kind == Kind::FLOAT    ? linear_full<Kind::FLOAT>
                    : call.y.kind == Kind::BFLOAT ? linear_full<Kind::BFLOAT>
                                                  : linear_full<Kind::HALF>;
  for (; at + LANES / 2 <= to; at += LANES / 2) full(call, form, at, ratio, finite);
  for (; at + 4 <= to; at += 4) linear_tile<4>(call, form, at, ratio, finite);
  for (; at + 2 <= to; at += 2) linear_tile<2>(call, form, at, ratio, finite);
  for (; at < to; ++at) linear_tile<1>(call, form, at, ratio, finite);
}

}  // namespace tocsin
