// What was found in the values of a row, kept from one decoding step to the next.
//
// A cached value is written once and read at every later step. Its sum, its length and the hull of
// its head are kept here, so that a step reads only the values that came since. Nothing rests on
// the cache being what it was: two values of each head are looked at again, and where the ratios
// that kept sums give are an alarm, all values are read as they are now and those ratios stand.
#pragma once
#include <map>
#include <memory>
#include <mutex>

#include "attention_blocks.h"

namespace tocsin {

// Of one row: sums and squared norms [K,stride], bounds [K,EV].
struct Values {
  const float* sums = nullptr;
  const float* squares = nullptr;
  const float* low = nullptr;
  const float* high = nullptr;
  std::int64_t stride = 0;
};

class RowKept {
 public:
  // Kept sums of the seen values of `row`, those that came since among them; false: read them all.
  bool follow(const Heads& v, std::int64_t row, std::int64_t size, const std::uint8_t* seen,
              std::int64_t keys, float* wide, Values& out) {
    if (rest_ > 0) --rest_;
    if (!whole_) return false;
    whole_ = false;  // until it has proved to be
    std::int64_t fresh[FRESH_MAX], count = 0;
    if (keys > stride_ || reach_ > keys) return false;
    for (std::int64_t j = 0; j < keys; j += 8) {
      if (std::memcmp(seen_.data() + j, seen + j, std::min<std::int64_t>(8, keys - j)) == 0)
        continue;
      for (std::int64_t i = j; i < std::min(keys, j + 8); ++i) {
        if (seen_[i] == seen[i]) continue;
        if (seen_[i] || count == FRESH_MAX) return false;
        fresh[count++] = i;
      }
    }
    const std::int64_t padded_size = padded(size);
    for (std::int64_t kv = 0; kv < v.heads; ++kv) {
      float* sums = sums_.data() + kv * stride_;
      float* squares = squares_.data() + kv * stride_;
      for (const std::int64_t j : {first_, reach_ - 1}) {
        const auto [total, square] = measure(v, row, kv, j, size, wide, nullptr, nullptr);
        const float off = std::fabs(total - sums[j]), limit = 64 * U32 * std::sqrt(size * square);
        if (!(off <= limit)) return missed();
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const auto [total, square] =
            measure(v, row, kv, fresh[i], size, wide, low_.data() + kv * padded_size,
                    high_.data() + kv * padded_size);
        if (total != total) return false;
        sums[fresh[i]] = total;
        squares[fresh[i]] = square;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) seen_[fresh[i]] = 1;
    if (count) reach_ = std::max(reach_, fresh[count - 1] + 1);
    out = {sums_.data(), squares_.data(), low_.data(), high_.data(), stride_};
    return whole_ = true;
  }

  // Keep what was found in all values of the row.
  void keep(std::int64_t heads, std::int64_t size, const std::uint8_t* seen, std::int64_t keys,
            const Values& found, bool prompt) {
    if (prompt) rest_ = penalty_ = 0;
    if (rest_ > 0) return;
    if (keys > stride_) stride_ = padded(keys + std::max<std::int64_t>(64, keys / 4));
    seen_.assign(stride_, 0);
    sums_.assign(heads * stride_, 0.0f);
    squares_.assign(heads * stride_, 0.0f);
    first_ = -1, reach_ = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!seen[j]) continue;
      if (first_ < 0) first_ = j;
      seen_[j] = 1;
      reach_ = j + 1;
    }
    for (std::int64_t kv = 0; kv < heads; ++kv)
      for (std::int64_t j = 0; j < reach_; ++j) {
        sums_[kv * stride_ + j] = seen[j] ? found.sums[kv * found.stride + j] : 0.0f;
        squares_[kv * stride_ + j] = seen[j] ? found.squares[kv * found.stride + j] : 0.0f;
      }
    low_.assign(found.low, found.low + heads * padded(size));
    high_.assign(found.high, found.high + heads * padded(size));
    whole_ = first_ >= 0;
  }

  // Kept sums led nowhere. Where that goes on (a cache that shifts) it is not tried each time.
  bool missed() {
    rest_ = penalty_;
    penalty_ = std::min(64, 2 * penalty_ + 1);
    if (rest_ > 0) whole_ = false;
    return false;
  }
  void served() { penalty_ = 0; }

  std::size_t bytes() const {
    return seen_.capacity() +
           sizeof(float) * (sums_.capacity() + squares_.capacity() + low_.capacity() +
                            high_.capacity());
  }

 private:
  static constexpr std::int64_t FRESH_MAX = 64;

  // Sum and squared norm of one value; its numbers widen the bounds.
  static std::pair<float, float> measure(const Heads& v, std::int64_t row, std::int64_t kv,
                                         std::int64_t j, std::int64_t size, float* wide,
                                         float* low, float* high) {
    const float* x = numbers(v.data, v.kind, v.at(row, kv, j), size, wide);
    vf total = {}, square = {};
    chunks(size, [&](std::int64_t at, auto take) {
      const vf one = take(x + at);
      total += one;
      square += one * one;
      if (low == nullptr) return;
      store(low + at, lower(one, load(low + at)));
      store(high + at, upper(one, load(high + at)));
    });
    return {sum(total), sum(square)};
  }

  bool whole_ = false;
  int rest_ = 0, penalty_ = 0;
  std::int64_t stride_ = 0, first_ = -1, reach_ = 0;
  std::vector<std::uint8_t> seen_;
  std::vector<float> sums_, squares_, low_, high_;
};

struct CallKept {
  std::int64_t kv_heads = 0, size = 0;
  Kind kind = Kind::FLOAT;
  std::vector<RowKept> rows;
};

// Of each call of a step, named by the line that it has in its verdict buffer. A name that comes to
// mean another call costs one pass over the values. The longest unused go where there are too many.
class KeptValues {
 public:
  using Name = std::pair<const void*, std::int64_t>;

  // Out of the shelf while it is in use: a second run of that name starts anew.
  std::unique_ptr<CallKept> take(const Name& name, std::int64_t rows, std::int64_t kv_heads,
                                 std::int64_t size, Kind kind) {
    std::unique_ptr<CallKept> found;
    {
      const std::lock_guard<std::mutex> hold(lock_);
      const auto at = shelf_.find(name);
      if (at != shelf_.end()) {
        found = std::move(at->second.kept);
        bytes_ -= at->second.bytes;
        shelf_.erase(at);
      }
    }
    const bool fits = found && (std::int64_t)found->rows.size() == rows &&
                      found->kv_heads == kv_heads && found->size == size && found->kind == kind;
    if (!fits) {
      found = std::make_unique<CallKept>();
      found->kv_heads = kv_heads, found->size = size, found->kind = kind;
      found->rows.resize(rows);
    }
    return found;
  }

  void give(const Name& name, std::unique_ptr<CallKept> kept) {
    std::size_t bytes = 0;
    for (const RowKept& row : kept->rows) bytes += row.bytes();
    const std::lock_guard<std::mutex> hold(lock_);
    bytes_ += bytes;
    const auto at = shelf_.find(name);
    if (at != shelf_.end()) bytes_ -= at->second.bytes;
    shelf_[name] = {std::move(kept), bytes, ++turn_};
    while (bytes_ > BYTES_MAX && shelf_.size() > 1) {
      auto oldest = shelf_.begin();
      for (auto it = shelf_.begin(); it != shelf_.end(); ++it)
        if (it->second.turn < oldest->second.turn) oldest = it;
      bytes_ -= oldest->second.bytes;
      shelf_.erase(oldest);
    }
  }

  // Never destroyed: threads may still be checking as the process ends.
  static KeptValues& shared() {
    static KeptValues* const one = new KeptValues;
    return *one;
  }

 private:
  static constexpr std::size_t BYTES_MAX = 256u << 20;  // a 32nd of the keys and values themselves
  struct Entry {
    std::unique_ptr<CallKept> kept;
    std::size_t bytes = 0;
    std::uint64_t turn = 0;
  };
  std::mutex lock_;
  std::map<Name, Entry> shelf_;
  std::size_t bytes_ = 0;
  std::uint64_t turn_ = 0;
};

}  // namespace tocsin
