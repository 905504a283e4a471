// Transforms: from the values that were read to those that are trained on. The one code path for
// every format, in training and in serving. All of it is part of the data's meaning: a change here
// makes trained rows worthless, and tests hold golden values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

// A string as a feasign: HashBytes with seed 0; 1 where that is 0. An empty string is no feasign,
// 0.
inline uint64_t FeasignOfString(const char* text, size_t size) {
  if (size == 0) return 0;
  const uint64_t hash = HashBytes(text, size, 0);
  return hash == 0 ? 1 : hash;
}

// Two values as one feasign, never 0, another one for each slot name and for each order of the two.
// seed: HashBytes of the made slot's name, seed 0.
inline uint64_t FeasignOfPair(uint64_t seed, uint64_t first, uint64_t second) {
  const uint64_t mixed = Mix(Mix(seed ^ first) + second);
  return mixed == 0 ? 1 : mixed;
}

// Pairs that a cross makes of one instance when it has no max_length: two long slots must not take
// all memory.
constexpr uint32_t kMaxCrossed = 1024;

// chunk: as its parser left it, with columns of the slots of schema.WithoutMade(); then with those
// of schema. Of each instance, in this order:
//   sparse, read   the first max_length feasigns, counted in cut_lists and cut_values where more
//                  were there; default_feasign where there is none
//   bucket         FeasignOfPair(seed, b, 0), b = how many boundaries are <= the dense value as it
//                  was read
//   cross          FeasignOfPair(seed, x, y) for x in the first slot, y in the second, x outermost;
//                  the first max_length of them, counted likewise
//   dense          clip, then log1p
// REQUIRES: schema.Check() is ok.
void Transform(const FeedSchema& schema, ParsedChunk* chunk);

}  // namespace pbx
