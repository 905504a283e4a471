#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>

namespace pbx {
namespace {

constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr int kMostNodes = 1024;

}  // namespace

std::vector<int> ParseNodeList(const std::string& text) {
  std::vector<int> nodes;
  const char* p = text.c_str();
  while (*p >= '0' && *p <= '9') {
    char* end = nullptr;
    const long first = std::strtol(p, &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    if (first > last || last >= kMostNodes) return {};
    for (long node = first; node <= last; ++node) nodes.push_back(static_cast<int>(node));
    if (*end != ',') return *end == '\0' || *end == '\n' ? nodes : std::vector<int>();
    p = end + 1;
  }
  return {};
}

const std::vector<int>& MemoryNodes() {
  static const std::vector<int> nodes = [] {
    std::ifstream file("/sys/devices/system/node/has_memory");
    std::string line;
    std::getline(file, line);
    return ParseNodeList(line);
  }();
  return nodes;
}

bool InterleaveOverNodes(void* start, size_t bytes) {
  const std::vector<int>& nodes = MemoryNodes();
  if (nodes.size() < 2) return false;
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kMostNodes / kBits] = {};
  for (const int node : nodes) {
    mask[static_cast<size_t>(node) / kBits] |= 1ul << (static_cast<size_t>(node) % kBits);
  }
  return syscall(SYS_mbind, start, bytes, kInterleave, mask, kMostNodes + 1, 0) == 0;
}

}  // namespace pbx
