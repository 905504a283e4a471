// LayerWriter: makes the blocks and the filter of a layer from rows in the order of keys.
//
// Calls: (Delete | Against)? -> Add* or Merge* -> Finish, and TakeBlocks at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "serve/block.h"
#include "serve/serve_table.h"
#include "store/fuse_filter.h"

namespace pbx {

class LayerWriter {
 public:
  // embed_state: state words of embed_w in the rows given to Add. filtered: with a filter.
  LayerWriter(const ServeCodec& codec, int embed_state, bool filtered)
      : codec_(codec), filtered_(filtered), builder_(codec) {
    layout_.embedx_dim = codec.embedx_dim();
    layout_.embed_state = embed_state;
    layout_.counts = codec.more_counts();
  }

  // Sets the feasigns that the layer deletes, in any order. Call it before the first row.
  void Delete(const uint64_t* feasigns, size_t n);

  // Makes the layer the difference to `table`: rows that `table` has with the same bytes are left
  // out, and rows that only `table` has are deleted. Call it before the first row.
  Status Against(const ServeTable& table);

  // feasigns: (n) in the order of keys, also across calls; rows: (n, words), as in row.md.
  // InvalidArgument if they are out of order, or a weight is not finite.
  Status Add(const uint64_t* feasigns, const float* rows, size_t n, size_t words);

  // Adds rows of cursor until there are about `bytes` of them. base: leaves out deleted rows.
  Status Merge(ServeTable::Cursor* cursor, bool base, size_t bytes);

  Status Finish();

  // The blocks completed since the last call, with their numbers.
  std::vector<std::pair<uint32_t, std::string>> TakeBlocks() { return std::move(blocks_); }

  // After Finish.
  int bits() const { return bits_; }
  const FuseShape& filter() const { return filter_; }
  const std::vector<char>& filter_table() const { return filter_table_; }
  uint64_t min_key() const { return keys_.empty() ? 0 : keys_.front(); }
  uint64_t max_key() const { return keys_.empty() ? 0 : keys_.back(); }
  uint64_t rows() const { return rows_; }
  uint64_t deleted() const { return deleted_rows_; }

 private:
  Status Take(uint64_t key, bool full, const char* row);  // a row given to Add
  Status DeleteBefore(uint64_t key);
  void Put(uint64_t key, bool full, const char* row);  // adds to the layer; null: deleted
  void ChooseBits(double share);
  void Emit(uint64_t key, bool full, const char* row);
  void FinishBlock();

  const ServeCodec codec_;
  const bool filtered_;
  RowLayout layout_;
  BlockBuilder builder_;
  std::unique_ptr<ServeTable::Cursor> old_;
  std::vector<uint64_t> gone_;  // keys of Delete, ascending
  size_t next_gone_ = 0;
  bool began_ = false;
  uint64_t last_key_ = 0;
  int bits_ = -1;  // -1: not chosen yet, rows are in waiting_
  struct Waiting {
    uint64_t key;
    bool full;
    std::string row;
  };
  std::vector<Waiting> waiting_;
  uint64_t waiting_bytes_ = 0;
  uint64_t block_ = 0;  // number of the block being built
  std::vector<std::pair<uint32_t, std::string>> blocks_;
  std::vector<uint64_t> keys_;  // all keys, for the filter
  FuseShape filter_;
  std::vector<char> filter_table_;
  uint64_t rows_ = 0, deleted_rows_ = 0;
};

}  // namespace pbx
