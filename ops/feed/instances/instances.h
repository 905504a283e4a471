// Instances: all instances of a pass in memory, as columns. Chunks are added in file order. Then
// the unique keys are sorted, and each occurrence is replaced by the position of its key. After
// that no key is hashed or compared again.
//
// Slots may belong to several tables. Then a feasign is a key of each table in whose slots it
// occurs, and keys are ordered by table first.
//
// Letters: N = instances, S = sparse slots, W = dense width, U = unique keys, nnz = occurrences,
// T = tables.
//
// Order of calls: (ShareLists | SetTables | SetPoolings | SetSampling)* -> Append* -> MergeByInsId?
// -> (Shuffle | Arrange | ArrangeBy | ArrangePlaces)? -> Index -> (Split, SelectRange, PackBatch)*.
// Another order is FailedPrecondition. Arrange, ArrangeBy, ArrangePlaces, ReplaceSlots and FeedFrom
// may also be called after Index, between batches. Gather is called before Index. Not thread safe,
// except PackBatch, PackTable and PackClickCounts, which any number of threads may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "base/threads.h"
#include "feed/text/parser.h"
#include "row/pooling.h"

namespace pbx {

// Instances [begin, end), trained as one pass.
struct InstanceRange {
  size_t begin = 0;
  size_t end = 0;
};

// The unique keys of a range. u = number of keys of the range.
struct RangeKeys {
  std::vector<uint64_t> keys;  // (u) by table, ascending in each table
  // (u) the lowest sparse slot of the key in all instances of the pass
  std::vector<uint16_t> slots;
  std::vector<int32_t> positions;  // (u) the position of each key among all U keys
};

// The sparse part of a mini-batch, for the slots of one table. B = instances of the batch, S = the
// slots of the table.
struct SparseBatch {
  std::vector<int32_t> ids;      // (nnz) row ids, -1: the key has no row
  std::vector<int32_t> offsets;  // (B * S + 1) ids of (instance b, slot s) are
                                 //   ids[offsets[b*S+s] .. offsets[b*S+s+1]); see row/lists.h for
                                 //   batches with shared lists
  std::vector<int32_t> plan;     // dedup plan, see BuildPlan
};

// A mini-batch, ready to feed, with the sparse slots of table 0.
struct Batch : SparseBatch {
  size_t size = 0;                // B
  std::vector<float> dense;       // (B, W)
  std::vector<float> labels;      // (B)
  std::vector<float> show_click;  // (B, 2): 1, label
};

// Orders of instances. The result depends on the files, the order and the seed alone, not on
// earlier calls or on threads.
enum class Order {
  kFile,
  kShuffled,   // instances are shuffled
  kInsId,      // instances with the same id stay together, in file order; groups are shuffled
  kSearchId,   // like kInsId, by search id
  kSlot,       // like kInsId, by the first feasign of a slot; without one, a group by itself
  kPageViews,  // ascending by search id; instances with one search id are a page view
};

// The memory that sharing of lists has saved so far.
struct SharedCounts {
  size_t lists = 0;  // lists that continue the list of the instance before
  // Occurrences in these lists that are not stored. Each takes 8 bytes as a feasign, 4 as a
  // position.
  size_t values = 0;
  size_t index_bytes = 0;  // memory of the index that finds the shared lists
};

// Instances [begin, end) of which the first has this number in its pass. A window of a pass holds
// only some of its instances.
struct NumberedRange : InstanceRange {
  size_t first = 0;

  size_t NumberOf(size_t i) const { return first + (i - begin); }
};

// The fold of each instance of a pass: a hash of the seed and the number of the instance.
struct Folds {
  uint64_t seed = 0;
  size_t count = 1;  // F

  size_t Of(size_t number) const {
    return count == 1 ? 0 : static_cast<size_t>(Mix(seed + Mix(number + 1)) % count);
  }
};

// (size) the instance that Shuffle(seed) puts at each place.
std::vector<uint32_t> ShuffledOrder(size_t size, uint64_t seed);

class Instances {
 public:
  Instances(size_t sparse_slots, size_t dense_width);
  ~Instances();

  // From now on, what a list has in common with the list of the instance before is stored once, if
  // it continues that list (shared_lists.h): in the given slots or, if `slots` is null, in every
  // slot for which this saves memory in the chunk. If both lists are equal and both instances are
  // also neighbours in a batch, PackBatch packs the list once. No other result changes. Call it
  // before the first Append.
  Status ShareLists(const std::vector<size_t>* slots);

  // Sets the table of each slot: (S), table numbers from 0 without gaps. By default all slots
  // belong to one table. Call it before the first Append.
  Status SetTables(const std::vector<uint8_t>& table_of_slot);

  // Sets how the lists of each slot are pooled: (S). Batches then have factors (row/plan.h) in the
  // tables with a slot that is not kPlain. Call it before the first Append, without ShareLists.
  Status SetPoolings(const std::vector<ListPooling>& poolings);

  // InvalidArgument if the columns of the chunk do not fit each other, S or W, or if a feasign is
  // 0. FailedPrecondition for weights with ShareLists. Without SetPoolings, weights have no effect.
  Status Append(ParsedChunk&& chunk);

  // Keeps each instance that is appended from now on with probability `rate`, in [0, 1]. A hash of
  // the seed and the instance's id decides, so all or no instances of an id are kept. Without ids,
  // the instance's number is hashed.
  Status SetSampling(double rate, uint64_t seed);

  // Merges the instances with the same id into one. dense_dims: the dims of the dense slots, which
  // add up to W.
  //
  // As in PaddleBox, the label and each dense slot come from the last instance in which they are
  // not all zero. A sparse slot comes from the one instance that has it. Content and log key come
  // from the first instance. An id is dropped if its number of instances is not merge_size (0: any
  // number), or if two of its instances have the same sparse slot. The merged instances are in the
  // order of the first instances. Returns the number of dropped instances. FailedPrecondition
  // without ids.
  Result<size_t> MergeByInsId(size_t merge_size, const std::vector<size_t>& dense_dims);

  // Puts the instances into this order. slot: for kSlot, the number of a sparse slot.
  // FailedPrecondition if instances lack the tag that the order needs.
  Status ArrangeBy(Order order, uint64_t seed, size_t slot = 0);

  // A permutation that depends on seed and N alone: ShuffledOrder. May be called once.
  Status Shuffle(uint64_t seed);

  // Puts at place i the instance that has number order[i] in file order. order: (N) a permutation.
  Status Arrange(const uint32_t* order, size_t size);

  // Puts at place i the instance that has number order[i] in file order. Unlike in Arrange, an
  // instance may have several places, or none. From now on N is the number of places. Index and the
  // keys of the pass still cover all instances. The next call of Arrange, ArrangeBy or
  // ArrangePlaces begins with all instances again. InvalidArgument for an unknown number.
  Status ArrangePlaces(const uint32_t* order, size_t size);

  // Copies of the instances with these numbers, without tags.
  Result<ParsedChunk> Gather(const uint32_t* numbers, size_t size) const;

  // (N) the number in file order of each instance, as Arrange takes it.
  std::vector<uint32_t> Numbers() const;

  // Sorts the unique keys (KeyOf each feasign), replaces occurrences by positions and drops the
  // feasigns. InvalidArgument for more than 2^31 - 1 unique keys. The result does not depend on the
  // number of threads.
  Status Index(ThreadPool* pool);

  size_t size() const;         // N
  size_t unique_keys() const;  // U, after Index
  // (T + 1), after Index: the keys of table t are at positions [bounds[t], bounds[t + 1]).
  const std::vector<size_t>& key_bounds() const;
  size_t occurrences() const;  // nnz, including shared ones
  SharedCounts shared_counts() const;
  size_t bytes() const;  // memory held

  // Cuts [0, N) at multiples of batch_size into ranges with at most max_rows[t] unique keys of each
  // table t. max_rows: (T). InvalidArgument, with the number of rows needed, if a single batch has
  // more unique keys. Without instances there is no range.
  Result<std::vector<InstanceRange>> Split(const std::vector<size_t>& max_rows,
                                           size_t batch_size) const;
  Result<std::vector<InstanceRange>> Split(size_t max_rows, size_t batch_size) const {
    return Split(std::vector<size_t>{max_rows}, batch_size);
  }
  // The same for batches of different sizes. ends: where each batch ends; ascending, the last is N.
  Result<std::vector<InstanceRange>> SplitAt(const std::vector<size_t>& max_rows,
                                             const std::vector<size_t>& ends) const;

  Result<RangeKeys> SelectRange(InstanceRange range) const;

  // (U) the number of occurrences of each unique key, including shared ones. counted: (N) 1 for the
  // instances that count; null: all.
  Result<std::vector<uint32_t>> KeyCounts(const uint8_t* counted = nullptr) const;

  // Packs instances [begin, end). row_of_position: (U) row id in the pass table, or -1. stamp: is
  // written into the plan. The vectors of `out` are reused.
  Status PackBatch(size_t begin, size_t end, const int32_t* row_of_position, int32_t stamp,
                   Batch* out) const;

  // Packs the sparse part of the same batch for the slots of another table. stamp: identifies the
  // pass of that table.
  Status PackTable(size_t table, size_t begin, size_t end, const int32_t* row_of_position,
                   int32_t stamp, SparseBatch* out) const;

  // Adds the instances of a range to counts (rows, F, 2): one show and the label, for each
  // occurrence of a row that a batch gets in these slots of table 0, in the fold of the instance.
  // row_of_position: as in PackBatch. InvalidArgument for a row that is not below rows.
  Status AddClickCounts(const NumberedRange& range, const int32_t* row_of_position,
                        const Folds& folds, const std::vector<uint16_t>& slots, size_t rows,
                        float* counts) const;

  // out: (B, 2 * K) for these K slots of table 0: the sums of the shows of their rows, then of
  // their clicks, from counts (rows, F, 2) at the fold of the instance. Rows of -1 add nothing.
  Status PackClickCounts(const NumberedRange& range, const int32_t* row_of_position,
                         const Folds& folds, const std::vector<uint16_t>& slots,
                         const float* counts, size_t rows, float* out) const;

  // The feasigns of instances [begin, end), in the layout of Batch::ids and Batch::offsets, for the
  // slots of all tables. For programs whose inputs are feasigns.
  Status PackFeasigns(size_t begin, size_t end, std::vector<uint64_t>* feasigns,
                      std::vector<int32_t>* offsets) const;

  // The weights of the same feasigns, each 1 without weights. For serving.
  Status PackWeights(size_t begin, size_t end, std::vector<float>* weights) const;

  // (V + 1) the first instance of each of the V page views, then N. Only after ArrangeBy with
  // kPageViews; a page view is a run of instances with the same search id.
  Result<std::vector<size_t>> PageViewStarts() const;

  // (B, 2 * max_rank + 1), B = end - begin: the input of rank_attention. The row of an instance
  // begins with its rank. Then there is a pair (r, i) for each rank r from 1 on: i is the index in
  // the batch of the instance of the same page view with rank r (the last one, if several have it).
  // -1 means none, and an instance without a rank has only -1. A rank counts only if it is in [1,
  // max_rank] and cmatch is 222 or 223.
  Status RankOffsets(size_t begin, size_t end, size_t max_rank, std::vector<int32_t>* out) const;

  // From now on, batches get the values of these slots from another instance (a donor). Donors come
  // from a pool of pool_size instances, which is drawn from all instances by reservoir sampling. An
  // earlier replacement is undone first; with no slots, nothing else is done. The result depends on
  // the seed and the files. Keys, Split and SelectRange do not change, because they cover all
  // feasigns.
  Status ReplaceSlots(const std::vector<size_t>& slots, size_t pool_size, uint64_t seed);

  // The same with given donors. donors: (N) the donor of each instance. Instances and donors are
  // numbered in the current order.
  Status FeedFrom(const std::vector<size_t>& slots, const uint32_t* donors, size_t size);

  // Tags of instance i. REQUIRES: tags() has them.
  const TagSpec& tags() const;
  std::string_view ins_id(size_t i) const;
  std::string_view content(size_t i) const;
  const LogKey& log_key(size_t i) const;

  const std::vector<float>& labels() const;  // (N) in the current order

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pbx
