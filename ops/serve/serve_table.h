// ServeTable: the rows of one version of an export file, looked up in the memory-mapped file.
//
// Letters: B = instances, S = sparse slots, W = dense width, width = floats of a pooled slot, K =
// slots whose clicks are returned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rule/accessor.h"
#include "serve/block.h"
#include "serve/block_index.h"
#include "store/fuse_filter.h"

namespace pbx {

using Bytes = std::pair<const char*, size_t>;  // owned by the caller

// A layer of the file.
struct LayerParts {
  uint64_t number = 0;
  int bits = 0;
  std::vector<Bytes> blocks;  // (2^bits)
  FuseShape filter;           // bits = 0: no filter
  uint64_t min_key = 0, max_key = 0;
  Bytes filter_table{};
};

// What a pull returns of the shows and clicks that rows have.
struct ServedCounts {
  bool cvm = false;            // the CVM features of each slot
  std::vector<size_t> clicks;  // (K) slots whose shows and clicks follow the dense features
};

class ServeTable {
 public:
  // name: of the file, for messages. resident_bytes: blocks are copied to huge pages of this
  // process when they are checked, up to this many bytes in total. Other blocks are read from the
  // mapped file, on small pages. REQUIRES: codec.counts() if `counts` has any.
  ServeTable(std::string name, const ServeCodec& codec, size_t slots, size_t dense_width,
             size_t resident_bytes, ServedCounts counts);
  // Returns the CVM features if rows have counts.
  ServeTable(std::string name, const ServeCodec& codec, size_t slots, size_t dense_width,
             size_t resident_bytes = 0)
      : ServeTable(std::move(name), codec, slots, dense_width, resident_bytes,
                   {codec.counts(), {}}) {}

  // Adds layers, newest first. The memory that parts point to must outlive the table.
  // InvalidArgument if bits, blocks and filter contradict each other.
  Status AddLayer(LayerParts parts);

  // Shares checks and indexes with `before`, for layers that both tables have with the same blocks
  // in memory.
  void AdoptTests(const ServeTable& before);

  // Pools the rows of each (instance, slot) and applies CVM, by the kernels of training.
  //   feasigns (nnz), offsets (B * S + 1), ascending from 0 to nnz, dense (B, W)
  //   factors (nnz) of the rows, see row/pooling.h; null: each is 1
  //   out (B, S * width + W + 2 K): the slots, the dense features, and the sums of the shows and
  //       then of the clicks of the K slots
  // An absent feasign reads as zeros. Corruption names a damaged block. Thread safe.
  Status Pull(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
              size_t instances, const float* dense, float* out) const;
  Status Pull(const uint64_t* feasigns, const int32_t* offsets, size_t instances,
              const float* dense, float* out) const {
    return Pull(feasigns, offsets, nullptr, instances, dense, out);
  }

  // The same without the dense features, which are not written. out (B, stride).
  Status PullInto(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
                  size_t instances, float* out, size_t stride) const;

  // found: (n), 1 if the feasign has a row. Thread safe.
  Status Contains(const uint64_t* feasigns, size_t n, uint8_t* found) const;

  // Checks every block.
  Status TestAll() const;

  // Memory of the copies of the blocks checked so far, including shared ones.
  size_t ResidentBytes() const;

  const ServeCodec& codec() const { return codec_; }
  size_t slots() const { return slots_; }
  size_t dense_width() const { return dense_width_; }
  size_t pooled_width() const { return slots_ * width_; }
  size_t output_width() const { return pooled_width() + dense_width_ + 2 * counts_.clicks.size(); }

  // Goes through the rows of layers [first, last), in the order of keys, each key once with its
  // newest row. Layers are numbered newest first.
  class Cursor {
   public:
    Cursor(const ServeTable& table, size_t first, size_t last);
    Status Start();
    bool done() const { return done_; }
    uint64_t key() const { return key_; }
    const char* row() const { return row_; }  // encoded
    bool full() const { return full_; }
    // Whether the row is all zero bits: a deleted feasign.
    bool zeros() const;
    Status Next();

   private:
    struct At {
      uint64_t block = 0;
      uint32_t i = 0, rows = 0;
      uint64_t key = 0;
      bool done = false;
    };
    Status Settle(size_t layer);  // moves past empty blocks
    void Choose();

    const ServeTable& table_;
    const size_t first_;
    std::vector<At> at_;
    bool done_ = false, full_ = false;
    uint64_t key_ = 0;
    const char* row_ = nullptr;
  };

  size_t layers() const { return layers_.size(); }

 private:
  // A block that may have been checked, with everything needed to find a row, in half a cache line.
  struct alignas(32) OpenBlock {
    std::atomic<const TagBucket*> index{nullptr};  // null: not checked, nothing else is set
    const char* data = nullptr;
    const char* alike = nullptr;  // the first row, if all are of one kind
    uint32_t rows = 0, full = 0;
  };
  // Shared by the tables that have the layer.
  struct Tested {
    Tested(size_t n, size_t bytes)
        : blocks(std::make_unique<OpenBlock[]>(n)), index(bytes), copies(bytes) {}
    std::unique_ptr<OpenBlock[]> blocks;
    std::mutex mutex;  // held while a block is checked
    Room index, copies;
    std::atomic<size_t> resident{0};  // bytes of copies
  };
  struct Layer {
    LayerParts parts;
    FuseHash filter;
    std::shared_ptr<Tested> tested;
  };

  // Returns the block after checking it. Sets *index to its first bucket.
  Status Block(const Layer& layer, uint64_t number, const OpenBlock** block,
               const TagBucket** index) const {
    *block = &layer.tested->blocks[number];
    *index = (*block)->index.load(std::memory_order_acquire);
    if (__builtin_expect(*index != nullptr, 1)) return Status::Ok();
    return TestBlock(layer, number, index);
  }
  Status TestBlock(const Layer& layer, uint64_t number, const TagBucket** index) const;
  BlockView View(const OpenBlock& block) const {
    return {codec_, block.data, block.rows, block.full};
  }
  // Like BlockView::Row, but faster if all rows of the block are of one kind.
  const char* RowAt(const OpenBlock& block, uint32_t place, bool* full) const {
    if (block.alike == nullptr) return View(block).Row(place, full);
    *full = block.full != 0;
    return block.alike + size_t{place} * (BlockView::kKeyBytes + codec_.bytes(*full));
  }
  // The first layer, from `layer` on, whose filter lets the key pass; layers() if there is none.
  size_t NextLayer(size_t layer, uint64_t key) const;
  // The row of key in layer or an older one; null: none.
  Status Find(size_t layer, uint64_t key, const char** row, bool* full) const;
  // The rows of n <= kGroup feasigns, null: none. Each step is done for all n, so that cache misses
  // overlap.
  static constexpr size_t kGroup = 128;
  Status FindGroup(const uint64_t* feasigns, size_t n, const char** rows, bool* full) const;

  // The two cases of PullInto: one feasign per slot, no factors and no counts; everything else.
  Status PullCopies(const uint64_t* feasigns, size_t instances, float* out, size_t stride) const;
  Status PullPooled(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
                    size_t instances, float* out, size_t stride) const;
  // Writes the shows and clicks of one instance to out (2 K). rows: decoded; ids: of the rows;
  // offsets: (S + 1) of the instance.
  void SumClicks(const float* rows, const int32_t* ids, const int32_t* offsets, float* out) const;

  const std::string name_;
  const ServeCodec codec_;
  const size_t slots_, dense_width_, resident_bytes_;
  const ServedCounts counts_;
  AccessorConfig accessor_;  // for decoded rows
  size_t width_;
  std::vector<Layer> layers_;
};

}  // namespace pbx
