// Hash maps of other libraries over the same keys: key -> row number. Compiled by peers/compiled.py
// with -DPBX_MAP=1 .. 3: one map per library, so that a missing one does not affect the others.
#include <cstddef>
#include <cstdint>

#if PBX_MAP == 1
#include <ankerl/unordered_dense.h>
using Map = ankerl::unordered_dense::map<uint64_t, uint32_t>;
#elif PBX_MAP == 2
#include <boost/unordered/unordered_flat_map.hpp>
// Keys are uniform, so a key is its own hash. is_avalanching tells boost not to mix it again.
struct Same {
  using is_avalanching = void;
  size_t operator()(uint64_t key) const { return key; }
};
using Map = boost::unordered_flat_map<uint64_t, uint32_t, Same>;
#elif PBX_MAP == 3
#include <unordered_map>
using Map = std::unordered_map<uint64_t, uint32_t>;
#endif

extern "C" {

Map* MapMake(size_t expected) {
  Map* map = new Map();
  map->reserve(expected);
  return map;
}

void MapFree(Map* map) { delete map; }

void MapInsert(Map* map, const uint64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) (*map)[keys[i]] = static_cast<uint32_t>(i);
}

// found: (n).
void MapFind(const Map* map, const uint64_t* keys, size_t n, uint8_t* found) {
  const auto end = map->end();
  for (size_t i = 0; i < n; ++i) found[i] = map->find(keys[i]) != end;
}

void MapErase(Map* map, const uint64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) map->erase(keys[i]);
}

}  // extern "C"
