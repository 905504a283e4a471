// Memory that all processors of a machine use alike. On a machine of several NUMA nodes the table
// of a pass would lie on the node of the thread that first wrote it, and the others would read it
// all through one link; spread over the nodes page by page, each gets its share of every node's
// bandwidth. On a machine of one node none of this does anything.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pbx {

// Node numbers of a list as the kernel writes it ("0-1,4"); empty for what is no such list.
std::vector<int> ParseNodeList(const std::string& text);

// The nodes of this machine that have memory; read once.
const std::vector<int>& MemoryNodes();

// Asks for [start, start + bytes), not touched yet, to be spread over the nodes, in whole pages.
// Advice: without the right or the call, pages lie where they would have lain. False when it was
// not followed, or there is one node alone.
bool InterleaveOverNodes(void* start, size_t bytes);

}  // namespace pbx
