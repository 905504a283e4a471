// Spreads memory over the NUMA nodes of a machine. Otherwise the table of a pass would lie on the
// node of the thread that first wrote it, and all other nodes would read it through one link.
// Spread page by page it has the bandwidth of all nodes. On a machine with one node this does
// nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pbx {

// The node numbers in a list as the kernel writes it ("0-1,4"). Empty if the text is not such a
// list.
std::vector<int> ParseNodeList(const std::string& text);

// The nodes of this machine that have memory. Read once.
const std::vector<int>& MemoryNodes();

// Asks the kernel to spread [start, start + bytes), which must not have been touched yet, over the
// nodes in whole pages. False if the kernel refused, or there is only one node; the memory can be
// used either way.
bool InterleaveOverNodes(void* start, size_t bytes);

}  // namespace pbx
