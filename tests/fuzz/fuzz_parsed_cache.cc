// Any bytes as a parsed file: opening and reading it ends in an error or in the pieces that were
// written, never in a read outside the memory. The first byte chooses whether the checksums are
// made right, so that mutations get past them; then the pieces need only be such that Instances
// takes or refuses them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "../ops/store/scratch.h"
#include "base/crc32c.h"
#include "feed/instances/instances.h"
#include "feed/instances/parsed_file.h"
#include "seeds.h"

namespace {

using pbx::test::Scratch;

constexpr size_t kHead = 16, kFoot = 48, kSpan = 16, kPieceHead = 40, kColumn = 40;
constexpr size_t kSlots = 2, kWidth = 2;

// Pieces as they were written into the seeds.
std::set<std::string>& Written() {
  static std::set<std::string> pieces;
  return pieces;
}

template <typename T>
T Get(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

void PutCrc(char* at, const char* data, size_t size) {
  const uint32_t crc = pbx::Crc32c(data, size);
  std::memcpy(at, &crc, sizeof(crc));
}

void SealPiece(char* piece, uint64_t size) {
  if (size < kPieceHead + 8) return;
  std::memcpy(piece + 8, &size, sizeof(size));
  const uint64_t columns = Get<uint32_t>(piece + 4);
  if (columns > (size - kPieceHead - 8) / kColumn) return;
  for (uint64_t i = 0; i < columns; ++i) {
    char* const column = piece + kPieceHead + i * kColumn;
    const uint64_t count = Get<uint64_t>(column + 16), offset = Get<uint64_t>(column + 24);
    const uint64_t stored = static_cast<uint8_t>(column[38]);
    if (stored == 0 || offset > size || count > (size - offset) / stored) continue;
    PutCrc(column + 32, piece + offset, count * stored);
  }
  PutCrc(piece + kPieceHead + columns * kColumn, piece, kPieceHead + columns * kColumn);
}

// Makes a file whose sizes add up pass every checksum; others are left as they are.
void Seal(std::string* bytes) {
  if (bytes->size() < kHead + kFoot) return;
  const uint64_t end = bytes->size() - kFoot;
  char* const foot = bytes->data() + end;
  std::memcpy(foot + 40, "PBXPARSE", 8);
  std::memcpy(bytes->data(), "PBXPARSE", 8);
  const uint64_t index = Get<uint64_t>(foot), pieces = Get<uint64_t>(foot + 8);
  if (index <= end && pieces <= (end - index) / kSpan) {
    for (uint64_t i = 0; i < pieces; ++i) {
      const char* const span = bytes->data() + index + i * kSpan;
      const uint64_t offset = Get<uint64_t>(span), size = Get<uint64_t>(span + 8);
      if (offset <= index && size <= index - offset) SealPiece(bytes->data() + offset, size);
    }
    PutCrc(foot + 24, bytes->data() + index, end - index);
  }
  PutCrc(foot + 36, foot, 36);
}

pbx::ParsedChunk Chunk(uint64_t seed, size_t instances) {
  pbx::ParsedChunk chunk;
  chunk.instances = instances;
  chunk.lines = instances + 1;
  for (size_t i = 0; i < instances; ++i) {
    chunk.labels.push_back(static_cast<float>(i % 2));
    chunk.dense.insert(chunk.dense.end(), kWidth, static_cast<float>(i));
    chunk.lengths.push_back(1);
    chunk.lengths.push_back(static_cast<uint32_t>(i % 3));
    for (size_t k = 0; k < 1 + i % 3; ++k) chunk.feasigns.push_back(seed * 1000003 + i + k + 1);
  }
  if (seed % 2 == 1) {
    chunk.bad_lines = 1;
    chunk.first_bad = {{seed, "slot 'a': no number", "x y z"}};
  }
  return chunk;
}

std::string Encoded(const pbx::ParsedChunk& chunk) {
  std::string piece;
  pbx::EncodePiece(chunk, &piece);
  return piece;
}

}  // namespace

// Files of no, one and three pieces, each with and without the repair of checksums.
void AddFuzzSeeds(std::vector<std::string>* seeds) {
  const Scratch folder;
  for (const size_t pieces : {0, 1, 3}) {
    const std::string path = folder / "file";
    auto writer = pbx::ParsedFileWriter::Create(path);
    if (!writer.ok()) std::abort();
    for (size_t i = 0; i < pieces; ++i) {
      const pbx::ParsedChunk chunk = Chunk(pieces + (i << 33), 4 * i + 3);
      Written().insert(Encoded(chunk));
      if (!writer.value()->Add(i, chunk).ok()) std::abort();
    }
    if (!writer.value()->Commit("key").ok()) std::abort();
    const std::string bytes = pbx::test::ReadAll(path);
    seeds->push_back('\0' + bytes);
    seeds->push_back('\1' + bytes);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Scratch folder;
  if (size == 0) return 0;
  const bool sealed = (data[0] & 1) != 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (sealed) Seal(&bytes);
  const std::string path = folder / "file";
  pbx::test::WriteAll(path, bytes);

  auto opened = pbx::ParsedFileReader::Open(path, "key");
  if (!opened.ok()) return 0;
  pbx::Instances instances(kSlots, kWidth);
  for (size_t i = 0; i < opened.value()->pieces() && i < 100; ++i) {
    pbx::ParsedChunk chunk;
    if (!opened.value()->Read(i, &chunk).ok()) continue;
    if (!sealed && Written().count(Encoded(chunk)) == 0) std::abort();
    std::vector<pbx::ParsedChunk> parts(2);
    std::vector<uint32_t> part_of_row;
    for (size_t row = 0; row < chunk.instances; ++row) part_of_row.push_back(row % 2);
    (void)pbx::ScatterRows(chunk, kSlots, part_of_row.data(), &parts).ok();
    (void)instances.Append(std::move(chunk)).ok();
  }
  static pbx::ThreadPool pool(1);
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  if (instances.Index(&pool).ok()) {
    (void)instances.PackFeasigns(0, instances.size(), &feasigns, &offsets).ok();
  }
  return 0;
}
