#include "feed/instances/parsed_file.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "feed/instances/sorted_keys.h"

namespace pbx {
namespace {

using test::CheckSame;
using test::Text;

// A folder of the test, removed behind it.
struct Folder {
  std::string path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pbx-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/file"; }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path),
                                             std::filesystem::directory_iterator()));
  }
};

// Two instances of two slots: {7}, {8, 9} and {}, {2^64 - 1}; a line of three was bad.
ParsedChunk Chunk() {
  ParsedChunk chunk;
  chunk.instances = 2;
  chunk.labels = {1, 0};
  chunk.dense = {0.5f, 1.5f, -2, 3};
  chunk.lengths = {1, 2, 0, 1};
  chunk.feasigns = {7, 8, 9, ~uint64_t{0}};
  chunk.lines = 3;
  chunk.bad_lines = 1;
  chunk.left_out = 300;
  chunk.first_bad = {{2, "slot 'user': no number", "a b c"}};
  chunk.large = {{1, 0, 2e6f}};
  chunk.cut_lists = {0, 1};
  chunk.cut_values = {0, 3000};
  return chunk;
}

ParsedChunk Decoded(const std::string& piece) {
  ParsedChunk chunk = Chunk();  // what is there is replaced
  CHECK_OK(DecodePiece(piece.data(), piece.size(), "piece", &chunk));
  return chunk;
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(a_piece_gives_back_the_chunk_with_its_bad_lines) {
  std::string piece;
  EncodePiece(Chunk(), &piece);
  const ParsedChunk back = Decoded(piece);
  CheckSame(Chunk(), back, 0);
  CHECK_EQ(back.lines, 3u);
  ParsedChunk empty;
  empty.lines = 5;
  EncodePiece(empty, &piece);
  CHECK_EQ(Decoded(piece).lines, 5u);
  CHECK_EQ(Decoded(piece).labels.size(), 0u);
  CHECK_EQ(Decoded(piece).first_bad.size(), 0u);
}

TEST(values_are_stored_in_the_least_width_that_holds_all_of_them) {
  std::string narrow, wide;
  for (const uint64_t most : {uint64_t{255}, uint64_t{256}, uint64_t{65536}, uint64_t{1} << 32}) {
    ParsedChunk chunk;
    chunk.instances = 1;
    chunk.labels = {1};
    chunk.lengths = {64};
    chunk.feasigns.assign(64, 1);
    chunk.feasigns[63] = most;
    EncodePiece(chunk, &wide);
    CheckSame(chunk, Decoded(wide), 0);
    --chunk.feasigns[63];
    EncodePiece(chunk, &narrow);
    CheckSame(chunk, Decoded(narrow), 0);
    CHECK(most == 255 ? wide.size() == narrow.size() : wide.size() >= narrow.size() + 64);
  }
}

// The worked example of docs/formats/parsed_cache.md.
TEST(the_bytes_are_those_of_the_format_page) {
  ParsedChunk chunk;
  chunk.instances = 1;
  chunk.labels = {1};
  chunk.lengths = {2};
  chunk.feasigns = {7, 300};
  chunk.lines = 1;
  std::string piece;
  EncodePiece(chunk, &piece);
  CHECK_EQ(piece.size(), 192u);
  CHECK_EQ(std::string(piece.data(), 4), "PBXP");
  CHECK_EQ(std::string(piece.data() + 40, 5), "label");
  CHECK_EQ(std::string(piece.data() + 120, 7), "feasign");
  CHECK_EQ(std::string(piece.data() + 156, 4), std::string("u\x08\x02\0", 4));
  CHECK_EQ(std::string(piece.data() + 184, 8), std::string("\x07\0\x2c\x01\0\0\0\0", 8));
}

TEST(any_changed_byte_of_a_piece_is_corruption_or_padding) {
  std::string sound;
  EncodePiece(Chunk(), &sound);
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string piece = sound;
    piece[at] = static_cast<char>(piece[at] ^ 0x10);
    ParsedChunk chunk;
    const Status status = DecodePiece(piece.data(), piece.size(), "piece", &chunk);
    if (status.ok()) {
      CheckSame(Chunk(), chunk, 0);
    } else {
      CHECK(status.code() == Code::kCorruption);
    }
  }
  for (size_t size = 0; size < sound.size(); ++size) {
    ParsedChunk chunk;
    CHECK(DecodePiece(sound.data(), size, "piece", &chunk).code() == Code::kCorruption);
  }
}

// A column is checked block by block.
TEST(a_long_column_comes_back_and_damage_anywhere_in_it_is_seen) {
  for (const uint64_t width : {1, 2, 4, 8}) {
    const uint64_t most = ~uint64_t{0} >> (64 - 8 * width);
    ParsedChunk chunk;
    chunk.instances = 1;
    chunk.labels = {1};
    chunk.lengths = {10001};
    for (uint64_t i = 0; i < 10001; ++i) chunk.feasigns.push_back(most - i % 100);
    std::string piece;
    EncodePiece(chunk, &piece);
    const ParsedChunk back = Decoded(piece);
    CheckSame(chunk, back, 0);
    CHECK(back.nonzero);
    const size_t column = piece.size() - 10001 * width;
    for (size_t at = column; at < piece.size() - 8; at += 1021) {
      piece[at] = static_cast<char>(piece[at] ^ 1);
      ParsedChunk damaged;
      CHECK(DecodePiece(piece.data(), piece.size(), "piece", &damaged).code() == Code::kCorruption);
      piece[at] = static_cast<char>(piece[at] ^ 1);
    }
    chunk.feasigns[9000] = 0;
    EncodePiece(chunk, &piece);
    CHECK(!Decoded(piece).nonzero);
  }
}

TEST(a_file_gives_its_pieces_in_their_order_whatever_order_they_came_in) {
  const Folder folder;
  auto writer = ParsedFileWriter::Create(folder.file());
  CHECK_OK(writer.status());
  for (const size_t number : {2u, 0u, 1u}) {
    ParsedChunk chunk = Chunk();
    chunk.feasigns[0] = 100 + number;
    CHECK_OK(writer.value()->Add(number, chunk));
  }
  CHECK(writer.value()->Add(1, Chunk()).code() == Code::kInvalidArgument);
  CHECK_OK(writer.value()->Commit("key"));
  auto reader = ParsedFileReader::Open(folder.file(), "key");
  CHECK_OK(reader.status());
  CHECK_EQ(reader.value()->pieces(), 3u);
  for (size_t number = 0; number < 3; ++number) {
    ParsedChunk chunk;
    CHECK_OK(reader.value()->Read(number, &chunk));
    CHECK_EQ(chunk.feasigns[0], 100 + number);
  }
  ParsedChunk chunk;
  CHECK(reader.value()->Read(3, &chunk).code() == Code::kInvalidArgument);
}

TEST(a_file_with_a_missing_piece_is_not_committed_and_leaves_nothing) {
  const Folder folder;
  {
    auto writer = ParsedFileWriter::Create(folder.file());
    CHECK_OK(writer.status());
    CHECK_OK(writer.value()->Add(1, Chunk()));
    CHECK(writer.value()->Commit("key").code() == Code::kFailedPrecondition);
  }
  CHECK_EQ(folder.files(), 0u);
}

TEST(a_file_of_another_key_or_version_or_a_damaged_one_is_refused) {
  const Folder folder;
  auto writer = ParsedFileWriter::Create(folder.file());
  CHECK_OK(writer.status());
  CHECK_OK(writer.value()->Add(0, Chunk()));
  CHECK_OK(writer.value()->Commit("the key"));
  CHECK(ParsedFileReader::Open(folder.path + "/other", "").status().code() == Code::kNotFound);
  for (const char* key : {"", "the kez", "the key "}) {
    CHECK(ParsedFileReader::Open(folder.file(), key).status().code() == Code::kCorruption);
  }
  const std::string sound = ReadAll(folder.file());
  size_t refused = 0;
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    WriteAll(folder.file(), bytes);
    auto reader = ParsedFileReader::Open(folder.file(), "the key");
    ParsedChunk chunk;
    const Status status = reader.ok() ? reader.value()->Read(0, &chunk) : reader.status();
    refused += !status.ok();
    if (status.ok()) {
      CheckSame(Chunk(), chunk, 0);
    } else {
      CHECK(status.code() == Code::kCorruption);
    }
  }
  CHECK(refused > sound.size() * 3 / 4);  // the rest is padding
  for (size_t size = 0; size < sound.size(); size += 7) {
    WriteAll(folder.file(), sound.substr(0, size));
    CHECK(ParsedFileReader::Open(folder.file(), "the key").status().code() == Code::kCorruption);
  }
}

TEST(a_full_disk_while_writing_is_said_and_leaves_nothing) {
  const Folder folder;
  {
    auto writer = ParsedFileWriter::Create(folder.file());
    CHECK_OK(writer.status());
    InjectWriteFault(100, ENOSPC);
    CHECK(writer.value()->Add(0, Chunk()).code() == Code::kOutOfSpace);
    InjectWriteFault(-1, 0);
  }
  CHECK_EQ(folder.files(), 0u);
}

TEST(a_spill_file_has_no_name_and_gives_back_what_was_put_in) {
  const Folder folder;
  auto spill = SpillFile::Create(folder.file());
  CHECK_OK(spill.status());
  CHECK_EQ(folder.files(), 0u);
  for (size_t number = 0; number < 3; ++number) {
    ParsedChunk chunk = Chunk();
    chunk.feasigns[0] = 100 + number;
    auto added = spill.value()->Add(chunk);
    CHECK_OK(added.status());
    CHECK_EQ(added.value(), number);
  }
  for (const size_t number : {1u, 2u, 0u}) {
    ParsedChunk chunk;
    CHECK_OK(spill.value()->Read(number, &chunk));
    CHECK_EQ(chunk.feasigns[0], 100 + number);
  }
  ParsedChunk chunk;
  CHECK(spill.value()->Read(3, &chunk).code() == Code::kInvalidArgument);
}

TEST(scattered_rows_keep_their_order_and_their_values) {
  const uint32_t parts[] = {1, 1};
  std::vector<ParsedChunk> out(2);
  CHECK_OK(ScatterRows(Chunk(), 2, parts, &out));
  CHECK_EQ(out[0].instances, 0u);
  CHECK_EQ(Text(out[1].feasigns), Text(Chunk().feasigns));
  const uint32_t apart[] = {1, 0};
  out.assign(2, {});
  CHECK_OK(ScatterRows(Chunk(), 2, apart, &out));
  CHECK_EQ(Text(out[1].feasigns), "7 8 9");
  CHECK_EQ(Text(out[1].lengths), "1 2");
  CHECK_EQ(Text(out[0].dense), "-2 3");
  CHECK_EQ(Text(out[0].labels), "0");
  const uint32_t outside[] = {0, 2};
  CHECK(ScatterRows(Chunk(), 2, outside, &out).code() == Code::kInvalidArgument);
  CHECK(ScatterRows(Chunk(), 3, apart, &out).code() == Code::kInvalidArgument);
}

TEST(instances_in_the_order_of_a_shuffle_are_the_shuffled_ones) {
  const auto filled = [] {
    auto instances = std::make_unique<Instances>(1, 0);
    for (uint64_t chunk = 0; chunk < 3; ++chunk) {
      ParsedChunk columns;
      columns.instances = 5;
      for (uint64_t i = 0; i < 5; ++i) {
        columns.labels.push_back(static_cast<float>(chunk * 5 + i) / 16);
        columns.lengths.push_back(1);
        columns.feasigns.push_back(1 + chunk * 5 + i);
      }
      CHECK_OK(instances->Append(std::move(columns)));
    }
    return instances;
  };
  ThreadPool pool(1);
  const auto shuffled = filled(), arranged = filled();
  CHECK_OK(shuffled->Shuffle(9));
  const std::vector<uint32_t> order = ShuffledOrder(15, 9);
  CHECK_OK(arranged->Arrange(order.data(), order.size()));
  for (Instances* instances : {shuffled.get(), arranged.get()}) {
    CHECK_OK(instances->Index(&pool));
    std::vector<uint64_t> feasigns;
    std::vector<int32_t> offsets;
    CHECK_OK(instances->PackFeasigns(0, 15, &feasigns, &offsets));
    for (size_t i = 0; i < 15; ++i) {
      CHECK_EQ(feasigns[i], order[i] + 1u);
      CHECK_EQ(instances->labels()[i], static_cast<float>(order[i]) / 16);
    }
  }
  const std::vector<uint32_t> twice(15, 3);
  CHECK(filled()->Arrange(twice.data(), 15).code() == Code::kInvalidArgument);
  CHECK(filled()->Arrange(order.data(), 14).code() == Code::kInvalidArgument);
}

TEST(merged_keys_are_the_union_with_the_lower_slot) {
  const std::vector<uint64_t> a = {1, 3, 5}, b = {2, 3, 9};
  const std::vector<uint16_t> of_a = {4, 4, 4}, of_b = {6, 2, 6};
  std::vector<uint64_t> keys;
  std::vector<uint16_t> slots;
  feed::MergeSortedKeys({a.data(), of_a.data(), 3}, {b.data(), of_b.data(), 3}, &keys, &slots);
  CHECK_EQ(Text(keys), "1 2 3 5 9");
  CHECK_EQ(Text(slots), "4 6 2 4 6");
  std::vector<int32_t> positions;
  CHECK_OK(feed::PositionsOfSorted(b.data(), 3, keys.data(), 5, &positions));
  CHECK_EQ(Text(positions), "1 2 4");
  CHECK(feed::PositionsOfSorted(keys.data(), 5, b.data(), 3, &positions).code() ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
