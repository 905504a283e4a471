// The rows of a block on their way from columns to instances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "feed/columns/column_values.h"
#include "feed/text/dense_limits.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx::feed {

constexpr int64_t kBlockRows = 1024;  // their values stay in the cache; 128 and 256 are no faster
// Short lists are copied whole, without asking how long they are: 1 to 3 values of a slot at random
// cost a misprediction each, which took half of the time.
constexpr size_t kShort = 4;

class Block {
 public:
  Block(const FeedSchema& schema, ParsedChunk* out);

  // tags: of the schema's TagColumnsRead.
  Status Add(const std::vector<Column>& columns, const std::vector<Column>& tags, int64_t begin,
             int64_t rows);

 private:
  __attribute__((format(printf, 3, 4))) void Bad(size_t row, const char* format, ...);

  // Of column_tags.cc.
  Status TakeTags(const TagColumn& tag, const Column& column);
  std::string_view Digits(const Column& column, int64_t at);

  // Of column_dense.cc.
  void Labels(const Column& column);
  void Dense(const Column& column, size_t at);
  // All dense columns at once, of one float each. False where they are not, or one is not finite.
  bool OneFloatEach(const std::vector<Column>& columns, int64_t begin);
  // Of one number each. False where one is not finite.
  bool OneNumberEach(const Column& column, int64_t first, size_t at);
  bool OneFloatEach(const float* from, size_t at);
  // Rows with a dense value that is too large are bad, and large ones are noted.
  void CheckLimits();
  template <typename Number>
  void TakeLabels(const Column& column, Number number);
  template <typename Number>
  void TakeDense(const Column& column, size_t at, Number number);

  // Of column_sparse.cc.
  Status Sparse(const Column& column, size_t slot);
  // Of one integer each. False where one is to be left out.
  bool OneFeasignEach(const Column& column, size_t slot, int64_t first);
  template <bool per_slot, typename T>
  void Integers(const Column& column, size_t slot, const T* type);
  // Takes the n values from `first` on in one go. False where one is to be left out.
  template <typename T>
  bool Whole(const Column& column, size_t slot, int64_t first, int64_t n, const T*);
  // Room for n values of a slot, and for what a short list is copied with.
  void Room(size_t slot, size_t n);
  // As Integers, value by value: leaves out nulls and zeros, and finds negative ones.
  template <bool per_slot, typename T>
  void Sift(const Column& column, size_t slot, const T*);
  template <typename Offset>
  Status Strings(const Column& column, size_t slot);

  // A column of one value a row, without asking for each row where its items are. False, with
  // nothing done that counts, where a value is not one that is taken as it is.
  bool OneEach(const Column& column, int64_t begin, size_t dense, size_t sparse);
  // Turns the block's columns into rows; a bad one closes up.
  void Assemble();
  // Rows of one feasign a slot, a tile of them at a time: what is written lies in the first cache.
  // False, and nothing added, where one is 0.
  bool AssembleSingles();
  void MoveRow(size_t from, size_t to);

  ParsedChunk* const out_;
  const DenseLimits limits_;
  const TagSpec tag_spec_;
  const std::vector<TagColumn> tags_;
  std::vector<LineTags> row_tags_;  // of the block
  std::string digits_;              // of ids that are integers
  const bool per_slot_;
  const size_t slots_;                     // S
  const std::vector<uint32_t> key_slots_;  // (S) what FeasignInSlot mixes in
  const size_t width_;                     // W
  size_t rows_ = 0;                        // of the block
  size_t first_ = 0;                       // instance that the block's first row is
  bool any_bad_ = false;
  std::vector<std::vector<uint64_t>> values_;  // (S) feasigns of the block, row after row
  std::vector<Items> items_;                   // of the column at hand
  std::vector<uint8_t> nulls_;                 // of the column at hand
  std::vector<uint8_t> bad_;
  std::vector<BadLine> reasons_;
  std::vector<uint8_t> single_;  // (S) each row has one feasign; its length is not written
  // Columns that AssembleSingles looks at while it copies, to read them once; with their slots.
  std::vector<std::pair<const Column*, size_t>> unchecked_;
  bool floats_taken_ = false;            // by OneFloatEach
  std::vector<const uint32_t*> floats_;  // (W) where they lie
  std::vector<uint64_t> tile_;
  std::vector<const uint64_t*> next_;  // (S) feasigns of the block: in values_, or in the column
};

}  // namespace pbx::feed
