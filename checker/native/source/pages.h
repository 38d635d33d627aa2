// What an engine with paged keys and values asks for, a layer or a step in one call.
//
// Axes: P pages · D layers · B page size · W = K*E values of a token · R rows · n pages a row ·
// L = n*B. A part of operators.cpp, whose helpers it uses.

namespace {

void is_whole(const Tensor& tensor, at::ScalarType type, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == type && tensor.is_contiguous() &&
                  tensor.sizes() == sizes,
              "tocsin: ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(), ", expected ",
              type, " ", sizes, " next to each other on the CPU");
}

const int64_t* table_of(const Tensor& table, int64_t pages) {
  TORCH_CHECK(table.dim() == 2, "tocsin: table has ", table.dim(), " axes, expected [R,n]");
  is_whole(table, at::kLong, table.sizes(), "table");
  const int64_t* at = table.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < table.numel(); ++i)
    TORCH_CHECK_INDEX(at[i] >= 0 && at[i] < pages, "tocsin: page ", at[i], " is beyond the pool of ",
                      pages);
  return at;
}

void is_pool(const Tensor& data, const std::optional<Tensor>& sums, int64_t depth) {
  TORCH_CHECK(data.dim() == 5 && data.size(2) == 2 && data.device().is_cpu() &&
                  data.is_contiguous() && depth >= 0 && depth < data.size(1) &&
                  data.size(4) * data.element_size() % 8 == 0,
              "tocsin: data is ", data.scalar_type(), " ", data.sizes(), " and depth ", depth,
              ", expected [P,D,2,B,W] next to each other on the CPU, a token of whole words");
  if (sums) is_whole(*sums, at::kLong, data.sizes().slice(0, 4), "sums");
}

// Put the keys and values [R,K,S,E] of one layer next to each other into written [D,2,R*S,W], and
// from there into the slots (page * B + offset, -1: nowhere) of the pages data [P,D,2,B,W]; with
// sums [P,D,2,B] given, the weighted sum of each token's words as they are to be written.
void write_pages(const Tensor& data, const std::optional<Tensor>& sums, const Tensor& written,
                 const Tensor& key, const Tensor& value, const Tensor& slots, int64_t depth) {
  is_pool(data, sums, depth);
  const int64_t P = data.size(0), D = data.size(1), B = data.size(3), W = data.size(4);
  const int64_t T = slots.numel();
  is_whole(slots, at::kLong, {T}, "slots");
  is_whole(written, data.scalar_type(), {D, 2, T, W}, "written");
  const int64_t bytes = W * data.element_size(), words = bytes / 8;
  const int64_t* at = slots.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < T; ++t)
    TORCH_CHECK_INDEX(at[t] >= -1 && at[t] < P * B, "tocsin: slot ", at[t],
                      " is beyond the pool of ", P * B);
  char* pool = static_cast<char*>(data.mutable_data_ptr());
  int64_t* held = sums ? sums->mutable_data_ptr<int64_t>() : nullptr;
  for (int half = 0; half < 2; ++half) {
    const Tensor& given = half ? value : key;
    TORCH_CHECK(given.dim() == 4 && given.scalar_type() == data.scalar_type() &&
                    given.device().is_cpu() && given.size(0) * given.size(2) == T &&
                    given.size(1) * given.size(3) == W,
                "tocsin: new rows are ", given.scalar_type(), " ", given.sizes(), ", expected ", T,
                " of ", W, " values");
    const Tensor source = given.stride(3) == 1 || given.size(3) == 1 ? given : given.contiguous();
    const int64_t K = source.size(1), S = source.size(2), size = data.element_size();
    const int64_t part = source.size(3) * size;
    const char* from = static_cast<const char*>(source.const_data_ptr());
    char* rows = static_cast<char*>(written.mutable_data_ptr()) + (depth * 2 + half) * T * bytes;
    for (int64_t t = 0; t < T; ++t) {
      char* row = rows + t * bytes;
      for (int64_t k = 0; k < K; ++k)
        std::memcpy(row + k * part,
                    from + (t / S * source.stride(0) + k * source.stride(1) +
                            t % S * source.stride(2)) * size,
                    part);
      if (at[t] < 0) continue;
      const int64_t place = ((at[t] / B * D + depth) * 2 + half) * B + at[t] % B;
      std::memcpy(pool + place * bytes, row, bytes);
      if (held) held[place] = word_sum(reinterpret_cast<const std::uint64_t*>(row), words, true);
    }
  }
}

// Keys and values [R,K,L,E] of one layer, copied from the pages data [P,D,2,B,W] of table [R,n].
// With the recorded sums [P,D,2,B] given, each token's words are summed as they are copied, and
// changed [R,n] counts those of a page that do not have their sum.
std::tuple<Tensor, Tensor> read_pages(const Tensor& data, const Tensor& table, int64_t depth,
                                      int64_t heads, const std::optional<Tensor>& sums,
                                      const std::optional<Tensor>& changed) {
  is_pool(data, sums, depth);
  const int64_t D = data.size(1), B = data.size(3), W = data.size(4);
  TORCH_CHECK(heads > 0 && W % heads == 0 && sums.has_value() == changed.has_value(),
              "tocsin: ", heads, " heads of ", W, " values; sums come with what counts changes");
  const int64_t* pages = table_of(table, data.size(0));
  const int64_t R = table.size(0), n = table.size(1), words = W * data.element_size() / 8;
  const int64_t* held = sums ? sums->const_data_ptr<int64_t>() : nullptr;
  int64_t* count = nullptr;
  if (changed) {
    is_whole(*changed, at::kLong, {R, n}, "changed");
    count = changed->mutable_data_ptr<int64_t>();
  }
  const auto* from = static_cast<const std::uint64_t*>(data.const_data_ptr());
  Tensor out[2];
  std::uint64_t* to[2];
  for (int half = 0; half < 2; ++half) {
    out[half] = Room::shared().empty({R, n * B, heads, W / heads}, data.options());
    to[half] = static_cast<std::uint64_t*>(out[half].mutable_data_ptr());
  }
  spread(R * n, R * n * 2 * B * words, [&](int64_t begin, int64_t end) {
    for (int half = 0; half < 2; ++half)
      for (int64_t i = begin; i < end; ++i) {
        const int64_t block = ((pages[i] * D + depth) * 2 + half) * B;
        const std::uint64_t* source = from + block * words;
        std::uint64_t* target = to[half] + i * B * words;
        if (!held) {
          std::memcpy(target, source, B * words * 8);
          continue;
        }
        int64_t wrong = 0;  // in one pass: a second one over source or copy takes longer
        for (int64_t b = 0; b < B; ++b)
          wrong += (int64_t)weighted_sum<true>(source + b * words, words, target + b * words) !=
                   held[block + b];
        count[i] += wrong;
      }
  });
  return {out[0].transpose(1, 2), out[1].transpose(1, 2)};
}

// Sum and Euclidean norm of the values of one head.
void sum_and_norm(const float* x, int64_t size, float& sum, float& norm) {
  vf sums = {}, squares = {};
  for (int64_t i = 0; i < size; i += LANES) {
    const vf v = i + LANES <= size ? load(x + i) : load_part(x + i, size - i);
    sums += v;
    squares += v * v;
  }
  float total = 0, square = 0;
  for (int l = 0; l < LANES; ++l) {
    total += sums[l];
    square += squares[l];
  }
  sum = total;
  norm = std::sqrt(square);
  if (square < 1e37f && square > 1e-30f) return;
  double exact = 0;  // beyond what the squares of floats can hold
  for (int64_t i = 0; i < size; ++i) exact += (double)x[i] * (double)x[i];
  norm = (float)std::sqrt(exact);
}

// The states kept of sequences, in pages or rows: see tocsin/engine/pages.py.
struct States {
  double* total;              // [D,N,W]
  float *low, *high, *reach;  // [D,N,W], [D,N,W], [D,N,K]
  float* marks;               // pages: [2,D,N,K,B]; rows: [2,D,N,K,L]
  int64_t count;              // N
};

States states_of(TensorList given, int64_t D, int64_t N, int64_t W, int64_t K, int64_t span,
                 const char* name) {
  TORCH_CHECK(given.size() == 5, "tocsin: ", name, " has ", given.size(), " tensors, expected 5");
  is_whole(given[0], at::kDouble, {D, N, W}, name);
  is_whole(given[1], at::kFloat, {D, N, W}, name);
  is_whole(given[2], at::kFloat, {D, N, W}, name);
  is_whole(given[3], at::kFloat, {D, N, K}, name);
  is_whole(given[4], at::kFloat, {2, D, N, K, span}, name);
  return {given[0].mutable_data_ptr<double>(), given[1].mutable_data_ptr<float>(),
          given[2].mutable_data_ptr<float>(),  given[3].mutable_data_ptr<float>(),
          given[4].mutable_data_ptr<float>(),  N};
}

void fetch_state(const States& pool, const States& rows, int64_t d, int64_t r, int64_t base,
                 int64_t W) {
  const int64_t from = (d * pool.count + base) * W, to = (d * rows.count + r) * W;
  for (int64_t w = 0; w < W; w += 8) {
    if (base >= 0) __builtin_prefetch(pool.total + from + w);
    __builtin_prefetch(rows.total + to + w, 1);
  }
  for (int64_t w = 0; w < W; w += 16) {
    if (base >= 0) {
      __builtin_prefetch(pool.low + from + w);
      __builtin_prefetch(pool.high + from + w);
    }
    __builtin_prefetch(rows.low + to + w, 1);
    __builtin_prefetch(rows.high + to + w, 1);
  }
}

// One row's state after one more token; `base` is the page of the state before it, -1: none.
void note_row(const float* key, const float* value, const States& pool, const States& rows,
              int64_t d, int64_t r, int64_t base, int64_t W, int64_t K) {
  const int64_t row = d * rows.count + r, page = d * pool.count + base, E = W / K;
  double* total = rows.total + row * W;
  float *low = rows.low + row * W, *high = rows.high + row * W;
  if (base < 0) {
    for (int64_t w = 0; w < W; ++w) total[w] = (double)key[w];
    std::memcpy(low, value, W * sizeof(float));
    std::memcpy(high, value, W * sizeof(float));
  } else {
    const double* total_before = pool.total + page * W;
    const float *low_before = pool.low + page * W, *high_before = pool.high + page * W;
    for (int64_t w = 0; w < W; ++w) total[w] = total_before[w] + (double)key[w];
    int64_t w = 0;
    for (; w + LANES <= W; w += LANES) {
      store(low + w, smaller(load(low_before + w), load(value + w)));
      store(high + w, larger(load(high_before + w), load(value + w)));
    }
    for (; w < W; ++w) {
      low[w] = smaller(low_before[w], value[w]);
      high[w] = larger(high_before[w], value[w]);
    }
  }
  for (int64_t k = 0; k < K; ++k) {
    float sum, norm;
    sum_and_norm(key + k * E, E, sum, norm);
    rows.reach[row * K + k] = larger(base < 0 ? 0.0f : pool.reach[page * K + k], norm);
  }
}

template <class T>
const float* as_floats(const T* given, int64_t count, std::vector<float>& room) {
  if constexpr (std::is_same_v<T, float>) {
    return given;
  } else {
    for (int64_t i = 0; i < count; ++i) room[i] = (float)given[i];
    return room.data();
  }
}

// What attention is told in decoding: the states of all rows with the token that each writes,
// written [D,2,R,W], for the layers from `first` to before `last`.
//
// at [R]: position of that token, -1 for an idle row, whose numbers are zero.
void note_written(const Tensor& written, TensorList pool_states, const Tensor& table,
                  const Tensor& at, TensorList row_states, int64_t first, int64_t last) {
  TORCH_CHECK(written.dim() == 4 && written.size(1) == 2 && written.is_contiguous() &&
                  pool_states.size() == 5 && pool_states[4].dim() == 5 && pool_states[4].size(3) > 0,
              "tocsin: written is ", written.sizes(), ", expected [D,2,R,W]");
  const int64_t D = written.size(0), R = written.size(2), W = written.size(3);
  const int64_t P = pool_states[4].size(2), K = pool_states[4].size(3), B = pool_states[4].size(4);
  const int64_t* pages = table_of(table, P);
  const int64_t n = table.size(1), L = n * B, E = W / K;
  const States pool = states_of(pool_states, D, P, W, K, B, "pool_states");
  const States rows = states_of(row_states, D, R, W, K, L, "row_states");
  is_whole(at, at::kLong, {R}, "at");
  TORCH_CHECK(table.size(0) == R && W % K == 0 && first >= 0 && last <= D, "tocsin: table is ",
              table.sizes(), ", layers ", first, " to ", last, ", expected [", R, ",n] and ", D);
  const int64_t* position = at.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < R; ++r)
    TORCH_CHECK_INDEX(position[r] < L, "tocsin: position ", position[r], " is beyond ", L);
  const Kind kind = kind_of(written, "written");
  std::vector<float> room[2] = {std::vector<float>(W), std::vector<float>(W)};
  const auto run = [&](auto* values) {
    for (int64_t d = first; d < last; ++d) {
      for (int64_t r = 0; r < R; ++r) {  // a step's weights have swept them out of the caches
        const int64_t p = position[r];
        fetch_state(pool, rows, d, r, p > 0 ? pages[r * n + (p - 1) / B] : -1, W);
      }
      for (int64_t r = 0; r < R; ++r) {
        const int64_t p = position[r], to = d * R + r;
        for (int half = 0; half < 2; ++half)
          for (int64_t k = 0; k < K; ++k) {
            float* line = rows.marks + (((half * D + d) * R + r) * K + k) * L;
            for (int64_t i = 0; i < n; ++i) {
              const int64_t page = pages[r * n + i];
              const float* kept = pool.marks + (((half * D + d) * P + page) * K + k) * B;
              if (B == 16)  // known to the compiler: two or four vectors
                std::memcpy(line + i * 16, kept, 16 * sizeof(float));
              else
                std::memcpy(line + i * B, kept, B * sizeof(float));
            }
          }
        if (p < 0) {
          std::memset(rows.total + to * W, 0, W * sizeof(double));
          std::memset(rows.low + to * W, 0, W * sizeof(float));
          std::memset(rows.high + to * W, 0, W * sizeof(float));
          std::memset(rows.reach + to * K, 0, K * sizeof(float));
          continue;
        }
        const float* key = as_floats(values + ((d * 2) * R + r) * W, W, room[0]);
        const float* value = as_floats(values + ((d * 2 + 1) * R + r) * W, W, room[1]);
        const int64_t base = p > 0 ? pages[r * n + (p - 1) / B] : -1;
        note_row(key, value, pool, rows, d, r, base, W, K);
        for (int64_t k = 0; k < K; ++k) {
          float sum, norm;
          sum_and_norm(value + k * E, E, sum, norm);
          rows.marks[((d * R + r) * K + k) * L + p] = sum;
          rows.marks[(((D + d) * R + r) * K + k) * L + p] = norm;
        }
      }
    }
  };
  switch (kind) {
    case Kind::FLOAT: run(written.const_data_ptr<float>()); break;
    case Kind::BFLOAT: run(written.const_data_ptr<at::BFloat16>()); break;
    case Kind::HALF: run(written.const_data_ptr<at::Half>()); break;
  }
}

// Keep in the pages what was noted of the rows; the states that were there are given back, for
// whoever takes the step back: [D,R,W] three times and [D,R,K], of idle rows whatever they hold.
std::tuple<Tensor, Tensor, Tensor, Tensor> keep_written(TensorList pool_states, const Tensor& table,
                                                        const Tensor& at, TensorList row_states) {
  TORCH_CHECK(pool_states.size() == 5 && pool_states[4].dim() == 5 && row_states.size() == 5 &&
                  row_states[0].dim() == 3,
              "tocsin: the states are not those of pages and rows");
  const int64_t D = row_states[0].size(0), R = row_states[0].size(1), W = row_states[0].size(2);
  const int64_t P = pool_states[4].size(2), K = pool_states[4].size(3), B = pool_states[4].size(4);
  const int64_t* pages = table_of(table, P);
  const int64_t n = table.size(1), L = n * B;
  const States pool = states_of(pool_states, D, P, W, K, B, "pool_states");
  const States rows = states_of(row_states, D, R, W, K, L, "row_states");
  is_whole(at, at::kLong, {R}, "at");
  TORCH_CHECK(table.size(0) == R, "tocsin: table is ", table.sizes(), ", expected [", R, ",n]");
  const int64_t* position = at.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < R; ++r)
    TORCH_CHECK_INDEX(position[r] < L, "tocsin: position ", position[r], " is beyond ", L);
  Tensor old[4];
  for (int i = 0; i < 4; ++i) old[i] = at::empty(row_states[i].sizes(), row_states[i].options());
  const auto move = [&](auto* kept, const auto* noted, auto* before, int64_t width) {
    for (int64_t d = 0; d < D; ++d)
      for (int64_t r = 0; r < R; ++r) {
        if (position[r] < 0) continue;
        const int64_t page = pages[r * n + position[r] / B];
        auto* to = kept + (d * P + page) * width;
        const int64_t row = (d * R + r) * width, bytes = width * sizeof *kept;
        std::memcpy(before + row, to, bytes);
        std::memcpy(to, noted + row, bytes);
      }
  };
  move(pool.total, rows.total, old[0].mutable_data_ptr<double>(), W);
  move(pool.low, rows.low, old[1].mutable_data_ptr<float>(), W);
  move(pool.high, rows.high, old[2].mutable_data_ptr<float>(), W);
  move(pool.reach, rows.reach, old[3].mutable_data_ptr<float>(), K);
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t d = 0; d < D; ++d)
      for (int64_t r = 0; r < R; ++r) {
        const int64_t p = position[r];
        if (p < 0) continue;
        const int64_t to = (half * D + d) * P + pages[r * n + p / B];
        for (int64_t k = 0; k < K; ++k)
          pool.marks[(to * K + k) * B + p % B] =
              rows.marks[(((half * D + d) * R + r) * K + k) * L + p];
      }
  return {old[0], old[1], old[2], old[3]};
}

}  // namespace
