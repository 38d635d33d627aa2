// Memory of large tensors that are made anew in every step, and kept until its verdict is in.
//
// Given back to the system, it is faulted in again page by page: 30,000 faults and 110 ms of a step
// of 420 ms, with eight rows of 512 keys in 30 layers. Here it waits for the next step instead.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace tocsin {

class Room {
 public:
  // Never destroyed: the last tensor may live longer than anything of this library.
  static Room& shared() {
    static Room* const room = new Room;
    return *room;
  }

  // As at::empty; small ones come from there, where the allocator keeps them by itself.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
    std::size_t bytes = options.dtype().itemsize();
    for (const std::int64_t size : sizes) bytes *= size;
    if (bytes < SMALL) return at::empty(sizes, options);
    bytes = rounded(bytes);
    return at::from_blob(
        take(bytes), sizes, [bytes](void* at) { shared().give_back(at, bytes); }, options);
  }

 private:
  static constexpr std::size_t SMALL = 128 << 10, ALIGNED = 4096;
  static constexpr std::size_t HELD_MAX = std::size_t(1) << 30;
  static constexpr std::uint64_t IDLE_MAX = 4096;  // blocks taken since: some dozens of steps

  struct Block {
    void* at;
    std::size_t bytes;
    std::uint64_t since;
  };

  // Lengths grow by a token a step; eighths of a power of two are found again for a while.
  static std::size_t rounded(std::size_t bytes) {
    std::size_t step = ALIGNED;
    while (step * 16 <= bytes) step *= 2;
    return (bytes + step - 1) / step * step;
  }

  void* take(std::size_t bytes) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      ++clock_;
      for (std::size_t i = free_.size(); i-- > 0;)  // the latest is still in a cache
        if (free_[i].bytes == bytes) {
          void* const found = free_[i].at;
          free_.erase(free_.begin() + i);
          held_ -= bytes;
          return found;
        }
    }
    void* made = std::aligned_alloc(ALIGNED, bytes);
    if (made == nullptr) {  // what waits here may be what is lacking
      let_go();
      made = std::aligned_alloc(ALIGNED, bytes);
    }
    TORCH_CHECK(made != nullptr, "tocsin: ", bytes, " bytes for pages that are read are not there");
    return made;
  }

  void let_go() {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const Block& block : free_) std::free(block.at);
    free_.clear();
    held_ = 0;
  }

  void give_back(void* at, std::size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    free_.push_back({at, bytes, clock_});
    held_ += bytes;
    std::size_t gone = 0;  // the oldest are in front
    while (gone < free_.size() &&
           (held_ > HELD_MAX || free_[gone].since + IDLE_MAX < clock_)) {
      held_ -= free_[gone].bytes;
      std::free(free_[gone++].at);
    }
    free_.erase(free_.begin(), free_.begin() + gone);
  }

  std::mutex lock_;
  std::vector<Block> free_;
  std::size_t held_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace tocsin
