// Parity of a group of files (docs/formats/parity.md): the exclusive or of all, each padded with
// zeros to the longest. Any one of them can be made again from the others.
//
// A parity file is complete or it is not there: it is written under a temporary name, synced and
// renamed, and its index and its body have checksums. Nothing here locks: the caller sees to it
// that members stay while they are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx {

struct ParityMember {
  std::string file;  // name inside the folder of the members
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C of all its bytes
};

struct ParityIndex {
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kMaxMembers = 255;

  std::vector<ParityMember> members;
  uint64_t body_bytes = 0;  // of the longest member
  uint32_t body_crc = 0;
};

// Writes the parity of files (names inside folder) to path. The caller syncs path's folder.
// InvalidArgument without a file, or with more than kMaxMembers.
Result<ParityIndex> WriteParity(const std::string& folder, const std::vector<std::string>& files,
                                const std::string& path);

// Index of a parity file, checked. Corruption; InvalidArgument for one of a later version.
Result<ParityIndex> ReadParityIndex(const std::string& path);

// Reads the whole file. Corruption where index or body are not as they were written.
Status CheckParity(const std::string& path);

// Writes the member `lost`, made from the parity and all other members in folder, to out; synced
// and renamed, the caller syncs out's folder. An empty out: only finds out whether it can be done.
// Corruption that names every file that is in the way: the parity itself, or other members that are
// damaged or missing too.
Status RebuildMember(const std::string& path, const std::string& folder, const std::string& lost,
                     const std::string& out);

}  // namespace pbx
