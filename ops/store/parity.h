// Parity of a group of files (docs/formats/parity.md): the exclusive or of all files, each padded
// with zeros to the longest. Any one file can be rebuilt from the others.
//
// A parity file is complete or does not exist: it is written under a temporary name, synced and
// renamed, and its index and body have checksums. There are no locks here: the caller ensures that
// members are not removed while they are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx {

struct ParityMember {
  std::string file;  // name in the folder of the members
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC32C of the whole file
};

struct ParityIndex {
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kMaxMembers = 255;

  std::vector<ParityMember> members;
  uint64_t body_bytes = 0;  // size of the longest member
  uint32_t body_crc = 0;
};

// Writes the parity of files (names in folder) to path. The caller syncs the folder of path.
// InvalidArgument for no files or more than kMaxMembers.
Result<ParityIndex> WriteParity(const std::string& folder, const std::vector<std::string>& files,
                                const std::string& path);

// Reads and checks the index of a parity file. Corruption if it is damaged, InvalidArgument if its
// format version is later than this code.
Result<ParityIndex> ReadParityIndex(const std::string& path);

// Reads the whole file. Corruption if the index or the body is damaged.
Status CheckParity(const std::string& path);

// Rebuilds the member `lost` from the parity and all other members in folder, and writes it to out:
// synced and renamed; the caller syncs the folder of out. If out is empty, only checks that it can
// be rebuilt. Corruption, naming every file at fault: the parity, or other members that are damaged
// or missing too.
Status RebuildMember(const std::string& path, const std::string& folder, const std::string& lost,
                     const std::string& out);

}  // namespace pbx
