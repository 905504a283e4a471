// Guards the map of a file against another process that cuts the file short. The kernel answers a
// read behind the end of a mapped file with SIGBUS, which ends the process. In a guarded map, the
// rest of the map becomes zeros instead, and the guard remembers it. systemd's journal reads its
// files in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace pbx {

class MapGuard {
 public:
  // Guards [begin, begin + bytes), whole pages that are mapped for reading. The guard must be
  // destroyed before they are unmapped. The first call installs the signal handler of the process;
  // SIGBUS at other addresses goes to the handler before it.
  //
  // kFailedPrecondition: too many maps are guarded, or the kernel refuses the handler.
  static Result<std::unique_ptr<MapGuard>> Of(uintptr_t begin, size_t bytes);
  ~MapGuard();
  MapGuard(const MapGuard&) = delete;
  MapGuard& operator=(const MapGuard&) = delete;

  // Whether a read found the file shorter than the map. What was read since then may be zeros.
  bool shrunk() const;

 private:
  explicit MapGuard(size_t slot) : slot_(slot) {}
  const size_t slot_;
};

}  // namespace pbx
