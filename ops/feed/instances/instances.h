// Instances: everything one pass holds in memory, in columns. Chunks are added in file order; then
// the keys are made unique and sorted, and every occurrence becomes a position among them, once;
// after that no key is hashed or compared again.
//
// Slots may belong to several tables. A feasign then is a key of each table in whose slots it
// occurs, and the keys are ordered by table first.
//
// Letters: N = instances, S = sparse slots, W = dense width, U = unique keys, nnz = occurrences,
// T = tables.
//
// Life: (ShareLists | SetTables | SetSampling)* -> Append* -> MergeByInsId? ->
// (Shuffle | Arrange | ArrangeBy)? -> Index -> (Split, SelectRange, PackBatch)*. Out of order is
// FailedPrecondition. Arrange, ArrangeBy, ReplaceSlots and FeedFrom may come after Index as well,
// between batches. Not thread safe but for PackBatch and PackTable, which any number of threads may
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "feed/text/parser.h"

namespace pbx {

// Instances [begin, end) that are trained as one pass.
struct InstanceRange {
  size_t begin = 0;
  size_t end = 0;
};

// A range's share of the unique keys. u = keys of the range.
struct RangeKeys {
  std::vector<uint64_t> keys;   // (u) by table, ascending in each
  std::vector<uint16_t> slots;  // (u) the lowest sparse slot the key occurs in, in the whole load
  std::vector<int32_t> positions;  // (u) their positions among all U
};

// The sparse part of a mini-batch, in the slots of one table. B = instances in it, S = its slots.
struct SparseBatch {
  std::vector<int32_t> ids;      // (nnz) row ids, -1 where the key has no row
  std::vector<int32_t> offsets;  // (B * S + 1) ids of (instance b, slot s) are
                                 //   ids[offsets[b*S+s] .. offsets[b*S+s+1]); where ShareLists
                                 //   found repeated lists, as row/lists.h says
  std::vector<int32_t> plan;     // dedup plan, see BuildPlan
};

// One mini-batch, ready to be fed; of the sparse slots those of table 0.
struct Batch : SparseBatch {
  size_t size = 0;                // B
  std::vector<float> dense;       // (B, W)
  std::vector<float> labels;      // (B)
  std::vector<float> show_click;  // (B, 2): 1, label
};

// Orders of instances. Each is a function of the files, the order and the seed; never of what was
// done before, nor of threads.
enum class Order {
  kFile,
  kShuffled,   // every instance by itself
  kInsId,      // the instances of one id stay together, in file order; the groups are shuffled
  kSearchId,   // the same of one search id
  kSlot,       // the same of one first feasign of a slot; those without one by themselves
  kPageViews,  // by search id, ascending; instances of one are a page view, in file order
};

// What sharing of lists saved so far.
struct SharedCounts {
  size_t lists = 0;        // that are held by an instance before
  size_t values = 0;       // occurrences in them: 8 bytes each as a feasign, 4 as a position
  size_t index_bytes = 0;  // that it takes to find them
};

// Which of `size` instances Shuffle(seed) puts at each place.
std::vector<uint32_t> ShuffledOrder(size_t size, uint64_t seed);

class Instances {
 public:
  Instances(size_t sparse_slots, size_t dense_width);
  ~Instances();

  // Lists that repeat those of the instance before are from now on held once: those of the slots
  // given, or with nullptr of any slot where it saves memory, chunk by chunk. Where both instances
  // follow each other in a batch too, PackBatch gives the list once; all else that is read stays
  // the same. Before the first Append.
  Status ShareLists(const std::vector<size_t>* slots);

  // The table of each slot, (S) numbers from 0 without gaps; without a call one table has all.
  // Before the first Append.
  Status SetTables(const std::vector<uint8_t>& table_of_slot);

  // InvalidArgument when the chunk's columns do not fit each other or S and W, or it holds feasign
  // 0.
  Status Append(ParsedChunk&& chunk);

  // Of the instances appended from now on each is kept with probability rate, in [0, 1], by a hash
  // of seed and its id, or of its number where it has none: all instances of an id or none.
  Status SetSampling(double rate, uint64_t seed);

  // Makes one instance of all that have one id. dense_dims: of the dense slots, they add up to W.
  //
  // As PaddleBox: a label or dense slot is that of the last instance where it is not all zero;
  // a sparse slot is that of the one instance that has it. Dropped are ids whose number of
  // instances is not merge_size (0: any will do), and ids of which two instances have the same
  // sparse slot. Content and log key are those of the first. The order is that of each id's first
  // instance. Returns how many instances were dropped. FailedPrecondition without ids.
  Result<size_t> MergeByInsId(size_t merge_size, const std::vector<size_t>& dense_dims);

  // Puts the instances into this order. slot: among the sparse ones, of kSlot. FailedPrecondition
  // where they lack the tag that it takes.
  Status ArrangeBy(Order order, uint64_t seed, size_t slot = 0);

  // A permutation that depends on seed and N only: ShuffledOrder. Once, at most.
  Status Shuffle(uint64_t seed);

  // Instance i is from now on number order[i] in the order of the files; order: (N) a permutation.
  Status Arrange(const uint32_t* order, size_t size);

  // (N) the number of each instance in the order of the files: what Arrange takes.
  std::vector<uint32_t> Numbers() const;

  // Sorts the unique keys (KeyOf each feasign) and turns occurrences into positions; drops the
  // feasigns. More than 2^31 - 1 unique keys is InvalidArgument. The result does not depend on the
  // thread count.
  Status Index(ThreadPool* pool);

  size_t size() const;         // N
  size_t unique_keys() const;  // U, after Index
  // (T + 1), after Index: the keys of table t have the positions [bounds[t], bounds[t + 1]).
  const std::vector<size_t>& key_bounds() const;
  size_t occurrences() const;  // nnz, shared ones too
  SharedCounts shared_counts() const;
  size_t bytes() const;  // memory held

  // Cuts [0, N) into ranges of at most max_rows (T) unique keys of each table, at multiples of
  // batch_size. InvalidArgument with the rows needed when one batch alone has more. N == 0 gives no
  // range.
  Result<std::vector<InstanceRange>> Split(const std::vector<size_t>& max_rows,
                                           size_t batch_size) const;
  Result<std::vector<InstanceRange>> Split(size_t max_rows, size_t batch_size) const {
    return Split(std::vector<size_t>{max_rows}, batch_size);
  }

  Result<RangeKeys> SelectRange(InstanceRange range) const;

  // (U) how often each unique key occurs in all instances, those it is shared by included.
  Result<std::vector<uint32_t>> KeyCounts() const;

  // Packs instances [begin, end). row_of_position: (U) row id in the pass table, or -1; stamp goes
  // into the plan. out's vectors are reused.
  Status PackBatch(size_t begin, size_t end, const int32_t* row_of_position, int32_t stamp,
                   Batch* out) const;

  // The sparse part of that batch in the slots of another table; stamp: of that table's pass.
  Status PackTable(size_t table, size_t begin, size_t end, const int32_t* row_of_position,
                   int32_t stamp, SparseBatch* out) const;

  // The feasigns of instances [begin, end) in the layout of Batch::ids / Batch::offsets, of all
  // slots whatever their table, for programs that feed feasigns themselves.
  Status PackFeasigns(size_t begin, size_t end, std::vector<uint64_t>* feasigns,
                      std::vector<int32_t>* offsets) const;

  // (V + 1) where the runs of one search id begin, and N: the page views, after kPageViews.
  Result<std::vector<size_t>> PageViewStarts() const;

  // (B, 2 * max_rank + 1), B = end - begin: what rank_attention takes. Of an instance: its own
  // rank, then for each rank r from 1 on the pair (r, row in the batch of the view's instance that
  // has it, the last if there are several); -1 where there is none, and everywhere for an instance
  // without a rank. A rank counts from 1 to max_rank, and for cmatch 222 and 223 only.
  Status RankOffsets(size_t begin, size_t end, size_t max_rank, std::vector<int32_t>* out) const;

  // From now on batches are fed, in these slots, what another instance has there: one of a pool of
  // pool_size, drawn like a reservoir from all instances. What was replaced before is restored
  // first; no slots: only that. Depends on seed and the files. Keys, Split and SelectRange do not
  // change: every feasign of the load is among them.
  Status ReplaceSlots(const std::vector<size_t>& slots, size_t pool_size, uint64_t seed);

  // The same with donors of the caller's: (N) of each instance, both in the order as it is.
  Status FeedFrom(const std::vector<size_t>& slots, const uint32_t* donors, size_t size);

  // Tags of instance i. REQUIRES: tags() has them.
  const TagSpec& tags() const;
  std::string_view ins_id(size_t i) const;
  std::string_view content(size_t i) const;
  const LogKey& log_key(size_t i) const;

  const std::vector<float>& labels() const;  // (N) in the order of training

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pbx
