// The operators of namespace `tocsin`: lists of calls of one form in, ratios [k,n,T] out.
//
// Everything is looked at before a pointer is taken: a list, shape or dtype that does not fit raises.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/library.h>

#include "attention.h"
#include "head.h"
#include "linear.h"
#include "room.h"
#include "sums.h"

namespace {

using namespace tocsin;
using at::Tensor;
using at::TensorList;
using std::int64_t;

constexpr int64_t GRAIN = 1 << 20;  // elements below which a second thread costs more than it saves

Kind kind_of(const Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided, "tocsin: ", name,
              " is not a dense tensor on the CPU");
  switch (tensor.scalar_type()) {
    case at::kFloat: return Kind::FLOAT;
    case at::kBFloat16: return Kind::BFLOAT;
    case at::kHalf: return Kind::HALF;
    default:
      TORCH_CHECK(false, "tocsin: ", name, " is ", tensor.scalar_type(),
                  ", expected float32, bfloat16 or float16");
  }
}

// Tensors that had to be copied live as long as the call.
using Copies = std::vector<Tensor>;

void same(const Tensor& tensor, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.sizes() == sizes, "tocsin: ", name, " is ", tensor.sizes(), ", expected ",
              sizes);
}

// Number of rows [..., D] -> product of the leading axes.
int64_t tokens(const Tensor& tensor) {
  TORCH_CHECK(tensor.dim() > 0, "tocsin: an operand is a single number, expected an axis");
  return tensor.size(-1) ? tensor.numel() / tensor.size(-1) : 0;
}

Rows rows_of(const Tensor& tensor, const char* name, Copies& copies) {
  const Kind kind = kind_of(tensor, name);
  const int64_t size = tensor.size(-1);
  if (tensor.is_contiguous()) return {tensor.const_data_ptr(), kind, size};
  int64_t stride = size, expected = -1;  // distance of rows, if they have but one
  bool even = size == 1 || tensor.stride(-1) == 1;
  for (int64_t axis = tensor.dim() - 2; axis >= 0 && even; --axis) {
    if (tensor.size(axis) == 1) continue;
    if (expected < 0)
      stride = tensor.stride(axis);
    else
      even = tensor.stride(axis) == expected;
    expected = tensor.stride(axis) * tensor.size(axis);
  }
  if (even) return {tensor.const_data_ptr(), kind, stride};
  copies.push_back(tensor.contiguous());
  return {copies.back().const_data_ptr(), kind, size};
}

Heads heads_of(const Tensor& given, const char* name, Copies& copies) {
  const Kind kind = kind_of(given, name);
  TORCH_CHECK(given.dim() == 4, "tocsin: ", name, " has ", given.dim(), " axes, expected 4");
  const Tensor* tensor = &given;
  if (given.size(3) > 1 && given.stride(3) != 1) {
    copies.push_back(given.contiguous());
    tensor = &copies.back();
  }
  return {tensor->const_data_ptr(), kind, tensor->stride(0), tensor->stride(1), tensor->stride(2),
          tensor->size(1)};
}

// A float32 tensor of known shape, next to each other.
const float* plain(const Tensor& tensor, at::IntArrayRef sizes, const char* name,
                   Copies& copies) {
  same(tensor, sizes, name);
  TORCH_CHECK(tensor.scalar_type() == at::kFloat && tensor.device().is_cpu(), "tocsin: ", name,
              " is ", tensor.scalar_type(), ", expected float32 on the CPU");
  if (tensor.is_contiguous()) return tensor.const_data_ptr<float>();
  copies.push_back(tensor.contiguous());
  return copies.back().const_data_ptr<float>();
}

void as_many(std::initializer_list<TensorList> lists) {
  const auto count = lists.begin()->size();
  for (const auto& list : lists)
    TORCH_CHECK(list.size() == count, "tocsin: a list has ", list.size(), " tensors, expected ",
                count);
}

// f(begin, end) over the units of all calls, on several threads where that pays.
template <class F>
void spread(int64_t units, int64_t elements, const F& f) {
  if (units <= 1 || elements < GRAIN) {
    if (units > 0) f(0, units);
    return;
  }
  const int64_t grain = std::max<int64_t>(1, units * (GRAIN / 2) / elements);
  const auto run = [](int64_t begin, int64_t end, void* self) {
    (*static_cast<const F*>(self))(begin, end);
  };
  TORCH_CHECK(torch_parallel_for(0, units, grain, run, const_cast<F*>(&f)) == 0,
              "tocsin: the threads could not be started");
}

// The same, where a unit is a token of a call: f(call, from, to).
template <class F>
void spread_tokens(int64_t calls, int64_t count, int64_t elements, const F& f) {
  spread(calls * count, elements, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t call = begin / count, from = begin % count;
      const int64_t to = std::min(count, from + end - begin);
      f(call, from, to);
      begin += to - from;
    }
  });
}

// Where the ratios go: [k,n,T].
struct Ratios {
  int64_t kinds = 0, calls = 0, tokens = 0;
  std::vector<float> kept;
  Tensor made;
  float* data = nullptr;
  bool keep;
  const void* buffer = nullptr;    // where the ratios will go, null where they are returned
  const int64_t* sites = nullptr;  // [k,n] lines of it
  int64_t sites_count = 0;
  explicit Ratios(bool keep) : keep(keep) {}
  Ratios(const Tensor& to, const Tensor& lines) : keep(true) {
    if (lines.scalar_type() != at::kLong || !lines.is_contiguous()) return;  // write() says so
    buffer = to.const_data_ptr();
    sites = lines.const_data_ptr<int64_t>();
    sites_count = lines.numel();
  }
  // The first line of a call, which names it; -1 where it has none.
  int64_t line(int64_t call) const {
    for (int64_t at = call; at < sites_count; at += calls)
      if (sites[at] >= 0) return sites[at];
    return -1;
  }
  void take(int64_t k, int64_t n, int64_t t) {
    kinds = k, calls = n, tokens = t;
    if (keep) {
      kept.assign(k * n * t, 0.0f);
      data = kept.data();
    } else {
      made = at::empty({k, n, t}, at::TensorOptions().dtype(at::kFloat));
      data = made.mutable_data_ptr<float>();
    }
  }
  float* of(int64_t kind, int64_t call) const { return data + (kind * calls + call) * tokens; }
};

constexpr float OFF = -2.0f;  // checker/buffer.py leaves it where a graph's line is switched off

void as_buffer(const Tensor& buffer, const Tensor& sites) {
  TORCH_CHECK(buffer.dim() == 2 && buffer.scalar_type() == at::kFloat &&
                  buffer.device().is_cpu() && buffer.stride(1) == 1 && buffer.size(1) > 1,
              "tocsin: the buffer is not [sites, rows + 1] float32 on the CPU");
  TORCH_CHECK(sites.scalar_type() == at::kLong && sites.is_contiguous() &&
                  sites.device().is_cpu(),
              "tocsin: sites is not int64 on the CPU, next to each other");
}

// Position among the sites of the first whose line is not switched off; their number: there is none.
int64_t first_wanted(const Tensor& buffer, const Tensor& sites) {
  as_buffer(buffer, sites);
  const int64_t* site = sites.const_data_ptr<int64_t>();
  const float* data = buffer.const_data_ptr<float>();
  const int64_t count = sites.numel();
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (site[i] < 0) continue;
    ++kept;
    TORCH_CHECK_INDEX(site[i] < buffer.size(0), "tocsin: site ", site[i], " is beyond the buffer");
    if (data[site[i] * buffer.stride(0)] != OFF) return i;
  }
  return kept ? count : 0;  // an operator that keeps nothing is asked what it makes of its operands
}

// Args: from: position of the first site; count: of them, each with as many ratios as tokens.
void keep(const Tensor& buffer, const Tensor& sites, int64_t from_site, int64_t rows,
          const float* ratios, int64_t count, int64_t tokens) {
  if (tokens == 0) return;
  const int64_t rows_max = buffer.size(1) - 1, width = rows < 0 ? tokens : rows;
  const bool whole =
      width == 0 || width > rows_max || tokens % width || (tokens == 1 && width != 1);
  const int64_t each = whole ? tokens : tokens / width;
  const int64_t* site = sites.const_data_ptr<int64_t>() + from_site;
  float* data = buffer.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    if (site[i] < 0) continue;
    TORCH_CHECK_INDEX(site[i] < buffer.size(0), "tocsin: site ", site[i], " is beyond the buffer");
    float* line = data + site[i] * buffer.stride(0);
    if (*line == OFF) continue;
    float* to = line + (whole ? rows_max : 0);
    const float* from = ratios + i * tokens;
    for (int64_t row = 0; row < (whole ? 1 : width); ++row)
      for (int64_t t = 0; t < each; ++t) to[row] = larger(to[row], from[row * each + t]);
  }
}

void write(const Tensor& buffer, const Tensor& sites, int64_t rows, const float* ratios,
           int64_t count, int64_t tokens) {
  as_buffer(buffer, sites);
  TORCH_CHECK(sites.numel() == count, "tocsin: sites has ", sites.numel(), " numbers, expected ",
              count, " int64");
  keep(buffer, sites, 0, rows, ratios, count, tokens);
}

#include "calls.h"

Tensor verdict(const Tensor& buffer, const Tensor& levels) {
  Copies copies;
  TORCH_CHECK(buffer.dim() == 2 && levels.numel() >= buffer.size(0),
              "tocsin: levels has ", levels.numel(), " numbers, expected one a site");
  const float* data = plain(buffer, buffer.sizes(), "buffer", copies);
  const float* level = plain(levels, levels.sizes(), "levels", copies);
  const int64_t sites = buffer.size(0), width = buffer.size(1);
  Tensor worst = at::empty({sites}, at::TensorOptions().dtype(at::kFloat));
  float* to = worst.mutable_data_ptr<float>();
  for (int64_t site = 0; site < sites; ++site) {
    float held = 0.0f;
    if (level[site] > 0.0f) {
      const float* from = data + site * width;
      vf most = {};
      chunks(width, [&](int64_t at, auto take) { most = larger(most, take(from + at)); });
      held = largest(most) * level[site];
    }
    to[site] = held;
  }
  return worst;
}

// The largest ratio of each of the first sites: NaN where there is one, -1 where the site is off.
Tensor reading(const Tensor& buffer, const Tensor& levels, int64_t sites) {
  TORCH_CHECK(buffer.dim() == 2 && sites >= 0 && sites <= buffer.size(0) &&
                  levels.numel() >= sites && buffer.scalar_type() == at::kFloat &&
                  buffer.device().is_cpu() && buffer.is_contiguous() && buffer.size(1) > 0,
              "tocsin: the buffer is not [", sites, " or more, rows + 1] float32 on the CPU");
  Copies copies;
  const float* data = buffer.const_data_ptr<float>();
  const float* level = plain(levels, levels.sizes(), "levels", copies);
  const int64_t width = buffer.size(1);
  Tensor worst = at::empty({sites}, at::TensorOptions().dtype(at::kFloat));
  float* to = worst.mutable_data_ptr<float>();
  for (int64_t site = 0; site < sites; ++site) {
    const float* from = data + site * width;
    float most = -1.0f;
    if (level[site] > 0.0f) {
      bool ran = false;  // asked first: the lanes below begin at 0, which would hide a -1
      for (int64_t column = 0; column < width; ++column) ran |= !(from[column] < 0.0f);
      vf lanes = {};
      if (ran) chunks(width, [&](int64_t at, auto take) { lanes = larger(lanes, take(from + at)); });
      if (ran) most = largest(lanes);
    }
    to[site] = most;
  }
  return worst;
}

void write_into(const Tensor& buffer, const Tensor& sites, int64_t rows, const Tensor& ratios) {
  Copies copies;
  const float* from = plain(ratios, ratios.sizes(), "ratios", copies);
  const int64_t count = sites.numel();
  TORCH_CHECK(count > 0 && ratios.numel() % count == 0, "tocsin: ratios is ", ratios.sizes(),
              ", expected as many for each of ", count, " sites");
  write(buffer, sites, rows, from, count, ratios.numel() / count);
}

// Words along the last axis, for each of the leading ones.
const std::uint64_t* words_of(const Tensor& data, int64_t& count, Copies& copies) {
  TORCH_CHECK(data.device().is_cpu() && data.dim() > 0, "tocsin: data is no tensor on the CPU");
  const int64_t bytes = data.size(-1) * data.element_size();
  TORCH_CHECK(bytes % 8 == 0, "tocsin: a row of data has ", bytes,
              " bytes, expected a multiple of 8");
  count = bytes / 8;
  const bool lies = data.is_contiguous() &&
                    reinterpret_cast<std::uintptr_t>(data.const_data_ptr()) % 8 == 0;
  if (!lies) copies.push_back(data.clone(at::MemoryFormat::Contiguous));
  return static_cast<const std::uint64_t*>((lies ? data : copies.back()).const_data_ptr());
}

Tensor word_sums(const Tensor& data, bool weighted) {
  Copies copies;
  int64_t count = 0;
  const std::uint64_t* words = words_of(data, count, copies);
  auto sizes = data.sizes().vec();
  sizes.pop_back();
  Tensor out = at::empty(sizes, at::TensorOptions().dtype(at::kLong));
  int64_t* to = out.mutable_data_ptr<int64_t>();
  spread(out.numel(), out.numel() * count, [&](int64_t from, int64_t end) {
    for (int64_t i = from; i < end; ++i) to[i] = word_sum(words + i * count, count, weighted);
  });
  return out;
}

Tensor word_sums_at(const Tensor& data, const Tensor& indices, bool weighted) {
  TORCH_CHECK(data.dim() > 1 && indices.dim() == 1 && indices.scalar_type() == at::kLong &&
                  indices.is_contiguous(),
              "tocsin: data is ", data.sizes(), ", indices ", indices.sizes(), " of ",
              indices.scalar_type(), ", expected [n] int64");
  Copies copies;
  int64_t count = 0;
  const std::uint64_t* words = words_of(data, count, copies);
  auto sizes = data.sizes().vec();
  sizes.pop_back();
  const int64_t units = sizes[0] ? data.numel() / sizes[0] / std::max<int64_t>(1, data.size(-1)) : 0;
  sizes[0] = indices.numel();
  Tensor out = at::empty(sizes, at::TensorOptions().dtype(at::kLong));
  int64_t* to = out.mutable_data_ptr<int64_t>();
  const int64_t* index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i)
    TORCH_CHECK_INDEX(index[i] >= 0 && index[i] < data.size(0), "tocsin: index ", index[i],
                      " is beyond data's first axis of ", data.size(0));
  spread(out.numel(), out.numel() * count, [&](int64_t from, int64_t end) {
    for (int64_t i = from; i < end; ++i)
      to[i] = word_sum(words + (index[i / units] * units + i % units) * count, count, weighted);
  });
  return out;
}

bool same_form(TensorList tensors, const Tensor& like, int64_t version) {
  for (const Tensor& one : tensors) {
    if (version >= 0 && !one.is_inference() && one._version() != version) return false;
    if (one.scalar_type() != like.scalar_type() || one.device() != like.device() ||
        one.layout() != like.layout() || one.sizes() != like.sizes() ||
        one.strides() != like.strides())
      return false;
  }
  return true;
}

}  // namespace

#include "choice.h"
#include "pages.h"
#include "register.h"
