// Schemas and registrations; the last part of operators.cpp.

namespace {

// What is left of an operator where the range of its output is all that a graph's lines ask for.
template <auto RUN>
struct Range {
  static constexpr int64_t kind = -1;  // it has no shorter way
};
template <>
struct Range<run_attention> {
  static constexpr int64_t kind = 4;  // the last of its results
  template <class Args>
  static void run(Ratios& out, const Args& args) {
    const TensorList output = std::get<3>(args);
    const double headroom = std::get<13>(args);
    run_magnitude(out, output, 1, headroom);
  }
};

// An operator and its `_into` form from one function.
template <auto RUN>
struct Form;
template <class... Args, void (*RUN)(Ratios&, Args...)>
struct Form<RUN> {
  static Tensor give(Args... args) {
    Ratios out(false);
    RUN(out, args...);
    return out.made;
  }
  static void into(const Tensor& buffer, const Tensor& sites, int64_t rows, Args... args) {
    const int64_t wanted = first_wanted(buffer, sites);
    if (sites.numel() && wanted == sites.numel()) return;
    Ratios out(buffer, sites);
    if constexpr (Range<RUN>::kind >= 0) {
      const int64_t before = sites.numel() / (Range<RUN>::kind + 1) * Range<RUN>::kind;
      if (before && wanted >= before) {
        Range<RUN>::run(out, std::forward_as_tuple(args...));
        TORCH_CHECK(sites.numel() == before + out.calls, "tocsin: sites has ", sites.numel(),
                    " numbers, expected ", before + out.calls);
        keep(buffer, sites, before, rows, out.data, out.calls, out.tokens);
        return;
      }
    }
    RUN(out, args...);
    write(buffer, sites, rows, out.data, out.kinds * out.calls, out.tokens);
  }
};

constexpr const char* LINEAR =
    "Tensor[] x, Tensor[] y, Tensor[] block_sums, Tensor[] block_norms, Tensor[] bias_sums, "
    "Tensor[] bias_norms, int block_size=128, float limit_ulp=4.0, float accumulation=2.0, "
    "float headroom=1.0, Tensor? block_weights=None";
constexpr const char* RMS_NORM =
    "Tensor[] x, Tensor[] y, Tensor[] weight, float eps, float dot_ulp=6.0, "
    "float range_ulp=4.0, float headroom=1.0";
constexpr const char* RESIDUAL =
    "Tensor[] x, Tensor[] delta, Tensor[] y, float limit_ulp=2.0, float terms_ulp=0.0, "
    "float headroom=1.0";
constexpr const char* SWIGLU =
    "Tensor[] gate, Tensor[] up, Tensor[] y, str activation=\"silu\", float limit_ulp=4.0, "
    "float headroom=1.0";
constexpr const char* ROPE =
    "Tensor[] q, Tensor[] k, Tensor[] q_out, Tensor[] k_out, Tensor[] cos, Tensor[] sin, "
    "float table_scale=1.0, float norm_ulp=8.0, float sum_ulp=8.0, float headroom=1.0";
constexpr const char* ATTENTION =
    "Tensor[] q, Tensor[] k, Tensor[] v, Tensor[] output, Tensor[] mask, Tensor[] lse, "
    "Tensor[] written, bool causal=False, float? scale=None, float? softcap=None, "
    "float row_ulp=4.0, float scores_max=64.0, float hull_ulp=4.0, float headroom=1.0, "
    "float score_roundings=16.0, float score_per_key=4.0";
constexpr const char* KV_WRITTEN =
    "Tensor[] key_cache, Tensor[] value_cache, Tensor[] new_key, Tensor[] new_value, "
    "Tensor slot_mapping, float headroom=1.0";
constexpr const char* LOGITS =
    "Tensor logits, Tensor? hidden, Tensor? weight_norm_max, float? softcap=None, "
    "float limit=1.0, float headroom=1.0, Tensor? weight=None, Tensor? weight_row_sums=None, "
    "float winner_ulp=4.0, float winner_accumulation=2.0";
constexpr const char* EMBEDDING =
    "Tensor[] input_ids, Tensor[] weight, Tensor[] y, float headroom=1.0";
constexpr const char* ROPE_TABLE =
    "Tensor cos, Tensor sin, Tensor position_ids, Tensor? inv_freq, int rows, "
    "float table_scale=1.0, float limit_ulp=4.0, float spot_rows=64.0";
constexpr const char* MAGNITUDE = "Tensor[] x, int heads=0, float headroom=1.0";

void define(torch::Library& m, const std::string& name, const std::string& args) {
  m.def((name + "(" + args + ") -> Tensor").c_str());
  m.def((name + "_into(Tensor(a!) buffer, Tensor sites, int rows, " + args + ") -> ()").c_str());
}

template <auto RUN>
void implement(torch::Library& m, const std::string& name) {
  m.impl(name.c_str(), &Form<RUN>::give);
  m.impl((name + "_into").c_str(), &Form<RUN>::into);
}

const char* const NAMES[] = {"linear_checksum", "rms_norm",   "residual", "swiglu",   "rope",
                             "attention",       "kv_written", "logits",   "magnitude",
                             "embedding",       "rope_table"};
const char* const SINGLE[] = {"word_sums",  "word_sums_at", "write_into",   "verdict",
                              "same_form",  "write_pages",  "read_pages",   "note_written",
                              "keep_written"};

}  // namespace

TORCH_LIBRARY(tocsin, m) {
  define(m, "linear_checksum", LINEAR);
  define(m, "rms_norm", RMS_NORM);
  define(m, "residual", RESIDUAL);
  define(m, "swiglu", SWIGLU);
  define(m, "rope", ROPE);
  define(m, "attention", ATTENTION);
  define(m, "kv_written", KV_WRITTEN);
  define(m, "logits", LOGITS);
  define(m, "magnitude", MAGNITUDE);
  define(m, "embedding", EMBEDDING);
  define(m, "rope_table", ROPE_TABLE);
  m.def("word_sums(Tensor data, bool weighted=False) -> Tensor");
  m.def("word_sums_at(Tensor data, Tensor indices, bool weighted=False) -> Tensor");
  m.def("write_into(Tensor(a!) buffer, Tensor sites, int rows, Tensor ratios) -> ()");
  m.def("verdict(Tensor buffer, Tensor levels) -> Tensor");
  m.def("reading(Tensor buffer, Tensor levels, int sites) -> Tensor");
  m.def("same_form(Tensor[] tensors, Tensor like, int version=-1) -> bool");
  m.def("write_pages(Tensor(a!) data, Tensor(b!)? sums, Tensor(c!) written, Tensor key, "
        "Tensor value, Tensor slots, int depth) -> ()");
  m.def("read_pages(Tensor data, Tensor table, int depth, int heads, Tensor? sums=None, "
        "Tensor(a!)? changed=None) -> (Tensor, Tensor)");
  m.def("note_written(Tensor written, Tensor[] pool_states, Tensor table, Tensor at, "
        "Tensor(a!)[] row_states, int first, int last) -> ()");
  m.def("keep_written(Tensor(a!)[] pool_states, Tensor table, Tensor at, Tensor[] row_states) "
        "-> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(tocsin, CPU, m) {
  implement<run_linear>(m, "linear_checksum");
  implement<run_rms_norm>(m, "rms_norm");
  implement<run_residual>(m, "residual");
  implement<run_swiglu>(m, "swiglu");
  implement<run_rope>(m, "rope");
  implement<run_attention>(m, "attention");
  implement<run_kv_written>(m, "kv_written");
  implement<run_logits>(m, "logits");
  implement<run_magnitude>(m, "magnitude");
  implement<run_embedding>(m, "embedding");
  implement<run_rope_table>(m, "rope_table");
  m.impl("word_sums", &word_sums);
  m.impl("word_sums_at", &word_sums_at);
  m.impl("write_into", &write_into);
  m.impl("verdict", &verdict);
  m.impl("reading", &reading);
  m.impl("same_form", &same_form);
  m.impl("write_pages", &write_pages);
  m.impl("read_pages", &read_pages);
  m.impl("note_written", &note_written);
  m.impl("keep_written", &keep_written);
}

// Checks have no gradient: without this each call would pass through a boxed fallback first.
TORCH_LIBRARY_IMPL(tocsin, Autograd, m) {
  for (const char* name : NAMES) {
    m.impl(name, torch::CppFunction::makeFallthrough());
    m.impl((std::string(name) + "_into").c_str(), torch::CppFunction::makeFallthrough());
  }
  for (const char* name : SINGLE) m.impl(name, torch::CppFunction::makeFallthrough());
}
