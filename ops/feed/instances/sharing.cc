#include "feed/instances/sharing.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "feed/instances/parsed_file.h"

namespace pbx {
namespace {

constexpr size_t kAlign = 8;

// 0 means that there is no group.
uint64_t HashOf(const void* data, size_t size) {
  const uint64_t hash = HashBytes(data, size, 0);
  return hash == 0 ? 1 : hash;
}

Status GroupsOfSlot(const ParsedChunk& chunk, size_t sparse_slots, size_t slot,
                    std::vector<uint64_t>* out) {
  const uint32_t* length = chunk.lengths.data();
  size_t at = 0;
  for (size_t i = 0; i < chunk.instances; ++i) {
    for (size_t s = 0; s < sparse_slots; ++s, at += *length++) {
      if (*length > chunk.feasigns.size() - at) {
        return Error(Code::kInvalidArgument, "instance %zu needs %u of %zu feasigns left", i,
                     *length, chunk.feasigns.size() - at);
      }
      if (s == slot) out->push_back(*length == 0 ? 0 : chunk.feasigns[at]);
    }
  }
  return Status::Ok();
}

// A block of bytes behind the number of its bytes, padded to kAlign.
void PutBlock(const void* data, size_t size, std::string* out) {
  const uint64_t bytes = size;
  out->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  if (size != 0) out->append(static_cast<const char*>(data), size);
  out->resize((out->size() + kAlign - 1) / kAlign * kAlign);
}

void PutStrings(const StringColumn& column, std::string* out) {
  std::vector<uint64_t> sizes;
  std::string bytes;
  for (size_t i = 0; i < column.size(); ++i) {
    sizes.push_back(column[i].size());
    bytes.append(column[i]);
  }
  PutBlock(sizes.data(), sizes.size() * sizeof(uint64_t), out);
  PutBlock(bytes.data(), bytes.size(), out);
}

// Takes blocks from bytes that EncodeInstances wrote. After an error, `ok` is false.
class Blocks {
 public:
  Blocks(const char* data, size_t size) : at_(data), end_(data + size) {}

  std::string_view Take() {
    uint64_t bytes = 0;
    if (static_cast<size_t>(end_ - at_) < sizeof(bytes)) return Fail();
    std::memcpy(&bytes, at_, sizeof(bytes));
    at_ += sizeof(bytes);
    const size_t left = static_cast<size_t>(end_ - at_);
    if (bytes > left || (bytes + kAlign - 1) / kAlign * kAlign > left) return Fail();
    const std::string_view block(at_, static_cast<size_t>(bytes));
    at_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return block;
  }

  template <typename T>
  std::vector<T> TakeArray() {
    const std::string_view block = Take();
    if (block.size() % sizeof(T) != 0) Fail();
    std::vector<T> values(ok ? block.size() / sizeof(T) : 0);
    if (!values.empty()) std::memcpy(values.data(), block.data(), block.size());
    return values;
  }

  void TakeStrings(StringColumn* column) {
    const std::vector<uint64_t> sizes = TakeArray<uint64_t>();
    std::string_view bytes = Take();
    for (const uint64_t size : sizes) {
      if (size > bytes.size()) {
        Fail();
        return;
      }
      column->Add(bytes.substr(0, static_cast<size_t>(size)));
      bytes.remove_prefix(static_cast<size_t>(size));
    }
    if (!bytes.empty()) Fail();
  }

  bool AtEnd() const { return at_ == end_; }
  bool ok = true;

 private:
  std::string_view Fail() {
    ok = false;
    at_ = end_;
    return {};
  }
  const char* at_;
  const char* const end_;
};

}  // namespace

Status GroupsOf(const ParsedChunk& chunk, size_t sparse_slots, GroupBy by, size_t slot,
                std::vector<uint64_t>* out) {
  const size_t n = chunk.instances;
  const size_t tagged = by == GroupBy::kInsId      ? chunk.tags.ins_ids.size()
                        : by == GroupBy::kSearchId ? chunk.tags.log_keys.size()
                                                   : n;
  if (tagged != n) {
    return Error(Code::kFailedPrecondition, "the instances have no %s",
                 by == GroupBy::kInsId ? "ins_id" : "log key");
  }
  out->clear();
  out->reserve(n);
  if (by == GroupBy::kSlot) {
    if (chunk.lengths.size() != n * sparse_slots || slot >= sparse_slots) {
      return Error(Code::kInvalidArgument,
                   "%zu instances have %zu lengths, expected those of %zu slots, and slot %zu", n,
                   chunk.lengths.size(), sparse_slots, slot);
    }
    return GroupsOfSlot(chunk, sparse_slots, slot, out);
  }
  for (size_t i = 0; i < n; ++i) {
    if (by == GroupBy::kInsId) {
      const std::string_view id = chunk.tags.ins_ids[i];
      out->push_back(HashOf(id.data(), id.size()));
    } else {
      out->push_back(HashOf(&chunk.tags.log_keys[i].search_id, sizeof(uint64_t)));
    }
  }
  return Status::Ok();
}

void EncodeInstances(const ParsedChunk& chunk, std::string* out) {
  std::string piece;
  EncodePiece(chunk, &piece);
  out->clear();
  PutBlock(piece.data(), piece.size(), out);
  PutStrings(chunk.tags.ins_ids, out);
  PutStrings(chunk.tags.contents, out);
  PutBlock(chunk.tags.log_keys.data(), chunk.tags.log_keys.size() * sizeof(LogKey), out);
  PutBlock(chunk.tags.times.data(), chunk.tags.times.size() * sizeof(int64_t), out);
}

Status DecodeInstances(const char* data, size_t size, const std::string& where, ParsedChunk* out) {
  Blocks blocks(data, size);
  const std::string_view piece = blocks.Take();
  TagColumns tags;
  blocks.TakeStrings(&tags.ins_ids);
  blocks.TakeStrings(&tags.contents);
  tags.log_keys = blocks.TakeArray<LogKey>();
  tags.times = blocks.TakeArray<int64_t>();
  if (!blocks.ok || !blocks.AtEnd()) {
    return Error(Code::kCorruption, "%s: %zu bytes that are no instances", where.c_str(), size);
  }
  PBX_RETURN_IF_ERROR(DecodePiece(piece.data(), piece.size(), where, out));
  if (!tags.Fits(out->instances)) {
    return Error(Code::kCorruption, "%s: tags that do not fit %zu instances", where.c_str(),
                 out->instances);
  }
  out->tags = std::move(tags);
  return Status::Ok();
}

}  // namespace pbx
