// RMSNorm, residual, gated activation, rotation and plain magnitudes: each in one pass.
#pragma once
#include "rows.h"

namespace tocsin {

struct Norm {
  Rows x, y, weight;
};
struct NormForm {
  std::int64_t size;
  float eps, dot_ulp, range_ulp, headroom;
};

// Ratios of tokens [from, to): sum of y against rstd * sum x w, and the size of y / w.
static void rms_norm(const Norm& call, const NormForm& form, std::int64_t from, std::int64_t to,
                     float* dot, float* range, float* finite) {
  const std::int64_t size = form.size;
  const Rounding round = rounding(call.y.kind);
  float* wide = scratch(0, 3 * size);
  float* inverse = scratch(1, 2 * size + 2 * LANES);
  float* kept = inverse + size + LANES;
  const float* w = call.weight.row(0, 0, size, wide);
  vf most_w = {};
  chunks(size, [&](std::int64_t at, auto take) {
    most_w = larger(most_w, magnitude(take(w + at)));
  });
  const float heaviest = largest(most_w);
  const float small = 1e-3f * heaviest;  // below that share of the largest y / w is noise
  vf inverse_squares = {};
  chunks(size, [&](std::int64_t at, auto take) {
    const vf v = take(w + at);
    const auto keep = magnitude(v) > small;
    const vf one = keep ? all(1.0f) : vf{};
    const vf turned = keep ? 1.0f / v : vf{};
    store(inverse + at, turned);
    store(kept + at, one);
    inverse_squares += turned * turned;
  });
  const float root_size = std::sqrt((float)size);
  // 0 * heaviest: a weight that is no number leaves no channel, and no limit either.
  const float step =
      round.step * (1.0f + std::sqrt(sum(inverse_squares))) + 0.0f * heaviest;
  const float range_share = form.range_ulp * round.roundoff + 32 * U32;
  const float reach = heaviest * (root_size * (1 + 4 * round.roundoff));
  const float dot_share = form.dot_ulp * round.roundoff + 3 * root_size * U32;
  for (std::int64_t t = from; t < to; ++t) {
    const float* x = call.x.row(t, 0, size, wide + size);
    const float* y = call.y.row(t, 0, size, wide + 2 * size);
    vf squares = {}, squares_kept = {}, weighted = {}, total = {}, length = {}, found = {};
    vu most = {};
    chunks(size, [&](std::int64_t at, auto take) {
      const vf a = take(x + at), b = take(y + at), c = take(inverse + at), square = a * a;
      squares += square;
      squares_kept += square * take(kept + at);
      weighted += a * take(w + at);
      total += b;
      length += b * b;
      const vf plain = b * c;
      found += plain * plain;
      most = larger(most, bits(b));
    });
    const float mean = sum(squares) / size;
    const float scale = smaller(std::sqrt(sum(length)), reach);
    const float residual = sum(total) - sum(weighted) / std::sqrt(mean + form.eps);
    dot[t] = over(residual, scale * dot_share + 2 * root_size * round.step);
    const float expected = std::sqrt(sum(squares_kept) / (mean + form.eps));
    range[t] = over(std::sqrt(sum(found)) - expected, expected * range_share + step);
    finite[t] = largest(most) / (round.most * form.headroom);
  }
}

struct Three {
  Rows a, b, y;  // x and delta, or gate and up; and the output
};

struct SumLimits {
  float sum_ulp, terms_ulp, headroom;
};

static void residual(const Three& call, std::int64_t size, SumLimits limits, std::int64_t from,
                     std::int64_t to, float* ratio, float* finite) {
  const Rounding round = rounding(call.y.kind);
  const float share = limits.sum_ulp * round.roundoff;
  const float terms_share = limits.terms_ulp * round.roundoff;
  float* wide = scratch(0, 3 * size);
  for (std::int64_t t = from; t < to; ++t) {
    const float* a = call.a.row(t, 0, size, wide);
    const float* b = call.b.row(t, 0, size, wide + size);
    const float* y = call.y.row(t, 0, size, wide + 2 * size);
    vf worst = {};
    vu most = {};
    chunks(size, [&](std::int64_t at, auto take) {
      const vf x = take(a + at), delta = take(b + at), exact = x + delta, found = take(y + at);
      const vf terms = (magnitude(x) + magnitude(delta)) * terms_share;
      worst = larger(worst, over(found - exact, magnitude(exact) * share + terms + round.step));
      most = larger(most, bits(found));
    });
    ratio[t] = largest(worst);
    finite[t] = largest(most) / (round.most * limits.headroom);
  }
}

enum class Activation { SILU, GELU, GELU_TANH };

static inline vf activated(vf gate, Activation activation) {
  if (activation == Activation::SILU) return gate / (1.0f + exponential(-gate));
  if (activation == Activation::GELU_TANH) {
    // 0.5 (1 + tanh u) is the logistic function of 2 u, without the cancellation.
    const vf u = 0.79788456080286536f * (gate + 0.044715f * (gate * gate * gate));
    return gate / (1.0f + exponential(-2.0f * u));
  }
  vf half = gate;
  for (int i = 0; i < LANES; ++i) half[i] = 0.5f * std::erfc(-gate[i] * 0.70710678118654752f);
  return gate * half;
}

template <Activation ACTIVATION>
static void swiglu(const Three& call, std::int64_t size, float limit_ulp, float headroom,
                   std::int64_t from, std::int64_t to, float* ratio, float* finite) {
  const Rounding round = rounding(call.y.kind);
  const float share = limit_ulp * round.roundoff;
  float* wide = scratch(0, 3 * size);
  for (std::int64_t t = from; t < to; ++t) {
    const float* g = call.a.row(t, 0, size, wide);
    const float* u = call.b.row(t, 0, size, wide + size);
    const float* y = call.y.row(t, 0, size, wide + 2 * size);
    vf worst = {};
    vu most = {};
    chunks(size, [&](std::int64_t at, auto take) {
      const vf gate = take(g + at), up = take(u + at), found = take(y + at);
      const vf exact = activated(gate, ACTIVATION) * up;
      // Near its flat end an activation is a small difference of large numbers.
      const vf flat = magnitude(gate * up) * (8 * U32);
      const vf limit =
          magnitude(exact) * share + flat + round.step * (1.0f + magnitude(up));
      worst = larger(worst, over(found - exact, limit));
      most = larger(most, bits(found));
    });
    ratio[t] = largest(worst);
    finite[t] = largest(most) / (round.most * headroom);
  }
}

// A tensor [R,H,S,E] whose last axis lies together.
struct Heads {
  const void* data = nullptr;
  Kind kind = Kind::FLOAT;
  std::int64_t row, head, position;  // strides
  std::int64_t heads = 0;
  std::int64_t at(std::int64_t r, std::int64_t h, std::int64_t s) const {
    return r * row + h * head + s * position;
  }
};

struct Rope {
  Heads before[2], after[2];  // queries and keys; one without heads is left out
  Heads cos, sin;             // [R|1,1,S,turned]
};
struct RopeForm {
  std::int64_t rows, positions, size, turned;
  float table_scale, norm_ulp, sum_ulp, headroom;
};

// Ratios of token r * S + s, the largest over heads: pair lengths, and the signed sum.
static void rope(const Rope& call, const RopeForm& form, std::int64_t from, std::int64_t to,
                 float* norm, float* signed_sum, float* finite) {
  const std::int64_t size = form.size, half = form.turned / 2;
  float* wide = scratch(0, 4 * size + form.turned);
  float* factors = scratch(1, size + LANES);
  const float scale = std::fabs(form.table_scale);
  const float root_size = std::sqrt((float)size);
  constexpr float SQUARE_LOST = 0x1p-63f;  // the square of anything smaller is lost in float32
  for (std::int64_t t = from; t < to; ++t) {
    const std::int64_t r = t / form.positions, s = t % form.positions;
    const float* cos = numbers(call.cos.data, call.cos.kind, call.cos.at(r, 0, s), form.turned,
                               wide + 2 * size);
    const float* sin = numbers(call.sin.data, call.sin.kind, call.sin.at(r, 0, s), form.turned,
                               wide + 3 * size);
    // y = x cos + cat(-x[half:], x[:half]) sin, summed: the factor of x_i.
    for (std::int64_t i = 0; i < half; ++i) {
      factors[i] = cos[i] + sin[half + i];
      factors[half + i] = cos[half + i] - sin[i];
    }
    for (std::int64_t i = form.turned; i < size; ++i) factors[i] = 1.0f;  // passes through
    vf worst_pair = {};
    float worst_sum = 0.0f, worst_finite = 0.0f;
    for (int which = 0; which < 2; ++which) {
      const Heads &in = call.before[which], &out = call.after[which];
      if (in.heads == 0) continue;
      const Rounding round = rounding(out.kind);
      const float share = form.norm_ulp * round.roundoff + 16 * U32;
      const float floor = 4 * (round.step > SQUARE_LOST ? round.step : SQUARE_LOST);
      const float sum_share = form.sum_ulp * round.roundoff + (8 + 3 * root_size) * U32;
      vu most = {};
      for (std::int64_t h = 0; h < in.heads; ++h) {
        const float* x = numbers(in.data, in.kind, in.at(r, h, s), size, wide);
        const float* y = numbers(out.data, out.kind, out.at(r, h, s), size, wide + size);
        chunks(half, [&](std::int64_t at, auto take) {
          const vf a = take(x + at), b = take(x + half + at);
          const vf c = take(y + at), d = take(y + half + at);
          const vf before = (a * a + b * b) * (scale * scale), after = c * c + d * d;
          // |A - B| = |A² - B²| / (A + B), and A is near B wherever the ratio is near 1: one root.
          const vf size = root(before), limit = size * share + floor;
          worst_pair = larger(worst_pair, magnitude(after - before) /
                                                  ((2.0f * size + 0x1p-60f) * limit) +
                                              limit * LIMIT_SHARE);
        });
        vf residual = {}, squares = {};
        chunks(size, [&](std::int64_t at, auto take) {
          const vf v = take(x + at), found = take(y + at);
          residual += found - v * take(factors + at);
          squares += v * v;
          most = larger(most, bits(found));
        });
        const float length = std::sqrt(sum(squares)) * (scale > 1.0f ? scale : 1.0f);
        worst_sum = larger(worst_sum, over(sum(residual), length * sum_share +
                                                              4 * root_size * round.step));
      }
      worst_finite = larger(worst_finite, largest(most) / (round.most * form.headroom));
    }
    norm[t] = largest(worst_pair);
    signed_sum[t] = worst_sum;
    finite[t] = worst_finite;
  }
}

// The largest sign-cleared bit pattern of [rows, size]: NaN, infinity and range in one pass.
static float most_of(const Rows& rows, std::int64_t from, std::int64_t to, std::int64_t size) {
  float* wide = scratch(0, size);
  vu most[2] = {};
  int turn = 0;
  for (std::int64_t t = from; t < to; ++t) {
    const float* x = rows.row(t, 0, size, wide);
    chunks(size, [&](std::int64_t at, auto take) {
      turn ^= 1;
      most[turn] = larger(most[turn], bits(take(x + at)));
    });
  }
  return largest(larger(most[0], most[1]));
}

}  // namespace tocsin
