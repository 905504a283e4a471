// ServeTable: the rows of one version of an export file, looked up where they lie in its map.
//
// Letters: B = instances, S = sparse slots, W = dense width, width = floats of a pooled slot.
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

using Bytes = std::pair<const char*, size_t>;  // borrowed

// A layer as the file holds it.
struct LayerParts {
  uint64_t number = 0;
  int bits = 0;
  std::vector<Bytes> blocks;  // (2^bits)
  FuseShape filter;           // bits = 0: none
  uint64_t min_key = 0, max_key = 0;
  Bytes filter_table{};
};

class ServeTable {
 public:
  // name: of the file, for messages. resident_bytes: of blocks that are copied to huge pages of
  // this process when they are tested; the others are read in the file's map, on small pages.
  ServeTable(std::string name, const ServeCodec& codec, size_t slots, size_t dense_width,
             size_t resident_bytes = 0);

  // Newest first. All that parts point to must stay while the table is used. InvalidArgument where
  // bits, blocks and filter do not fit each other.
  Status AddLayer(LayerParts parts);

  // Of layers that both have and whose blocks lie where they lay: tests and indexes are shared.
  void AdoptTests(const ServeTable& before);

  // Pools the rows of each (instance, slot) and applies CVM, with the kernels of training.
  //   feasigns (nnz), offsets (B * S + 1), ascending from 0 to nnz, dense (B, W)
  //   out (B, S * width + W)
  // An absent feasign reads as zeros. Corruption names a damaged block. Thread safe.
  Status Pull(const uint64_t* feasigns, const int32_t* offsets, size_t instances,
              const float* dense, float* out) const;

  // The same without the dense part: out (B, stride), of which the first S * width are written.
  Status PullInto(const uint64_t* feasigns, const int32_t* offsets, size_t instances, float* out,
                  size_t stride) const;

  // found: (n) 1 where a feasign has a row. Thread safe.
  Status Contains(const uint64_t* feasigns, size_t n, uint8_t* found) const;

  // Tests every block.
  Status TestAll() const;

  // Memory of the indexes and of the copies of the blocks tested so far, shared or not.
  size_t IndexBytes() const;
  size_t ResidentBytes() const;

  const ServeCodec& codec() const { return codec_; }
  size_t slots() const { return slots_; }
  size_t dense_width() const { return dense_width_; }
  size_t pooled_width() const { return slots_ * width_; }
  size_t output_width() const { return pooled_width() + dense_width_; }

  // Walks layers [first, last), newest first, in the order of keys; of a key its newest row.
  class Cursor {
   public:
    Cursor(const ServeTable& table, size_t first, size_t last);
    Status Start();
    bool done() const { return done_; }
    uint64_t key() const { return key_; }
    const char* row() const { return row_; }  // encoded
    bool full() const { return full_; }
    // Of no bits: a deleted feasign.
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
  // A block that may have been tested: half a cache line, all that finds a row in it.
  struct alignas(32) OpenBlock {
    std::atomic<const TagBucket*> index{nullptr};  // null: not tested, and the rest not to be read
    const char* data = nullptr;
    const char* alike = nullptr;  // the first row, where all are of one kind
    uint32_t rows = 0, full = 0;
  };
  // What tables with the same layer share.
  struct Tested {
    Tested(size_t n, size_t bytes)
        : blocks(std::make_unique<OpenBlock[]>(n)), index(bytes), copies(bytes) {}
    std::unique_ptr<OpenBlock[]> blocks;
    std::mutex mutex;  // of those who test a block
    Room index, copies;
    std::atomic<size_t> resident{0};  // bytes in copies
  };
  struct Layer {
    LayerParts parts;
    FuseHash filter;
    std::shared_ptr<Tested> tested;
  };

  // The block, tested. Sets *index to its first bucket.
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
  // As BlockView::Row, in fewer steps where all rows are of one kind.
  const char* RowAt(const OpenBlock& block, uint32_t place, bool* full) const {
    if (block.alike == nullptr) return View(block).Row(place, full);
    *full = block.full != 0;
    return block.alike + size_t{place} * (BlockView::kKeyBytes + codec_.bytes(*full));
  }
  // The first layer from `layer` on whose filter lets key pass; layers() if none.
  size_t NextLayer(size_t layer, uint64_t key) const;
  // Row of key in layer or one that is older, or null.
  Status Find(size_t layer, uint64_t key, const char** row, bool* full) const;
  // Rows of n <= kGroup feasigns, null where there are none; steps are those of all n at a time, so
  // that their misses overlap.
  static constexpr size_t kGroup = 128;
  Status FindGroup(const uint64_t* feasigns, size_t n, const char** rows, bool* full) const;

  // PullInto of one feasign a slot without counts, and of any.
  Status PullCopies(const uint64_t* feasigns, size_t instances, float* out, size_t stride) const;
  Status PullPooled(const uint64_t* feasigns, const int32_t* offsets, size_t instances, float* out,
                    size_t stride) const;

  const std::string name_;
  const ServeCodec codec_;
  const size_t slots_, dense_width_, resident_bytes_;
  AccessorConfig accessor_;  // of decoded rows
  size_t width_;
  std::vector<Layer> layers_;
};

}  // namespace pbx
