// The choice of a token: what is asked of probabilities and masks, in one pass over the vocabulary.

namespace {

typedef float vhalf __attribute__((vector_size(LANES * 2)));
typedef double vd __attribute__((vector_size(LANES * 4)));  // as wide as a vf: half as many

// What the numbers of one row have in common, gathered part by part.
struct Chances {
  vd mass[2] = {};
  vf most = all(-INF), lowest = all(INF);
  vi wrong = {}, positive = {}, equal = {};

  void take(vf v) {
    vhalf halves[2];
    std::memcpy(halves, &v, sizeof v);
    for (int half = 0; half < 2; ++half) mass[half] += __builtin_convertvector(halves[half], vd);
    wrong |= ~(v >= 0.0f);  // NaN as well
    most = upper(v, most);
    const vi above = v > 0.0f;
    const vf one = above ? v : all(INF);
    const vi less = one < lowest;
    equal = less ? (vi{} + 1) : equal - (vi)(one == lowest);
    lowest = less ? one : lowest;
    positive -= above;
  }
};

// Of the numbers [from, to) of a row: the lanes that stand behind the end count for nothing.
void take_part(Chances& found, const float* row, int64_t from, int64_t to) {
  for (; from + LANES <= to; from += LANES) found.take(load(row + from));
  if (from < to) found.take(load_part(row + from, to - from));  // zeros change none of it
}

double total(const vd (&mass)[2]) {
  const vd both = mass[0] + mass[1];
  double sum = 0;
  for (int lane = 0; lane < LANES / 2; ++lane) sum += both[lane];
  return sum;
}

void is_row(const Tensor& given, at::ScalarType kind, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(given.device().is_cpu() && given.is_contiguous() && given.scalar_type() == kind &&
                  given.sizes() == sizes,
              "tocsin: ", name, " is ", given.scalar_type(), " ", given.sizes(), ", expected ", kind,
              " ", sizes, ", dense, on the CPU");
}

// Facts [5,R] float64 of probabilities [R,V], as semantic.sampler asks for them: their sum; 1 where
// all are at least 0; the largest; how many are above the lowest that is not 0; the sum of those
// before `ids` [R].
Tensor chances(const Tensor& probs, const std::optional<Tensor>& ids) {
  TORCH_CHECK(probs.dim() == 2, "tocsin: probs has ", probs.dim(), " axes, expected 2");
  const int64_t R = probs.size(0), V = probs.size(1);
  is_row(probs, at::kFloat, {R, V}, "probs");
  if (ids) is_row(*ids, at::kLong, {R}, "ids");
  const int64_t* chosen = ids ? ids->const_data_ptr<int64_t>() : nullptr;
  const float* data = probs.const_data_ptr<float>();
  Tensor out = at::empty({5, R}, at::TensorOptions().dtype(at::kDouble));
  double* to = out.mutable_data_ptr<double>();
  spread(R, R * V, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = chosen ? std::clamp<int64_t>(chosen[r], 0, V) : 0;
      Chances found;
      take_part(found, data + r * V, 0, at);
      const double below = total(found.mass);
      found.mass[0] = found.mass[1] = vd{};
      take_part(found, data + r * V, at, V);
      float most = -INF, lowest = INF;
      int64_t positive = 0, equal = 0, wrong = 0;
      for (int lane = 0; lane < LANES; ++lane) {
        most = found.most[lane] > most ? found.most[lane] : most;
        lowest = found.lowest[lane] < lowest ? found.lowest[lane] : lowest;
        positive += found.positive[lane];
        wrong |= found.wrong[lane];
      }
      for (int lane = 0; lane < LANES; ++lane)
        if (found.lowest[lane] == lowest) equal += found.equal[lane];
      to[r] = below + total(found.mass);
      to[R + r] = wrong ? 0.0 : 1.0;
      to[2 * R + r] = (double)most;
      to[3 * R + r] = lowest < INF ? (double)(positive - equal) : 0.0;
      to[4 * R + r] = below;
    }
  });
  return out;
}

vi masks_at(const bool* allowed, int64_t count) {
  vb bytes = {};
  std::memcpy(&bytes, allowed, count);
  return __builtin_convertvector(bytes, vi) != 0;
}

// As semantic.logit_processor: whether each row of logits [R,V] was masked and nothing else, [R].
Tensor only_masked(const Tensor& before, const Tensor& after, const std::optional<Tensor>& allowed) {
  TORCH_CHECK(before.dim() == 2, "tocsin: before has ", before.dim(), " axes, expected 2");
  const int64_t R = before.size(0), V = before.size(1);
  is_row(before, at::kFloat, {R, V}, "before");
  is_row(after, at::kFloat, {R, V}, "after");
  if (allowed) is_row(*allowed, at::kBool, {R, V}, "allowed");
  const float *was = before.const_data_ptr<float>(), *is = after.const_data_ptr<float>();
  const bool* choices = allowed ? allowed->const_data_ptr<bool>() : nullptr;
  constexpr float LOWEST = std::numeric_limits<float>::lowest();
  Tensor out = at::empty({R}, at::TensorOptions().dtype(at::kBool));
  bool* to = out.mutable_data_ptr<bool>();
  spread(R, R * V, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      vi wrong = {}, left = {};
      const auto take = [&](int64_t at, int64_t count, vf old, vf made) {
        const vi masked = made <= LOWEST;
        wrong |= ~(masked | (made == old));
        left |= ~masked & (made < INF);
        if (choices == nullptr) return;
        const vi barred = ~masks_at(choices + at, count) | (old <= LOWEST);
        wrong |= masked ^ barred;
      };
      const float *old = was + r * V, *made = is + r * V;
      int64_t v = 0;
      for (; v + LANES <= V; v += LANES) take(r * V + v, LANES, load(old + v), load(made + v));
      bool is_wrong = false, is_left = false;
      for (int lane = 0; lane < LANES; ++lane) {
        is_wrong |= wrong[lane] != 0;
        is_left |= left[lane] != 0;
      }
      for (; v < V; ++v) {
        const bool masked = made[v] <= LOWEST;
        is_wrong |= !(masked || made[v] == old[v]);
        is_left |= !masked && made[v] < INF;
        if (choices != nullptr) is_wrong |= masked != (!choices[r * V + v] || old[v] <= LOWEST);
      }
      to[r] = !is_wrong && is_left;
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tocsin, m) {
  m.def("chances(Tensor probs, Tensor? ids=None) -> Tensor");
  m.def("only_masked(Tensor before, Tensor after, Tensor? allowed=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(tocsin, CPU, m) {
  m.impl("chances", &chances);
  m.impl("only_masked", &only_masked);
}

TORCH_LIBRARY_IMPL(tocsin, Autograd, m) {
  m.impl("chances", torch::CppFunction::makeFallthrough());
  m.impl("only_masked", torch::CppFunction::makeFallthrough());
}
