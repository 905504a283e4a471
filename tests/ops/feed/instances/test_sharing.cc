#include "feed/instances/sharing.h"

#include "feed/feed_util.h"
#include "feed/instances/parsed_file.h"

using namespace pbx;
using pbx::test::Text;

namespace {

// Three instances of two slots: {7}, {8, 9}; {}, {5}; {7}, {}. The first two have the id "u".
ParsedChunk Chunk() {
  ParsedChunk chunk;
  chunk.instances = 3;
  chunk.labels = {1, 0, 1};
  chunk.dense = {0.5f, 1.5f, 2.5f};
  chunk.lengths = {1, 2, 0, 1, 1, 0};
  chunk.feasigns = {7, 8, 9, 5, 7};
  return chunk;
}

ParsedChunk Tagged() {
  ParsedChunk chunk = Chunk();
  const TagSpec spec = {true, true, true, true};
  chunk.tags.Add(spec, {"u", "first", {9, 222, 1}, 40});
  chunk.tags.Add(spec, {"u", "", {0, 223, 2}, INT64_MAX});
  chunk.tags.Add(spec, {"", "third", {9, 100, 3}, 0});
  return chunk;
}

ParsedChunk Decoded(const std::string& bytes) {
  ParsedChunk chunk = Chunk();  // what is there is replaced
  CHECK_OK(DecodeInstances(bytes.data(), bytes.size(), "rank 1", &chunk));
  return chunk;
}

std::vector<uint64_t> Groups(const ParsedChunk& chunk, GroupBy by, size_t slot = 0) {
  std::vector<uint64_t> groups;
  CHECK_OK(GroupsOf(chunk, 2, by, slot, &groups));
  return groups;
}

void CheckTags(const ParsedChunk& chunk, size_t i, const char* id, const char* content,
               const LogKey& key) {
  CHECK(chunk.tags.ins_ids[i] == id);
  CHECK(chunk.tags.contents[i] == content);
  CHECK_EQ(chunk.tags.log_keys[i].search_id, key.search_id);
  CHECK_EQ(chunk.tags.log_keys[i].cmatch, key.cmatch);
  CHECK_EQ(chunk.tags.log_keys[i].rank, key.rank);
}

}  // namespace

TEST(instances_of_one_group_have_one_hash) {
  const std::vector<uint64_t> ids = Groups(Tagged(), GroupBy::kInsId);
  CHECK_EQ(ids[0], ids[1]);
  CHECK(ids[0] != ids[2]);
  const std::vector<uint64_t> searches = Groups(Tagged(), GroupBy::kSearchId);
  CHECK_EQ(searches[0], searches[2]);
  CHECK(searches[0] != searches[1]);
  CHECK(searches[1] != 0);  // a search id of 0 is a page view, too
  CHECK_EQ(Text(Groups(Chunk(), GroupBy::kSlot, 0)), "7 0 7");
  CHECK_EQ(Text(Groups(Chunk(), GroupBy::kSlot, 1)), "8 5 0");
}

TEST(groups_need_their_tag_and_slot) {
  std::vector<uint64_t> groups;
  for (const GroupBy by : {GroupBy::kInsId, GroupBy::kSearchId}) {
    CHECK_CODE(GroupsOf(Chunk(), 2, by, 0, &groups), Code::kFailedPrecondition);
  }
  CHECK_CODE(GroupsOf(Chunk(), 2, GroupBy::kSlot, 2, &groups), Code::kInvalidArgument);
  CHECK_CODE(GroupsOf(Chunk(), 3, GroupBy::kSlot, 0, &groups), Code::kInvalidArgument);
  ParsedChunk torn = Chunk();
  torn.feasigns.pop_back();
  CHECK_CODE(GroupsOf(torn, 2, GroupBy::kSlot, 0, &groups), Code::kInvalidArgument);
}

TEST(instances_arrive_as_they_were_sent) {
  for (const ParsedChunk& chunk : {Chunk(), Tagged(), ParsedChunk()}) {
    std::string bytes;
    EncodeInstances(chunk, &bytes);
    CHECK_EQ(bytes.size() % 8, 0u);
    const ParsedChunk found = Decoded(bytes);
    CHECK_EQ(found.instances, chunk.instances);
    CHECK_EQ(Text(found.labels), Text(chunk.labels));
    CHECK_EQ(Text(found.dense), Text(chunk.dense));
    CHECK_EQ(Text(found.lengths), Text(chunk.lengths));
    CHECK_EQ(Text(found.feasigns), Text(chunk.feasigns));
    CHECK(found.tags.spec() == chunk.tags.spec());
  }
  std::string bytes;
  EncodeInstances(Tagged(), &bytes);
  const ParsedChunk found = Decoded(bytes);
  CheckTags(found, 0, "u", "first", {9, 222, 1});
  CheckTags(found, 1, "u", "", {0, 223, 2});
  CheckTags(found, 2, "", "third", {9, 100, 3});
  CHECK_EQ(Text(found.tags.times), Text(Tagged().tags.times));
}

TEST(rows_are_scattered_with_their_tags) {
  std::vector<ParsedChunk> parts(2);
  const uint32_t part_of_row[] = {1, 0, 1};
  CHECK_OK(ScatterRows(Tagged(), 2, part_of_row, &parts));
  CHECK_EQ(parts[0].instances, 1u);
  CheckTags(parts[0], 0, "u", "", {0, 223, 2});
  CheckTags(parts[1], 0, "u", "first", {9, 222, 1});
  CheckTags(parts[1], 1, "", "third", {9, 100, 3});
  CHECK_EQ(Text(parts[1].feasigns), "7 8 9 7");
  CHECK_EQ(Text(parts[1].tags.times), "40 0");
}

// Every cut, and every change of one byte, is found or changes only padding.
TEST(damaged_bytes_are_corruption) {
  std::string bytes;
  EncodeInstances(Tagged(), &bytes);
  ParsedChunk chunk;
  for (size_t size = 0; size < bytes.size(); size += 8) {
    CHECK_CODE(DecodeInstances(bytes.data(), size, "rank 1", &chunk), Code::kCorruption);
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    ParsedChunk found;
    if (DecodeInstances(changed.data(), changed.size(), "rank 1", &found).ok()) {
      CHECK(found.tags.Fits(3));
    }
  }
  const Status status = DecodeInstances(bytes.data(), 8, "rank 1", &chunk);
  CHECK(status.message().find("rank 1") != std::string::npos);
}
