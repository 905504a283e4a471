// Instances that go to another rank: which of them belong together, and their bytes on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/text/parser.h"

namespace pbx {

enum class GroupBy { kInsId, kSearchId, kSlot };

// (N) a hash of the group of each instance, equal for all instances of a group: its id, its search
// id, or its first feasign in a sparse slot. 0: it has no feasign there, and is a group by itself.
// slot: for kSlot, the number of a sparse slot. S: sparse slots. FailedPrecondition if the chunk
// has instances without the tag; InvalidArgument if the columns do not fit.
Status GroupsOf(const ParsedChunk& chunk, size_t sparse_slots, GroupBy by, size_t slot,
                std::vector<uint64_t>* out);

// Encodes the instances of a chunk with their tags. Unlike EncodePiece, it writes no counts of
// lines.
void EncodeInstances(const ParsedChunk& chunk, std::string* out);

// Decodes them. Corruption, naming `where`, if EncodeInstances did not write these bytes.
// Instances::Append checks that the columns fit each other and the schema. data: aligned to 8
// bytes.
Status DecodeInstances(const char* data, size_t size, const std::string& where, ParsedChunk* out);

}  // namespace pbx
