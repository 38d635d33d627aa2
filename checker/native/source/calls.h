// Each operator: what its lists must be, and the kernel that runs on them. Part of operators.cpp.

void run_linear(Ratios& out, TensorList x, TensorList y, TensorList block_sums,
                TensorList block_norms, TensorList bias_sums, TensorList bias_norms,
                int64_t block_size, double limit_ulp, double accumulation, double headroom,
                const std::optional<Tensor>& block_weights) {
  as_many({x, y, block_sums, block_norms});
  TORCH_CHECK(bias_sums.empty() || bias_sums.size() == x.size(), "tocsin: bias_sums do not fit");
  TORCH_CHECK(bias_norms.empty() || bias_norms.size() == x.size(), "tocsin: bias_norms do not fit");
  TORCH_CHECK(block_size > 0, "tocsin: block_size is ", block_size, ", expected at least 1");
  const int64_t n = x.size();
  if (n == 0) return out.take(2, 0, 0);
  const int64_t count = tokens(x[0]), hidden = x[0].size(-1), features = y[0].size(-1);
  const int64_t groups = (features + block_size - 1) / block_size;
  out.take(2, n, count);
  Copies copies;
  std::vector<Linear> calls(n);
  const float* weights =
      block_weights ? plain(*block_weights, {block_size}, "block_weights", copies) : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    same(x[i], x[0].sizes(), "x");
    same(y[i], y[0].sizes(), "y");
    TORCH_CHECK(tokens(y[i]) == count || features == 0, "tocsin: y is ", y[i].sizes(), ", x ",
                x[i].sizes());
    calls[i] = {rows_of(x[i], "x", copies),
                rows_of(y[i], "y", copies),
                plain(block_sums[i], {groups, hidden}, "block_sums", copies),
                plain(block_norms[i], {groups}, "block_norms", copies),
                bias_sums.empty() ? nullptr : plain(bias_sums[i], {groups}, "bias_sums", copies),
                bias_norms.empty() ? nullptr : plain(bias_norms[i], {groups}, "bias_norms", copies),
                weights};
  }
  const LinearForm form{hidden, features, block_size, (float)limit_ulp, (float)accumulation,
                        (float)headroom};
  spread_tokens(n, count, n * count * (hidden + features), [&](int64_t i, int64_t a, int64_t b) {
    linear(calls[i], form, a, b, out.of(0, i), out.of(1, i));
  });
}

void run_rms_norm(Ratios& out, TensorList x, TensorList y, TensorList weight, double eps,
                  double dot_ulp, double range_ulp, double headroom) {
  as_many({x, y, weight});
  const int64_t n = x.size();
  if (n == 0) return out.take(3, 0, 0);
  const int64_t count = tokens(x[0]), size = x[0].size(-1);
  out.take(3, n, count);
  Copies copies;
  std::vector<Norm> calls(n);
  for (int64_t i = 0; i < n; ++i) {
    same(x[i], x[0].sizes(), "x");
    same(y[i], x[0].sizes(), "y");
    same(weight[i], {size}, "weight");
    calls[i] = {rows_of(x[i], "x", copies), rows_of(y[i], "y", copies),
                rows_of(weight[i], "weight", copies)};
  }
  const NormForm form{size, (float)eps, (float)dot_ulp, (float)range_ulp, (float)headroom};
  spread_tokens(n, count, n * count * size * 2, [&](int64_t i, int64_t a, int64_t b) {
    rms_norm(calls[i], form, a, b, out.of(0, i), out.of(1, i), out.of(2, i));
  });
}

std::vector<Three> threes(TensorList a, TensorList b, TensorList y, Copies& copies) {
  std::vector<Three> calls(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    same(a[i], a[0].sizes(), "an operand");
    same(b[i], a[0].sizes(), "an operand");
    same(y[i], a[0].sizes(), "the output");
    calls[i] = {rows_of(a[i], "an operand", copies), rows_of(b[i], "an operand", copies),
                rows_of(y[i], "the output", copies)};
  }
  return calls;
}

void run_residual(Ratios& out, TensorList x, TensorList delta, TensorList y, double limit_ulp,
                  double terms_ulp, double headroom) {
  as_many({x, delta, y});
  const int64_t n = x.size();
  if (n == 0) return out.take(2, 0, 0);
  const int64_t count = tokens(x[0]), size = x[0].size(-1);
  out.take(2, n, count);
  Copies copies;
  const auto calls = threes(x, delta, y, copies);
  const SumLimits limits = {static_cast<float>(limit_ulp), static_cast<float>(terms_ulp),
                            static_cast<float>(headroom)};
  spread_tokens(n, count, n * count * size * 3, [&](int64_t i, int64_t a, int64_t b) {
    residual(calls[i], size, limits, a, b, out.of(0, i), out.of(1, i));
  });
}

void run_swiglu(Ratios& out, TensorList gate, TensorList up, TensorList y,
                std::string_view activation, double limit_ulp, double headroom) {
  as_many({gate, up, y});
  TORCH_CHECK(activation == "silu" || activation == "gelu" || activation == "gelu_tanh",
              "tocsin: the activation ", std::string(activation), " is not known here");
  const int64_t n = gate.size();
  if (n == 0) return out.take(2, 0, 0);
  const int64_t count = tokens(gate[0]), size = gate[0].size(-1);
  out.take(2, n, count);
  Copies copies;
  const auto calls = threes(gate, up, y, copies);
  const auto kernel = activation == "silu"   ? swiglu<Activation::SILU>
                      : activation == "gelu" ? swiglu<Activation::GELU>
                                             : swiglu<Activation::GELU_TANH>;
  spread_tokens(n, count, n * count * size * 3, [&](int64_t i, int64_t a, int64_t b) {
    kernel(calls[i], size, limit_ulp, headroom, a, b, out.of(0, i), out.of(1, i));
  });
}

void run_rope(Ratios& out, TensorList q, TensorList k, TensorList q_out, TensorList k_out,
              TensorList cos, TensorList sin, double table_scale, double norm_ulp, double sum_ulp,
              double headroom) {
  as_many({q, q_out, cos, sin});
  as_many({k, k_out});
  TORCH_CHECK(k.empty() || k.size() == q.size(), "tocsin: k does not fit q");
  const int64_t n = q.size();
  if (n == 0) return out.take(3, 0, 0);
  TORCH_CHECK(q[0].dim() == 4 && cos[0].dim() == 3, "tocsin: q is ", q[0].sizes(), ", cos ",
              cos[0].sizes(), ", expected [R,H,S,E] and [R|1,S,E]");
  const int64_t R = q[0].size(0), S = q[0].size(2), E = q[0].size(3), turned = cos[0].size(2);
  out.take(3, n, R * S);
  Copies copies;
  std::vector<Rope> calls(n);
  int64_t elements = 0;
  for (int64_t i = 0; i < n; ++i) {
    same(q[i], q[0].sizes(), "q");
    same(q_out[i], q[0].sizes(), "q_out");
    TORCH_CHECK((cos[i].size(0) == 1 || cos[i].size(0) == R) && cos[i].size(1) == S &&
                    cos[i].dim() == 3 && cos[i].size(2) == turned && turned <= E && turned % 2 == 0,
                "tocsin: cos is ", cos[i].sizes(), ", q ", q[i].sizes());
    same(sin[i], cos[i].sizes(), "sin");
    calls[i].before[0] = heads_of(q[i], "q", copies);
    calls[i].after[0] = heads_of(q_out[i], "q_out", copies);
    if (!k.empty()) {
      same(k[i], {R, k[0].size(1), S, E}, "k");
      same(k_out[i], k[i].sizes(), "k_out");
      calls[i].before[1] = heads_of(k[i], "k", copies);
      calls[i].after[1] = heads_of(k_out[i], "k_out", copies);
    }
    for (const auto& [from, to] : {std::pair{&cos[i], &calls[i].cos}, {&sin[i], &calls[i].sin}}) {
      const Kind kind = kind_of(*from, "the table");
      const bool even = turned <= 1 || from->stride(2) == 1;
      if (!even) copies.push_back(from->contiguous());
      const Tensor& table = even ? *from : copies.back();
      *to = {table.const_data_ptr(), kind, R > 1 && table.size(0) == 1 ? 0 : table.stride(0), 0,
             table.stride(1), 1};
    }
    elements += 2 * (q[i].numel() + (k.empty() ? 0 : k[i].numel()));
  }
  const RopeForm form{R, S, E, turned, (float)table_scale, (float)norm_ulp, (float)sum_ulp,
                      (float)headroom};
  spread_tokens(n, R * S, elements, [&](int64_t i, int64_t a, int64_t b) {
    rope(calls[i], form, a, b, out.of(0, i), out.of(1, i), out.of(2, i));
  });
}

Mask mask_of(const Tensor& given, int64_t R, int64_t H, int64_t S, int64_t L, Copies& copies) {
  TORCH_CHECK(given.device().is_cpu() && given.layout() == at::kStrided && given.dim() <= 4,
              "tocsin: the mask is not a dense tensor of at most 4 axes on the CPU");
  const int64_t full[4] = {R, H, S, L};
  int64_t sizes[4] = {1, 1, 1, 1}, strides[4] = {};
  const Tensor* mask = &given;
  const bool truth = given.scalar_type() == at::kBool;
  const Kind kind = truth ? Kind::FLOAT : kind_of(given, "mask");
  if (given.dim() > 0 && given.size(-1) > 1 && given.stride(-1) != 1) {
    copies.push_back(given.contiguous());
    mask = &copies.back();
  }
  for (int64_t axis = 0; axis < mask->dim(); ++axis) {
    const int64_t to = 4 - mask->dim() + axis;
    sizes[to] = mask->size(axis);
    strides[to] = sizes[to] == 1 ? 0 : mask->stride(axis);
    TORCH_CHECK(sizes[to] == 1 || sizes[to] == full[to], "tocsin: the mask is ", given.sizes(),
                ", expected a form of ", at::IntArrayRef(full, 4));
  }
  return {mask->const_data_ptr(), truth,    kind,     strides[0], strides[1],    strides[2],
          strides[3],             sizes[0], sizes[1], given.numel()};
}

// A number in [0, 1) that the bits of the last query draw: the same call gives the same number.
double drawn(const Heads& q, int64_t positions, int64_t size) {
  const bool wide = q.kind == Kind::FLOAT;
  const char* from = static_cast<const char*>(q.data) + q.at(0, 0, positions - 1) * (wide ? 4 : 2);
  std::uint64_t total = 0;
  for (int64_t e = 0; e < size; ++e) {
    std::int32_t word = 0;
    std::int16_t half = 0;
    std::memcpy(wide ? (void*)&word : (void*)&half, from + e * (wide ? 4 : 2), wide ? 4 : 2);
    total += (std::uint64_t)((std::int64_t)(wide ? word : half) * (2 * e + 1));
  }
  return (double)(total & 1023) / 1024.0;
}

void run_attention(Ratios& out, TensorList q, TensorList k, TensorList v, TensorList output,
                   TensorList mask, TensorList lse, TensorList written, bool causal,
                   std::optional<double> scale, std::optional<double> softcap, double row_ulp,
                   double scores_max, double hull_ulp, double headroom, double score_roundings,
                   double score_per_key) {
  as_many({q, k, v, output});
  const std::size_t n = q.size();
  for (const TensorList& list : {mask, lse})
    TORCH_CHECK(list.empty() || list.size() == n, "tocsin: a list has ", list.size(),
                " tensors, expected none or ", n);
  TORCH_CHECK(written.empty() || written.size() == 6 * n, "tocsin: written has ", written.size(),
              " tensors, expected none or six times ", n);
  if (n == 0) return out.take(5, 0, 0);
  // Key sums of all calls, then key reaches, value sums, norms, lows and highs.
  const auto part = [&](int which) {
    return written.empty() ? TensorList() : written.slice(which * n, n);
  };
  const TensorList key_sums = part(0), key_reach = part(1), value_sums = part(2),
                   value_norms = part(3), value_low = part(4), value_high = part(5);
  for (const Tensor* one : {&q[0], &k[0], &v[0]})
    TORCH_CHECK(one->dim() == 4, "tocsin: q, k and v have 4 axes, not ", one->sizes());
  const int64_t R = q[0].size(0), H = q[0].size(1), S = q[0].size(2), E = q[0].size(3);
  const int64_t K = k[0].size(1), L = k[0].size(2), EV = v[0].size(3);
  TORCH_CHECK(K > 0 && H % K == 0, "tocsin: ", H, " query heads for ", K, " key heads");
  const double wanted = std::max(1.0, scores_max * S / std::max<double>(1, (double)L));
  const int64_t sampled = wanted >= S ? S : (int64_t)wanted;
  const AttentionForm form{R, H, K, S, L, E, EV, causal,
                           (float)(scale ? *scale : 1.0 / std::sqrt((double)E)),
                           (float)(softcap ? *softcap : 0.0), (float)row_ulp, (float)hull_ulp,
                           (float)headroom, (float)score_roundings, (float)score_per_key};
  out.take(5, n, R * S);
  TORCH_CHECK(key_sums.empty() || S == 1, "tocsin: sums of keys are for one query a row, not ", S);
  if (R * H * S * E * L * EV == 0) {  // nothing to mix
    std::fill(out.data, out.data + 5 * n * R * S, 0.0f);
    return;
  }
  Copies copies;
  std::vector<Attention> calls(n);
  std::vector<std::uint8_t> odd(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    same(q[i], q[0].sizes(), "q");
    same(k[i], {R, K, L, E}, "k");
    same(v[i], {R, K, L, EV}, "v");
    same(output[i], {R, H, S, EV}, "output");
    Attention& call = calls[i];
    call.q = heads_of(q[i], "q", copies);
    call.k = heads_of(k[i], "k", copies);
    call.v = heads_of(v[i], "v", copies);
    call.output = heads_of(output[i], "output", copies);
    call.spots = {S, sampled, sampled < S ? drawn(call.q, S, E) : 0.0};
    if (!lse.empty()) {
      same(lse[i], {R, H, S}, "lse");
      const Kind kind = kind_of(lse[i], "lse");
      call.lse = {lse[i].const_data_ptr(), kind,          lse[i].stride(0),
                  lse[i].stride(1),        lse[i].stride(2), H};
    }
    if (!mask.empty()) {
      const bool again = i > 0 && mask[i].is_same(mask[i - 1]);
      call.mask = again ? calls[i - 1].mask : mask_of(mask[i], R, H, S, L, copies);
      if (again) {
        odd[i] = odd[i - 1];
      } else if (!call.mask.truth) {
        Tensor whole = mask[i].contiguous();
        Mask flat = call.mask;
        flat.data = whole.const_data_ptr();
        odd[i] = turned(flat, whole.numel());
      }
    }
    if (!key_sums.empty()) {
      same(key_sums[i], {R, K, E}, "key_sums");
      TORCH_CHECK(key_sums[i].scalar_type() == at::kDouble && key_sums[i].is_contiguous() &&
                      key_sums[i].device().is_cpu(),
                  "tocsin: key_sums is not a plain float64 tensor on the CPU");
      call.key_sums = key_sums[i].const_data_ptr<double>();
      call.key_reach = plain(key_reach[i], {R, K}, "key_reach", copies);
    }
    if (!value_sums.empty()) {
      call.value_sums = plain(value_sums[i], {R, K, L}, "value_sums", copies);
      call.value_norms = plain(value_norms[i], {R, K, L}, "value_norms", copies);
      call.value_low = plain(value_low[i], {R, K, EV}, "value_low", copies);
      call.value_high = plain(value_high[i], {R, K, EV}, "value_high", copies);
    }
  }
  const AttentionRow kernel = attention_kernel(calls[0], form);
  for (const Attention& call : calls)
    TORCH_CHECK(call.k.kind == calls[0].k.kind && call.v.kind == calls[0].v.kind,
                "tocsin: keys and values of the calls differ in dtype");
  std::vector<std::unique_ptr<CallKept>> kept(n);
  for (std::size_t i = 0; i < n && written.empty(); ++i)
    if (out.line(i) >= 0)
      kept[i] = KeptValues::shared().take({out.buffer, out.line(i)}, R, K, EV, calls[i].v.kind);
  const int64_t elements = (int64_t)n * R * (K * L * (E + EV) + H * sampled * L * E / 16);
  const int64_t units = (int64_t)n * R;
  spread(units, elements, [&](int64_t begin, int64_t end) {
    for (int64_t back = begin; back < end; ++back) {
      // Backwards: what the attention itself read last is still near the processor.
      const int64_t unit = units - 1 - back, i = unit / R, r = unit % R, at = r * S;
      kernel(calls[i], form, r, kept[i] ? &kept[i]->rows[r] : nullptr, out.of(0, i) + at, out.of(1, i) + at, out.of(2, i) + at,
                    out.of(3, i) + at, out.of(4, i) + at);
      if (odd[i]) std::fill(out.of(2, i) + at, out.of(2, i) + at + S, INF);
    }
  });
  for (std::size_t i = 0; i < n; ++i)
    if (kept[i]) KeptValues::shared().give({out.buffer, out.line(i)}, std::move(kept[i]));
}

bool same_bits(const void* a, const void* b, int64_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

void run_kv_written(Ratios& out, TensorList key_cache, TensorList value_cache, TensorList new_key,
                    TensorList new_value, const Tensor& slot_mapping, double headroom) {
  as_many({key_cache, value_cache, new_key, new_value});
  const int64_t n = new_key.size(), count = slot_mapping.numel();
  out.take(2, n, count);
  TORCH_CHECK(slot_mapping.scalar_type() == at::kLong && slot_mapping.is_contiguous(),
              "tocsin: slot_mapping is not a plain int64 tensor");
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    Copies copies;
    float* ratio = out.of(0, i);
    float* finite = out.of(1, i);
    std::fill(ratio, ratio + count, 0.0f);
    std::fill(finite, finite + count, 0.0f);
    for (const auto& [cache, fresh] :
         {std::pair{&key_cache[i], &new_key[i]}, {&value_cache[i], &new_value[i]}}) {
      TORCH_CHECK(cache->dim() == 4 && fresh->dim() == 3 && fresh->size(0) == count &&
                      cache->size(2) == fresh->size(1) && cache->size(3) == fresh->size(2),
                  "tocsin: a cache is ", cache->sizes(), ", the new numbers ", fresh->sizes());
      TORCH_CHECK(cache->scalar_type() == fresh->scalar_type(),
                  "tocsin: the cache has another dtype than what is written to it");
      const Kind kind = kind_of(*fresh, "the new numbers");
      const int64_t B = cache->size(1), slots_max = cache->size(0) * B;
      const int64_t K = fresh->size(1), E = fresh->size(2), bytes = fresh->element_size();
      Tensor held_new = fresh->stride(2) == 1 || E == 1 ? *fresh : fresh->contiguous();
      TORCH_CHECK(cache->stride(3) == 1 || E == 1, "tocsin: a cache has an odd last stride");
      const char* cells = static_cast<const char*>(cache->const_data_ptr());
      const char* words = static_cast<const char*>(held_new.const_data_ptr());
      const Rounding round = rounding(kind);
      for (int64_t t = 0; t < count; ++t) {
        if (slots[t] >= slots_max || slots[t] < -1) ratio[t] = INF;
        for (int64_t h = 0; h < K; ++h) {
          const int64_t at = t * held_new.stride(0) + h * held_new.stride(1);
          const float most =
              most_of({words + at * bytes, kind, 0}, 0, 1, E) / (round.most * (float)headroom);
          finite[t] = larger(finite[t], most);
          if (slots[t] < 0 || slots[t] >= slots_max) continue;
          const int64_t to = slots[t] / B * cache->stride(0) + slots[t] % B * cache->stride(1) +
                             h * cache->stride(2);
          if (!same_bits(cells + to * bytes, words + at * bytes, E * bytes)) ratio[t] = INF;
        }
      }
    }
  }
}

void run_logits(Ratios& out, const Tensor& logits, const std::optional<Tensor>& hidden,
                const std::optional<Tensor>& weight_norm_max, std::optional<double> softcap,
                double limit, double headroom, const std::optional<Tensor>& weight,
                const std::optional<Tensor>& weight_row_sums, double winner_ulp,
                double winner_accumulation) {
  const int64_t count = tokens(logits), size = logits.size(-1);
  out.take(3, 1, count);
  Copies copies;
  const Rows rows = rows_of(logits, "logits", copies);
  const int64_t D = hidden ? hidden->size(-1) : 0;
  Head head;
  head.softcap = softcap ? (float)*softcap : 0.0f;
  if (weight_norm_max) {
    head.bounded = true;
    head.weight_norm_max =
        scale_of(*plain(*weight_norm_max, weight_norm_max->sizes(), "weight_norm_max", copies));
    TORCH_CHECK(weight_norm_max->numel() == 1, "tocsin: weight_norm_max is no single number");
  }
  head.limit = (float)limit, head.winner_ulp = (float)winner_ulp;
  head.accumulation = (float)winner_accumulation, head.hidden_size = D;
  if (hidden) {
    TORCH_CHECK(tokens(*hidden) == count, "tocsin: hidden is ", hidden->sizes(), ", logits ",
                logits.sizes());
    head.hidden = rows_of(*hidden, "hidden", copies);
    if (weight) {
      same(*weight, {size, D}, "weight");
      head.weight = rows_of(*weight, "weight", copies);
      if (weight_row_sums)
        head.row_sums = plain(*weight_row_sums, {size}, "weight_row_sums", copies);
    }
  }
  spread(count, count * size, [&](int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t)
      judge_logits(head, rows, t, size, (float)headroom, out.of(0, 0) + t, out.of(1, 0) + t,
                   out.of(2, 0) + t);
  });
}

void run_embedding(Ratios& out, TensorList input_ids, TensorList weight, TensorList y,
                   double headroom) {
  as_many({input_ids, weight, y});
  const int64_t n = y.size();
  if (n == 0) return out.take(2, 0, 0);
  const int64_t count = input_ids[0].numel();
  out.take(2, n, count);
  for (int64_t i = 0; i < n; ++i) {
    Copies copies;
    TORCH_CHECK(weight[i].dim() == 2 && input_ids[i].numel() == count &&
                    y[i].numel() == count * weight[i].size(1),
                "tocsin: y is ", y[i].sizes(), ", input_ids ", input_ids[i].sizes(), ", weight ",
                weight[i].sizes());
    TORCH_CHECK(y[i].scalar_type() == weight[i].scalar_type(),
                "tocsin: y has another dtype than the table");
    const Tensor ids = input_ids[i].to(at::kLong).contiguous();
    const int64_t* id = ids.const_data_ptr<int64_t>();
    const Rows table = rows_of(weight[i], "weight", copies), found = rows_of(y[i], "y", copies);
    const int64_t size = weight[i].size(1), width = y[i].element_size();
    const Rounding round = rounding(found.kind);
    for (int64_t t = 0; t < count; ++t) {
      const char* a = static_cast<const char*>(found.data) + t * found.stride * width;
      bool good = id[t] >= 0 && id[t] < weight[i].size(0);
      if (good) {
        const char* b = static_cast<const char*>(table.data) + id[t] * table.stride * width;
        good = same_bits(a, b, size * width);
      }
      out.of(0, i)[t] = good ? 0.0f : INF;
      out.of(1, i)[t] = most_of(found, t, t + 1, size) / (round.most * (float)headroom);
    }
  }
}

void run_rope_table(Ratios& out, const Tensor& cos, const Tensor& sin, const Tensor& position_ids,
                    const std::optional<Tensor>& inv_freq, int64_t rows, double table_scale,
                    double limit_ulp, double spot_rows) {
  TORCH_CHECK(cos.dim() == 3 && position_ids.dim() == 2, "tocsin: cos is ", cos.sizes(),
              ", position_ids ", position_ids.sizes());
  same(sin, cos.sizes(), "sin");
  const int64_t own = cos.size(0), S = cos.size(1), E = cos.size(2), R = position_ids.size(0);
  TORCH_CHECK((own == 1 || own == rows) && (R == 1 || R == rows) && position_ids.size(1) == S &&
                  E % 2 == 0,
              "tocsin: cos is ", cos.sizes(), ", position_ids ", position_ids.sizes(), " for ",
              rows, " rows");
  out.take(1, 1, rows * S);
  float* ratio = out.of(0, 0);
  std::fill(ratio, ratio + rows * S, 0.0f);
  if (E == 0) return;
  Copies copies;
  const Tensor cosines = cos.contiguous(), sines = sin.contiguous();
  const Rows c{cosines.const_data_ptr(), kind_of(cosines, "cos"), E};
  const Rows s{sines.const_data_ptr(), kind_of(sines, "sin"), E};
  const Tensor ids = position_ids.to(at::kLong).contiguous();
  const int64_t* at = ids.const_data_ptr<int64_t>();
  Tensor frequencies;
  if (inv_freq) {
    same(*inv_freq, {E / 2}, "inv_freq");
    frequencies = inv_freq->to(at::kDouble).contiguous();
  }
  const int64_t spots = std::max<int64_t>(1, (int64_t)spot_rows);
  const TableForm form{E, (float)table_scale, (float)limit_ulp,
                       inv_freq ? frequencies.const_data_ptr<double>() : nullptr};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t mine = own == 1 ? 0 : r, ids_row = R == 1 ? 0 : r;
    if (r > 0 && mine == 0 && ids_row == 0) {  // every row shares table and positions
      std::copy(ratio, ratio + S, ratio + r * S);
      continue;
    }
    for (int64_t p = 0; p < S; ++p) ratio[r * S + p] = judge_table(c, s, mine * S + p, form);
    if (!inv_freq) continue;
    // Where only some positions are recomputed, what they say is said of the whole row.
    float worst = 0.0f;
    const int64_t count = std::min(S, spots);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t p = spot(i, S, count);
      const float found = judge_angles(c, s, mine * S + p, at[ids_row * S + p], form);
      worst = larger(worst, found);
      if (count == S) ratio[r * S + p] = larger(ratio[r * S + p], found);
    }
    for (int64_t p = 0; p < S && count < S; ++p)
      ratio[r * S + p] = larger(ratio[r * S + p], worst);
  }
}

void run_magnitude(Ratios& out, TensorList x, int64_t heads, double headroom) {
  const int64_t n = x.size();
  if (n == 0) return out.take(1, 0, 0);
  TORCH_CHECK(heads == 0 || (heads == 1 && x[0].dim() == 4) || (heads == 2 && x[0].dim() > 1),
              "tocsin: x is ", x[0].sizes(), ", which does not fit heads=", heads);
  TORCH_CHECK(x[0].dim() > 0, "tocsin: x is a single number, expected at least one axis");
  const int64_t size = x[0].size(-1);
  const int64_t count = x[0].dim() < 2 && heads == 0 ? 1
                        : heads == 0                 ? tokens(x[0])
                        : heads == 1                 ? x[0].size(0) * x[0].size(2)
                                                     : x[0].size(0);
  out.take(1, n, count);
  Copies copies;
  for (int64_t i = 0; i < n; ++i) same(x[i], x[0].sizes(), "x");
  if (x[0].numel() == 0) {
    for (int64_t i = 0; i < n; ++i) std::fill(out.of(0, i), out.of(0, i) + count, 0.0f);
    return;
  }
  std::vector<Rows> rows(n);
  std::vector<Heads> by_head(n);
  for (int64_t i = 0; i < n; ++i) {
    if (heads == 1)
      by_head[i] = heads_of(x[i], "x", copies);
    else
      rows[i] = rows_of(x[i], "x", copies);
  }
  const int64_t each = heads == 2 ? x[0].numel() / size / count : 1;
  spread_tokens(n, count, n * x[0].numel(), [&](int64_t i, int64_t from, int64_t to) {
    for (int64_t t = from; t < to; ++t) {
      float most = 0.0f;
      Kind kind;
      if (heads == 1) {
        const Heads& h = by_head[i];
        const int64_t S = x[0].size(2), bytes = h.kind == Kind::FLOAT ? 4 : 2;
        kind = h.kind;
        const char* first = static_cast<const char*>(h.data) + h.at(t / S, 0, t % S) * bytes;
        most = most_of({first, kind, h.head}, 0, h.heads, size);
      } else {
        kind = rows[i].kind;
        most = most_of(rows[i], t * each, (t + 1) * each, size);
      }
      out.of(0, i)[t] = most / (rounding(kind).most * (float)headroom);
    }
  });
}
