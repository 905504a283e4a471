// Transforms: from the values that were read to those that are trained on. The same code runs for
// every format, in training and in serving. It defines the meaning of the data: a change here makes
// trained rows worthless, so tests hold golden values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"
#include "row/feasign.h"

namespace pbx {

// The feasign of a pair of values, never 0. It depends on the order of the two. seed: HashBytes of
// the computed slot's name, with seed 0.
inline uint64_t FeasignOfPair(uint64_t seed, uint64_t first, uint64_t second) {
  const uint64_t mixed = Mix(Mix(seed ^ first) + second);
  return mixed == 0 ? 1 : mixed;
}

// The limit of a cross without max_length, in pairs per instance: two long slots must not take all
// memory.
constexpr uint32_t kMaxCrossed = 1024;

// chunk: has the slots of schema.WithoutMade() before the call, and the slots of schema after it.
// For each instance, in this order:
//   sparse, read   keeps the first max_length feasigns; cut_lists and cut_values count the others.
//                  An empty slot gets default_feasign
//   bucket         FeasignOfPair(seed, b, 0), b = number of boundaries <= the dense value as it was
//                  read, before it is rounded to float, and before clip and log1p
//   cross          FeasignOfPair(seed, x, y) for x in the first slot, y in the second, x in the
//                  outer loop. Keeps the first max_length pairs; the others are counted as above
//   dense          clip, then log1p
//   exact          kExactFloats floats, see SlotTransform::exact_of
// REQUIRES: schema.Check() is ok.
void Transform(const FeedSchema& schema, ParsedChunk* chunk);

}  // namespace pbx
