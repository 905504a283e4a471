// Sequences: the instances of a pass, grouped by user, in the order of time, and cut into pieces of
// limited length. The cuts are those of PaddleBox's set_merge_by_uid.
//
// Letters: N = instances, M = places of all sequences, P = sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "feed/text/parser.h"

namespace pbx::feed {

// How a list of n instances is cut into sequences. In every split, each instance is trained in
// exactly one of them.
enum class SequenceSplit {
  kNone,    // one sequence
  kDirect,  // pieces of max_length, counted from the last instance; the first may be shorter
  // If n > max_length: with train = max_length - overlap, the first piece has the first
  // max_length - train + (n - max_length) mod train instances, and trains all of them. Each further
  // piece has max_length instances and trains the last `train`; the others are context. The first
  // piece may be empty if overlap is 0; then it is left out.
  kMask,
};

struct SequenceOptions {
  SequenceSplit split = SequenceSplit::kNone;
  size_t max_length = 0;  // 0: no limit, for kNone only
  size_t overlap = 0;     // kMask: context instances of a piece, < max_length
  bool shuffle = false;   // whether users are shuffled; otherwise in the order of the instances
  uint64_t seed = 0;
};

// The instances of a list that make up a sequence: [begin, end), of which the first `context` are
// not trained.
struct SequencePiece {
  size_t begin = 0;
  size_t end = 0;
  size_t context = 0;
};

// Cuts a list of n instances. REQUIRES: the options are valid, as CutSequences checks.
std::vector<SequencePiece> CutList(size_t n, const SequenceOptions& options);

// The instances of a pass, by number. users: 0 stands for no user; such an instance is a sequence
// by itself. trained: 0 for instances that only serve as context, such as a carried history.
struct SequenceInstances {
  size_t size = 0;                   // N, below 2^32
  const uint64_t* users = nullptr;   // (N)
  const int64_t* times = nullptr;    // (N)
  const uint8_t* trained = nullptr;  // (N)
  // The number of instances at the end that come before the others if times are equal: a carried
  // history.
  size_t carried = 0;
};

struct Sequences {
  std::vector<uint32_t> order;     // (M) the number of the instance at each place
  std::vector<int64_t> starts;     // (P + 1) the first place of each sequence, then M
  std::vector<uint8_t> trained;    // (M)
  std::vector<int32_t> positions;  // (M) the number of earlier instances in the list of the user
  size_t users = 0;                // lists that have a sequence
  size_t longest = 0;              // instances in the longest of these lists
  uint32_t longest_first = 0;      // the number of the first instance of the longest list
};

// Equal times keep the order of numbers, after carried instances. Users are in the order of their
// first instance that is trained. A sequence without a trained instance is left out. The result
// depends on the arguments alone. InvalidArgument for 2^32 or more instances or places, or if the
// options contradict each other.
Result<Sequences> CutSequences(const SequenceInstances& instances, const SequenceOptions& options);

// The user and the time of each instance of a chunk.
struct UserTimes {
  std::vector<uint64_t> users;  // (n) the first feasign of a slot; 0: none
  std::vector<int64_t> times;   // (n)
};

// Moves the times out of the tags of the chunk. REQUIRES: as for FirstOfSlot. InvalidArgument if
// the chunk has instances without times.
Result<UserTimes> TakeUserTimes(size_t sparse_slots, size_t slot, ParsedChunk* chunk);

}  // namespace pbx::feed
