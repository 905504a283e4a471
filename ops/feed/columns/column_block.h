// Converts a block of rows from columns to instances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "feed/columns/column_values.h"
#include "feed/columns/expression_columns.h"
#include "feed/text/dense_limits.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx::feed {

constexpr int64_t kBlockRows = 1024;  // their values fit into the cache; 128 and 256 are no faster
static_assert(static_cast<size_t>(kBlockRows) <= expr::kRows);
// For a shorter list, this many values are copied all the same. Copying the exact number costs a
// branch misprediction per list if lengths vary at random from 1 to 3; these took half of the time.
constexpr size_t kShort = 4;

constexpr size_t kTileRows = 64;

class Block {
 public:
  Block(const FeedSchema& schema, ParsedChunk* out);

  // The rows of the batch that the following calls of Add mark as bad. Kept by reference.
  void Refuse(const std::vector<RowError>& rows) { refused_ = &rows; }

  // tags: the columns of TagColumnsRead of the schema. weights: those of the weighted slots.
  Status Add(const std::vector<Column>& columns, const std::vector<Column>& tags,
             const std::vector<Column>& weights, int64_t begin, int64_t rows);

 private:
  __attribute__((format(printf, 3, 4))) void Bad(size_t row, const char* format, ...);

  // Defined in column_tags.cc.
  Status TakeTags(const TagColumn& tag, const Column& column);
  std::string_view DigitsOf(const Column& column, int64_t at);

  // Defined in column_dense.cc.
  void Labels(const Column& column);
  void Dense(const Column& column, size_t at);
  // Takes the first values of an exact slot, as long doubles.
  Status Exact(const Column& column, int64_t begin, size_t at);
  // Finds the first integer of a slot that float rounds, in a block with large values.
  Status FindRounded(const Column& column, int64_t begin, size_t at);
  // Appends all dense columns at once, if each row of each column has one float. False if not, or
  // if a float is not finite.
  bool OneFloatEach(const std::vector<Column>& columns, int64_t begin);
  // Takes a column with one number per row. False if a number is not finite.
  bool OneNumberEach(const Column& column, int64_t first, size_t at);
  bool OneFloatEach(const float* from, size_t at);
  // Marks rows with a dense value that is too large as bad, and records large values.
  Status CheckLimits(const std::vector<Column>& columns, int64_t begin);
  template <typename Number>
  void TakeLabels(const Column& column, Number number);
  template <typename Number>
  void TakeDense(const Column& column, size_t at, Number number);

  // Defined in column_sparse.cc.
  Status Sparse(const Column& column, size_t slot);
  // Takes a column with one integer per row, of which 0 is no feasign. Returns a value of single_.
  uint8_t OneFeasignEach(const Column& column, size_t slot, int64_t first);
  // Makes a slot that OneFeasignEach has taken as Sparse does: sets lengths, leaves out zeros.
  void LeaveOutZeros(size_t slot);
  template <bool per_slot, typename T>
  void Integers(const Column& column, size_t slot, const T* type);
  // Takes n values at once, beginning at `first`. False if a value must be left out.
  template <typename T>
  bool Whole(const Column& column, size_t slot, int64_t first, int64_t n, const T*);
  // Makes room for n values of a slot, and for kShort more.
  void Room(size_t slot, size_t n);
  // Like Integers, but value by value: leaves out nulls and zeros.
  template <bool per_slot, typename T>
  void Sift(const Column& column, size_t slot, const T*);
  // Hashes the decimal digits of integers.
  template <typename T>
  void Digits(const Column& column, size_t slot, const T*);
  template <typename Offset>
  Status Strings(const Column& column, size_t slot);

  // Defined in column_weights.cc.
  struct RowItems {  // the values of one row in a column
    const Column& column;
    Items items;
    bool null;
    int64_t size() const { return items.end - items.begin; }
  };
  // Takes the weights of a slot whose ids were taken last.
  Status TakeWeights(const Column& ids, const Column& weights, int64_t begin, size_t slot);
  template <typename Number>
  void RowWeights(size_t row, const RowItems& ids, const RowItems& weights, Number number,
                  std::vector<float>* out);
  // Adds the weights of all slots. Called before Assemble adds the feasigns.
  void AssembleWeights();

  // Takes a column with one value per row, without a list of items. False, with no effect, if a
  // value needs more than a copy.
  bool OneEach(const Column& column, int64_t begin, size_t dense, size_t sparse);
  // Makes rows of the block's columns, without bad rows.
  void Assemble();
  // Like Assemble, if OneFeasignEach has taken each slot, in tiles that fit into the L1 cache.
  void AssembleSingles();
  void MoveRow(size_t from, size_t to);

  void BadOnes(int64_t begin);

  ParsedChunk* const out_;
  const std::vector<RowError>* refused_ = nullptr;
  const DenseLimits limits_;
  const TagSpec tag_spec_;
  const std::vector<TagColumn> tags_;
  std::vector<LineTags> row_tags_;  // tags of the rows of the block
  std::string digits_;              // decimal digits of ids that are integers
  const bool per_slot_;
  const size_t slots_;                        // S
  const std::vector<uint32_t> key_slots_;     // (S) slot argument of FeasignInSlot
  const size_t width_;                        // W
  const bool exact_;                          // whether a slot is exact
  const std::vector<uint8_t> slot_weighted_;  // (S); empty: no slot is weighted
  size_t rows_ = 0;                           // rows of the block
  size_t first_ = 0;  // number of the instance that the block's first row becomes
  bool any_bad_ = false;
  std::vector<std::vector<uint64_t>> values_;  // (S) feasigns of the block, row after row
  std::vector<std::vector<float>> weights_;    // (S) weights of the block, of weighted slots
  std::vector<Items> items_;                   // items of the current column
  std::vector<uint8_t> nulls_;                 // null rows of the current column
  std::vector<uint8_t> bad_;
  std::vector<BadLine> reasons_;
  // (S) 1: OneFeasignEach has taken the slot. 2: and kShort values can be read behind the last one.
  std::vector<uint8_t> single_;
  bool floats_taken_ = false;            // OneFloatEach has succeeded
  std::vector<const uint32_t*> floats_;  // (W) columns of OneFloatEach
  std::vector<float> float_tile_;
  std::vector<uint32_t> beyond_;  // (rows) the top bit: the row may have a large value
  std::vector<uint64_t> tile_;
  std::vector<const uint64_t*> next_;  // (S) feasigns of the block, in values_ or in the column
};

}  // namespace pbx::feed
