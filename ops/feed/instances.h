// Instances: everything one pass holds in memory, in columns. Chunks are added in file order; then
// the keys are made unique and sorted, and every occurrence becomes a position among them, once;
// after that no key is hashed or compared again.
//
// Letters: N = instances, S = sparse slots, W = dense width, U = unique keys, nnz = occurrences.
//
// Life: Append* -> Shuffle? -> Index -> (Split, SelectRange, PackBatch)*. Out of order is
// FailedPrecondition. Not thread safe but for PackBatch, which any number of threads may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "feed/parser.h"

namespace pbx {

// Instances [begin, end) that are trained as one pass.
struct InstanceRange {
  size_t begin = 0;
  size_t end = 0;
};

// A range's share of the unique keys. u = keys of the range.
struct RangeKeys {
  std::vector<uint64_t> keys;   // (u) ascending
  std::vector<uint16_t> slots;  // (u) the lowest sparse slot the key occurs in, in the whole load
  std::vector<int32_t> positions;  // (u) their positions among all U
};

// One mini-batch, ready to be fed. B = instances in it.
struct Batch {
  size_t size = 0;                // B
  std::vector<int32_t> ids;       // (nnz) row ids, -1 where the key has no row
  std::vector<int32_t> offsets;   // (B * S + 1) ids of (instance b, slot s) are
                                  //   ids[offsets[b*S+s] .. offsets[b*S+s+1])
  std::vector<int32_t> plan;      // dedup plan, see BuildPlan
  std::vector<float> dense;       // (B, W)
  std::vector<float> labels;      // (B)
  std::vector<float> show_click;  // (B, 2): 1, label
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
  // given, or with nullptr of any slot where it saves memory, chunk by chunk. Everything that is
  // read stays the same. Before the first Append.
  Status ShareLists(const std::vector<size_t>* slots);

  // InvalidArgument when the chunk's columns do not fit each other or S and W, or it holds feasign
  // 0.
  Status Append(ParsedChunk&& chunk);

  // A permutation that depends on seed and N only: ShuffledOrder. Once, at most.
  Status Shuffle(uint64_t seed);

  // Instance i is from now on the one that was order[i]; order: (N) a permutation. In place of
  // Shuffle.
  Status Arrange(const uint32_t* order, size_t size);

  // Sorts the unique keys (KeyOf each feasign) and turns occurrences into positions; drops the
  // feasigns. More than 2^31 - 1 unique keys is InvalidArgument. The result does not depend on the
  // thread count.
  Status Index(ThreadPool* pool);

  size_t size() const;         // N
  size_t unique_keys() const;  // U, after Index
  size_t occurrences() const;  // nnz, shared ones too
  SharedCounts shared_counts() const;
  size_t bytes() const;  // memory held

  // Cuts [0, N) into ranges of at most max_rows unique keys each, at multiples of batch_size.
  // InvalidArgument with the rows needed when one batch alone has more. N == 0 gives no range.
  Result<std::vector<InstanceRange>> Split(size_t max_rows, size_t batch_size) const;

  Result<RangeKeys> SelectRange(InstanceRange range) const;

  // Packs instances [begin, end). row_of_position: (U) row id in the pass table, or -1; stamp goes
  // into the plan. out's vectors are reused.
  Status PackBatch(size_t begin, size_t end, const int32_t* row_of_position, int32_t stamp,
                   Batch* out) const;

  // The feasigns of instances [begin, end) in the layout of Batch::ids / Batch::offsets, for
  // programs that feed feasigns themselves.
  Status PackFeasigns(size_t begin, size_t end, std::vector<uint64_t>* feasigns,
                      std::vector<int32_t>* offsets) const;

  const std::vector<float>& labels() const;  // (N) in the order of training

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pbx
