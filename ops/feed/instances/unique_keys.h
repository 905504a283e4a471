// The sorted unique keys of columns of feasigns: the parallel part of Instances::Index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/threads.h"

namespace pbx::feed {

// Feasigns that are contiguous in memory.
struct FeasignSpan {
  const uint64_t* feasigns;
  size_t size;
};

// The unique keys (KeyOf each feasign), ascending. The result depends on the set of feasigns alone.
// Uses at most 8 bytes per occurrence and 8 per unique key, besides the input.
std::vector<uint64_t> SortedUniqueKeys(const std::vector<FeasignSpan>& spans, ThreadPool* pool);

}  // namespace pbx::feed
