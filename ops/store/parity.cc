#include "store/parity.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/xor.h"

namespace pbx {
namespace {

constexpr char kMagic[8] = {'P', 'B', 'X', 'P', 'A', 'R', 'I', 'T'};
// body_bytes:u64 body_crc:u32 index_bytes:u32 members:u32 version:u32 crc:u32 magic
constexpr size_t kTailBytes = 36;
constexpr size_t kCrcOffset = 24;   // in the tail; the CRC covers the index and the tail before it
constexpr size_t kEntryBytes = 16;  // per member in the index, without its name
constexpr size_t kStrip = 1u << 20;

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}
template <typename T>
const char* Get(const char* at, T* value) {
  std::memcpy(value, at, sizeof(T));
  return at + sizeof(T);
}

std::string EncodeIndex(const ParityIndex& index) {
  std::string out;
  for (const ParityMember& member : index.members) {
    Put(&out, member.bytes);
    Put(&out, member.crc);
    Put(&out, static_cast<uint32_t>(member.file.size()));
    out += member.file;
  }
  const auto index_bytes = static_cast<uint32_t>(out.size());
  Put(&out, index.body_bytes);
  Put(&out, index.body_crc);
  Put(&out, index_bytes);
  Put(&out, static_cast<uint32_t>(index.members.size()));
  Put(&out, ParityIndex::kVersion);
  Put(&out, Crc32c(out.data(), out.size()));
  out.append(kMagic, sizeof(kMagic));
  return out;
}

// A file that is read from front to back together with files of other lengths.
struct Input {
  std::unique_ptr<RandomAccessFile> file;
  uint32_t crc = 0;

  // Reads the part of [offset, offset + n) that the file has into strip, and adds it to the CRC.
  Result<size_t> Next(uint64_t offset, size_t n, char* strip) {
    const size_t here =
        offset < file->size() ? std::min<uint64_t>(n, file->size() - offset) : size_t{0};
    PBX_RETURN_IF_ERROR(file->Read(offset, here, strip));
    crc = Crc32c(strip, here, crc);
    return here;
  }
};

Result<ParityIndex> ReadIndex(const RandomAccessFile& file) {
  const char* path = file.path().c_str();
  const auto damaged = [&](const std::string& what) {
    return Error(Code::kCorruption, "%s: %s: damaged or incomplete parity file; it is not used",
                 path, what.c_str());
  };
  char tail[kTailBytes];
  if (file.size() < kTailBytes) return damaged("expected a tail, found too few bytes");
  PBX_RETURN_IF_ERROR(file.Read(file.size() - kTailBytes, kTailBytes, tail));
  ParityIndex index;
  uint32_t index_bytes, members, version, crc;
  const char* at = Get(tail, &index.body_bytes);
  at = Get(at, &index.body_crc);
  at = Get(at, &index_bytes);
  at = Get(at, &members);
  at = Get(at, &version);
  at = Get(at, &crc);
  if (std::memcmp(at, kMagic, sizeof(kMagic)) != 0)
    return damaged("expected its magic at the end, found other bytes");
  if (index_bytes > file.size() - kTailBytes)
    return damaged("expected an index of " + std::to_string(index_bytes) +
                   " bytes, found too few bytes");
  std::vector<char> bytes(index_bytes + kTailBytes);
  PBX_RETURN_IF_ERROR(file.Read(file.size() - bytes.size(), bytes.size(), bytes.data()));
  const uint32_t found = Crc32c(bytes.data(), index_bytes + kCrcOffset);
  if (found != crc) {
    char text[64];
    std::snprintf(text, sizeof(text), "its index has CRC32C %#010x, expected %#010x", found, crc);
    return damaged(text);
  }
  if (version > ParityIndex::kVersion) {
    return Error(Code::kInvalidArgument,
                 "%s: written by a later version (%u, this one reads up to %u)", path, version,
                 ParityIndex::kVersion);
  }
  if (index.body_bytes != file.size() - bytes.size()) return damaged("its body has a wrong size");
  at = bytes.data();
  const char* const end = bytes.data() + index_bytes;
  for (uint32_t i = 0; i < members; ++i) {
    ParityMember member;
    uint32_t name_bytes;
    if (static_cast<size_t>(end - at) < kEntryBytes) return damaged("the index is cut");
    at = Get(at, &member.bytes);
    at = Get(at, &member.crc);
    at = Get(at, &name_bytes);
    if (static_cast<size_t>(end - at) < name_bytes) return damaged("the index is cut");
    if (member.bytes > index.body_bytes) return damaged("a member is longer than the body");
    member.file.assign(at, name_bytes);
    at += name_bytes;
    index.members.push_back(std::move(member));
  }
  return index;
}

}  // namespace

Result<ParityIndex> WriteParity(const std::string& folder, const std::vector<std::string>& files,
                                const std::string& path) {
  if (files.empty() || files.size() > ParityIndex::kMaxMembers) {
    return Error(Code::kInvalidArgument, "%s: a group of %zu files, expected 1 to %u", path.c_str(),
                 files.size(), ParityIndex::kMaxMembers);
  }
  ParityIndex index;
  std::vector<Input> inputs;
  for (const std::string& name : files) {
    std::string member = folder;
    member.append("/").append(name);
    auto file = RandomAccessFile::Open(member);
    PBX_RETURN_IF_ERROR(file.status());
    index.members.push_back({name, file.value()->size(), 0});
    index.body_bytes = std::max(index.body_bytes, file.value()->size());
    inputs.push_back({std::move(file.value()), 0});
  }
  auto writer = AtomicFileWriter::Create(path);
  PBX_RETURN_IF_ERROR(writer.status());
  std::vector<char> sum(kStrip), strip(kStrip);
  for (uint64_t offset = 0; offset < index.body_bytes; offset += kStrip) {
    const size_t n = std::min<uint64_t>(kStrip, index.body_bytes - offset);
    std::fill_n(sum.begin(), n, '\0');
    for (Input& input : inputs) {
      const Result<size_t> here = input.Next(offset, n, strip.data());
      PBX_RETURN_IF_ERROR(here.status());
      XorInto(sum.data(), strip.data(), here.value());
    }
    index.body_crc = Crc32c(sum.data(), n, index.body_crc);
    PBX_RETURN_IF_ERROR(writer.value()->Append(sum.data(), n));
  }
  for (size_t i = 0; i < inputs.size(); ++i) index.members[i].crc = inputs[i].crc;
  const std::string tail = EncodeIndex(index);
  PBX_RETURN_IF_ERROR(writer.value()->Append(tail.data(), tail.size()));
  PBX_RETURN_IF_ERROR(writer.value()->Commit());
  return index;
}

Result<ParityIndex> ReadParityIndex(const std::string& path) {
  const auto file = RandomAccessFile::Open(path);
  PBX_RETURN_IF_ERROR(file.status());
  return ReadIndex(*file.value());
}

Status CheckParity(const std::string& path) {
  auto file = RandomAccessFile::Open(path);
  PBX_RETURN_IF_ERROR(file.status());
  const Result<ParityIndex> index = ReadIndex(*file.value());
  PBX_RETURN_IF_ERROR(index.status());
  Input body{std::move(file.value()), 0};
  std::vector<char> strip(kStrip);
  for (uint64_t offset = 0; offset < index.value().body_bytes; offset += kStrip) {
    const size_t n = std::min<uint64_t>(kStrip, index.value().body_bytes - offset);
    PBX_RETURN_IF_ERROR(body.Next(offset, n, strip.data()).status());
  }
  if (body.crc == index.value().body_crc) return Status::Ok();
  return Error(Code::kCorruption, "%s: the body has CRC32C %#010x, expected %#010x", path.c_str(),
               body.crc, index.value().body_crc);
}

Status RebuildMember(const std::string& path, const std::string& folder, const std::string& lost,
                     const std::string& out) {
  auto parity = RandomAccessFile::Open(path);
  PBX_RETURN_IF_ERROR(parity.status());
  const Result<ParityIndex> read = ReadIndex(*parity.value());
  PBX_RETURN_IF_ERROR(read.status());
  const ParityIndex& index = read.value();
  const auto wanted = std::find_if(index.members.begin(), index.members.end(),
                                   [&](const ParityMember& member) { return member.file == lost; });
  if (wanted == index.members.end()) {
    return Error(Code::kInvalidArgument, "%s: %s is not a member of the group", path.c_str(),
                 lost.c_str());
  }
  // Checks every input, the parity first, and collects all faults, so that the error names all of
  // them.
  std::string wrong;
  const auto add_wrong = [&wrong](const std::string& name, const std::string& what) {
    wrong += (wrong.empty() ? "" : "; ") + name + " " + what;
  };
  std::vector<const ParityMember*> others;
  std::vector<Input> inputs;
  for (const ParityMember& member : index.members) {
    if (&member == &*wanted) continue;
    auto file = RandomAccessFile::Open(folder + "/" + member.file);
    if (file.status().code() == Code::kNotFound) {
      add_wrong(member.file, "is missing");
    } else if (!file.ok()) {
      return file.status();
    } else if (file.value()->size() != member.bytes) {
      add_wrong(member.file, "has another size");
    } else {
      others.push_back(&member);
      inputs.push_back({std::move(file.value()), 0});
    }
  }
  const auto failed = [&] {
    return Error(Code::kCorruption, "%s cannot be rebuilt from its parity %s: %s", lost.c_str(),
                 path.c_str(), wrong.c_str());
  };
  if (!wrong.empty()) return failed();
  std::unique_ptr<AtomicFileWriter> writer;
  if (!out.empty()) {
    auto created = AtomicFileWriter::Create(out);
    PBX_RETURN_IF_ERROR(created.status());
    writer = std::move(created.value());
  }
  Input body{std::move(parity.value()), 0};
  std::vector<char> sum(kStrip), strip(kStrip);
  uint32_t crc = 0;
  for (uint64_t offset = 0; offset < index.body_bytes; offset += kStrip) {
    const size_t n = std::min<uint64_t>(kStrip, index.body_bytes - offset);
    PBX_RETURN_IF_ERROR(body.Next(offset, n, sum.data()).status());
    for (Input& input : inputs) {
      const Result<size_t> here = input.Next(offset, n, strip.data());
      PBX_RETURN_IF_ERROR(here.status());
      XorInto(sum.data(), strip.data(), here.value());
    }
    const size_t mine =
        offset < wanted->bytes ? std::min<uint64_t>(n, wanted->bytes - offset) : size_t{0};
    crc = Crc32c(sum.data(), mine, crc);
    if (writer != nullptr) PBX_RETURN_IF_ERROR(writer->Append(sum.data(), mine));
  }
  if (body.crc != index.body_crc) add_wrong("the parity", "is damaged");
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].crc != others[i]->crc) add_wrong(others[i]->file, "is damaged");
  }
  if (!wrong.empty()) return failed();
  if (crc != wanted->crc) {
    return Error(Code::kCorruption,
                 "%s: rebuilt from its parity it has CRC32C %#010x, expected %#010x", lost.c_str(),
                 crc, wanted->crc);
  }
  return writer != nullptr ? writer->Commit() : Status::Ok();
}

}  // namespace pbx
