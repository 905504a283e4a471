#include "paddle/operators/outputs.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/buffer.h"

namespace pbx {
namespace {

constexpr size_t kLeast = 1 << 20;       // bytes: the C library reuses smaller blocks itself
constexpr size_t kMostFree = 256 << 20;  // bytes kept, in addition to the block returned last

class Blocks {
 public:
  // Null: out of memory.
  char* Take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto chosen = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      const bool fits = at->size() >= bytes && at->size() / 2 <= bytes;
      if (fits && (chosen == free_.end() || at->size() < chosen->size())) chosen = at;
    }
    Buffer block;
    if (chosen != free_.end()) {
      block = std::move(*chosen);
      free_.erase(chosen);
      free_bytes_ -= block.size();
    } else {
      Result<Buffer> made = Buffer::Allocate(bytes);
      if (!made.ok()) return nullptr;
      block = std::move(made.value());
    }
    char* const data = block.data();
    used_.emplace(data, std::move(block));
    return data;
  }

  void GiveBack(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto used = used_.find(data);
    free_bytes_ += used->second.size();
    free_.push_back(std::move(used->second));
    used_.erase(used);
    while (free_.size() > 1 && free_bytes_ > kMostFree) {
      free_bytes_ -= free_.front().size();
      free_.erase(free_.begin());
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;  // in the order in which they were returned
  size_t free_bytes_ = 0;
  std::map<void*, Buffer> used_;
};

// Never destroyed, because Paddle may hold tensors until the process ends.
Blocks& TheBlocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

}  // namespace

paddle::Tensor NewOutput(const std::vector<int64_t>& shape, const paddle::Place& place,
                         paddle::DataType type) {
  if (place.GetType() != phi::AllocationType::CPU) {  // Paddle reuses blocks of a GPU itself
    return paddle::empty(shape, type, place);
  }
  size_t bytes = phi::SizeOf(type);
  for (const int64_t length : shape) bytes *= static_cast<size_t>(length);
  char* const data = bytes < kLeast ? nullptr : TheBlocks().Take(bytes);
  if (data == nullptr) return paddle::empty(shape, type, place);
  return paddle::from_blob(data, shape, type, paddle::DataLayout::NCHW, place,
                           [](void* block) { TheBlocks().GiveBack(block); });
}

}  // namespace pbx
