// The sorted unique keys of columns of feasigns: the parallel part of Instances::Index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/threads.h"

namespace pbx::feed {

// Feasigns that lie together in memory.
struct FeasignSpan {
  const uint64_t* feasigns;
  size_t size;
};

// KeyOf each feasign, ascending, each once. The result depends on the set of feasigns only. Holds
// at most 8 bytes an occurrence and 8 a unique key beside the input.
std::vector<uint64_t> SortedUniqueKeys(const std::vector<FeasignSpan>& spans, ThreadPool* pool);

}  // namespace pbx::feed
