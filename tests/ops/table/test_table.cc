// The life of a pass: what may be called when, and what an error leaves behind.
#include "table/table.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../store/scratch.h"
#include "check.h"
#include "pass_model.h"

namespace pbx {
namespace {

using test::Contains;
using test::Floats;
using test::Ints;
using test::Keys;
using test::Pass;
using test::Scratch;

Pass SmallPass(uint64_t number = 0) { return test::MakePass(number, 500, 100, 5); }

Keys Range(uint64_t begin, uint64_t end) {
  Keys keys;
  for (uint64_t i = begin; i < end; ++i) keys.push_back(KeyOf(i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

Result<StagedPass> Stage(Table* table, const Keys& keys, Purpose purpose = Purpose::kTrain) {
  return table->Stage(keys.data(), nullptr, keys.size(), purpose, 20000);
}

// One push of every key, so that each row exists.
void Touch(Table* table, const Keys& keys) {
  Ints ids;
  for (size_t i = 0; i < keys.size(); ++i) ids.push_back(static_cast<int32_t>(i));
  const Floats grad(keys.size() * 8, 0.5f);
  CHECK_OK(table->Push(ids.data(), ids.size(), grad.data(), 1.0f));
}

// FailedPrecondition, with a message that names the call that is missing.
void CheckRefused(const Status& status, const char* missing) {
  CHECK_CODE(status, Code::kFailedPrecondition);
  if (!Contains(status.message(), missing)) {
    test::Fail(__FILE__, __LINE__, "'" + status.message() + "' does not name " + missing);
  }
}

void CheckNoOpenPass(Table* table) {
  const int32_t id = 0, offsets[2] = {0, 1};
  const uint64_t feasign = 1;
  Floats values(100);
  int32_t out;
  CheckRefused(table->Translate(&feasign, 1, &out), "begin_pass");
  CheckRefused(table->Pull(&id, 1, values.data()), "begin_pass");
  CheckRefused(table->Push(&id, 1, values.data(), 1.0f), "begin_pass");
  CheckRefused(table->PullPooled(&id, 1, offsets, 1, 1, true, values.data()), "begin_pass");
  CheckRefused(
      table->PushPooled(&id, 1, offsets, 1, 1, true, values.data(), nullptr, 0, values.data()),
      "begin_pass");
  CheckRefused(table->End(), "begin_pass");
  CheckRefused(table->Abandon(), "no pass is open");
  CheckRefused(table->CheckStamp(0), "no pass is open");
  CheckRefused(table->CheckStamp(1), "no pass is open");
  CHECK(!table->training());
  CHECK_EQ(table->stamp(), 0);
}

TEST(a_table_in_memory_alone_is_not_read_while_a_pass_is_staged) {
  const auto table = test::OpenTable(test::SmallConfig());
  const auto visit = [](uint64_t, const char*) { return Status::Ok(); };
  const StagedPass staged = test::StageTrain(table.get(), SmallPass(0));
  CheckRefused(table->Digest().status(), "staged");
  CheckRefused(table->Visit(visit), "staged");
  CHECK_OK(table->DropStaged(staged.stamp));
  CHECK_OK(table->Visit(visit));
}

TEST(each_call_out_of_order_is_refused_and_names_what_is_missing) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  const auto visit = [](uint64_t, const char*) { return Status::Ok(); };

  // Nothing is staged.
  CheckNoOpenPass(table.get());
  CheckRefused(table->Begin(1), "not staged");
  CheckRefused(table->DropStaged(1), "not staged");
  CheckRefused(table->WriteFrozen().status(), "end_pass");
  CheckRefused(table->Publish({}), "end_pass");
  CHECK_OK(table->Digest().status());

  // Staged.
  const StagedPass first = test::StageTrain(table.get(), SmallPass(0));
  CheckNoOpenPass(table.get());
  CheckRefused(Stage(table.get(), Range(1, 10)).status(), "begin_pass");
  CheckRefused(table->Begin(first.stamp + 1), "not staged");
  CHECK_OK(table->Visit(visit));  // the SSD tier has all that is committed

  // Open.
  CHECK_OK(table->Begin(first.stamp));
  CHECK(table->training());
  CHECK_EQ(table->stamp(), first.stamp);
  CHECK_OK(table->CheckStamp(first.stamp));
  CheckRefused(table->CheckStamp(first.stamp + 1), "pass");
  CheckRefused(table->Begin(first.stamp), "end_pass");
  CheckRefused(table->DropStaged(first.stamp), "not staged");
  CheckRefused(Stage(table.get(), Range(1, 10), Purpose::kEvaluate).status(), "end_pass");
  CheckRefused(table->WriteFrozen().status(), "end_pass");
  CheckRefused(table->Publish({}), "end_pass");
  CheckRefused(table->Digest().status(), "open");
  for (const test::Batch& batch : SmallPass(0).batches) test::PushBatch(table.get(), batch);

  // Frozen.
  CHECK_OK(table->End());
  CHECK(table->has_frozen());
  CheckNoOpenPass(table.get());
  CheckRefused(table->Digest().status(), "committed");
  CheckRefused(table->Publish({}), "written");

  // The next one open beside it.
  CHECK_OK(table->Begin(test::StageTrain(table.get(), SmallPass(1)).stamp));
  CheckRefused(table->End(), "not committed");
  CHECK(table->training());
  test::Commit(table.get());
  CHECK(!table->has_frozen());
  CheckRefused(table->Publish({}), "end_pass");
  CHECK_OK(table->End());
  test::Commit(table.get());
  CheckNoOpenPass(table.get());
  CHECK_OK(table->Digest().status());
}

// Else the changed rows would count as being on the disk, and be lost with the first eviction.
TEST(a_pass_that_was_not_written_is_not_published) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  const Keys keys = Range(1, 100);
  CHECK_OK(table->Begin(Stage(table.get(), keys).value().stamp));
  Touch(table.get(), keys);
  CHECK_OK(table->End());
  CheckRefused(table->Publish({}), "written");
  CHECK(table->has_frozen());
  test::Commit(table.get());
  CHECK_EQ(table->pairs_upper_bound(), 99u);
}

// Whoever begins the next pass must leave them room on the disk.
TEST(rows_of_a_frozen_pass_are_unwritten_until_they_are_written) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 100)).value().stamp));
  Touch(table.get(), Range(1, 41));
  CHECK_EQ(table->unwritten_rows(), 0u);
  CHECK_OK(table->End());
  CHECK_EQ(table->unwritten_rows(), 40u);  // those that were only read are written nowhere
  const auto written = table->WriteFrozen();
  CHECK_OK(written.status());
  CHECK_EQ(table->unwritten_rows(), 0u);
  CHECK_OK(table->Publish(written.value().segments));
  CHECK_EQ(table->unwritten_rows(), 0u);
}

TEST(a_publish_out_of_order_changes_nothing) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  const Keys keys = Range(1, 100);
  CHECK_OK(table->Begin(Stage(table.get(), keys).value().stamp));
  Touch(table.get(), keys);
  CHECK_OK(table->End());
  const auto segments = test::Commit(table.get());
  TableConfig other = config;
  const auto reader = test::OpenTable(other);
  CheckRefused(reader->Publish(segments), "end_pass");
  CHECK_EQ(reader->pairs_upper_bound(), 0u);
}

TEST(an_evaluation_changes_nothing_and_may_not_push) {
  const auto table = test::OpenTable(test::SmallConfig());
  const Keys keys = Range(1, 100);
  CHECK_OK(table->Begin(Stage(table.get(), keys).value().stamp));
  Touch(table.get(), keys);
  CHECK_OK(table->End());
  test::Commit(table.get());
  const std::string before = test::DigestOf(table.get());

  const auto staged = Stage(table.get(), Range(50, 200), Purpose::kEvaluate);
  CHECK_EQ(staged.value().rows, 50u);
  CHECK_EQ(staged.value().row_of_key.size(), 150u);
  CHECK_EQ(test::DigestOf(table.get()), before);  // it does not stand in the way
  CHECK_OK(table->Begin(staged.value().stamp));
  const int32_t id = 0, offsets[2] = {0, 1};
  const Floats grad(8, 1.0f), counts(2, 1.0f);
  CheckRefused(table->Push(&id, 1, grad.data(), 1.0f), "evaluation");
  CheckRefused(
      table->PushPooled(&id, 1, offsets, 1, 1, true, counts.data(), nullptr, 0, grad.data()),
      "evaluation");
  CHECK_OK(table->End());
  CHECK(!table->has_frozen());
  CHECK_EQ(test::DigestOf(table.get()), before);

  const auto dropped = Stage(table.get(), Range(1, 20), Purpose::kEvaluate);
  CHECK_OK(table->DropStaged(dropped.value().stamp));
  CheckRefused(table->Begin(dropped.value().stamp), "not staged");
}

TEST(a_read_only_table_takes_evaluations_alone) {
  TableConfig config = test::SmallConfig();
  config.read_only = true;
  const auto table = test::OpenTable(config);
  CheckRefused(Stage(table.get(), Range(1, 10)).status(), "read-only");
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 10), Purpose::kEvaluate).value().stamp));
  CHECK_OK(table->End());
}

TEST(an_abandoned_table_takes_no_pass_even_after_an_evaluation_is_abandoned) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  const int32_t train = Stage(table.get(), Range(1, 100)).value().stamp;
  const int32_t evaluate = Stage(table.get(), Range(1, 100), Purpose::kEvaluate).value().stamp;
  CHECK_OK(table->Begin(train));
  CHECK_OK(table->Abandon());
  CheckRefused(Stage(table.get(), Range(1, 10)).status(), "reopen");
  CHECK_OK(table->Begin(evaluate));
  CHECK_OK(table->Abandon());
  CheckRefused(Stage(table.get(), Range(1, 10)).status(), "reopen");
}

// Its rows had been moved out of MEM and changed: there is no commit to go back to.
TEST(in_memory_alone_an_abandoned_pass_leaves_no_table_to_read) {
  const auto table = test::OpenTable(test::SmallConfig());
  const Keys keys = Range(1, 100);
  CHECK_OK(table->Begin(Stage(table.get(), keys).value().stamp));
  Touch(table.get(), keys);
  CHECK_OK(table->End());
  test::Commit(table.get());
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 50)).value().stamp));
  CHECK_OK(table->Abandon());
  CheckRefused(table->Digest().status(), "abandoned");
}

TEST(rows_that_no_push_has_reached_do_not_exist) {
  const auto table = test::OpenTable(test::SmallConfig());
  const Keys keys = Range(1, 100);
  const auto staged = Stage(table.get(), keys);
  CHECK_EQ(staged.value().rows_by_origin[static_cast<size_t>(Origin::kNew)], 99u);
  CHECK_OK(table->Begin(staged.value().stamp));
  Touch(table.get(), Range(1, 11));  // row ids 0 .. 9
  CHECK_OK(table->End());
  test::Commit(table.get());
  CHECK_EQ(table->pairs_upper_bound(), 10u);
  CHECK_OK(table->Visit([&](uint64_t key, const char*) {
    CHECK(key <= keys[9]);
    return Status::Ok();
  }));
}

TEST(staging_says_where_each_row_came_from) {
  const Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  std::vector<SegmentDescriptor> segments;
  {
    const auto table = test::OpenTable(config);
    CHECK_OK(table->Begin(Stage(table.get(), Range(1, 101)).value().stamp));
    Touch(table.get(), Range(1, 101));
    CHECK_OK(table->End());
    segments = test::Commit(table.get());
  }
  const auto table = test::OpenTable(config, segments);
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 51)).value().stamp));  // from SSD
  CHECK_OK(table->End());
  const auto second = Stage(table.get(), Range(1, 31));  // from the frozen pass
  CHECK_EQ(second.value().rows_by_origin[static_cast<size_t>(Origin::kHbm)], 30u);
  CHECK_OK(table->Begin(second.value().stamp));
  test::Commit(table.get());  // 31 .. 50 go to MEM
  const auto third = Stage(table.get(), Range(21, 121));
  const auto& from = third.value().rows_by_origin;
  CHECK_EQ(from[static_cast<size_t>(Origin::kHbm)], 10u);  // 21 .. 30
  CHECK_EQ(from[static_cast<size_t>(Origin::kMem)], 20u);  // 31 .. 50
  CHECK_EQ(from[static_cast<size_t>(Origin::kSsd)], 50u);  // 51 .. 100
  CHECK_EQ(from[static_cast<size_t>(Origin::kNew)], 20u);  // 101 .. 120
}

// The rows of a staged pass are nowhere else: an error must not lose them.
TEST(a_staged_pass_that_mem_has_no_room_for_stays_staged) {
  TableConfig config = test::SmallConfig();
  config.mem_budget_bytes = MemTier::kMinBudgetBytes;  // some 9,000 rows of 100 bytes
  const auto table = test::OpenTable(config);
  const Keys first = Range(1, 6001), second = Range(10001, 16001);
  CHECK_OK(table->Begin(Stage(table.get(), first).value().stamp));
  Touch(table.get(), first);
  CHECK_OK(table->End());
  test::Commit(table.get());
  const std::string before = test::DigestOf(table.get());

  CHECK_OK(table->Begin(Stage(table.get(), second).value().stamp));
  Touch(table.get(), second);
  const int32_t staged = Stage(table.get(), first).value().stamp;
  CHECK_OK(table->End());
  test::Commit(table.get());  // MEM now holds the second
  CHECK_CODE(table->DropStaged(staged), Code::kOutOfSpace);
  CHECK_OK(table->Begin(staged));
  Ints ids(first.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  Floats out(ids.size() * 8, 0.0f);
  CHECK_OK(table->Pull(ids.data(), ids.size(), out.data()));
  CHECK(std::all_of(ids.begin(), ids.end(), [&](int32_t id) {
    return out[static_cast<size_t>(id) * 8] == 0.5f;  // each was shown half a time
  }));
}

TEST(a_pass_that_mem_has_no_room_for_stays_frozen_and_whole) {
  TableConfig config = test::SmallConfig();
  config.mem_budget_bytes = MemTier::kMinBudgetBytes;
  const auto table = test::OpenTable(config);
  const Keys keys = Range(1, 20001);
  CHECK_OK(table->Begin(Stage(table.get(), keys).value().stamp));
  Touch(table.get(), keys);
  CHECK_OK(table->End());
  CHECK_OK(table->WriteFrozen().status());
  CHECK_CODE(table->Publish({}), Code::kOutOfSpace);
  CHECK(table->has_frozen());
  const auto evaluated = Stage(table.get(), keys, Purpose::kEvaluate);
  CHECK_EQ(evaluated.value().rows, keys.size());
}

TEST(a_pass_above_the_hbm_budget_is_out_of_space_with_the_bytes_it_needs) {
  TableConfig config = test::SmallConfig();
  config.hbm_budget_bytes = 300000;
  const auto table = test::OpenTable(config);
  const uint64_t most = table->max_pass_rows();
  CHECK(most > 500 && most < 1000);  // a third of 300,000 bytes, rows of 100 bytes and their index
  CHECK_OK(Stage(table.get(), Range(1, most + 1)).status());
  const auto table2 = test::OpenTable(config);
  const Status status = Stage(table2.get(), Range(1, most + 2)).status();
  CHECK_CODE(status, Code::kOutOfSpace);
  CHECK(Contains(status.message(), "300000"));
}

// The index has up to two entries of four bytes a row: 2^k + 1 keys are the worst.
TEST(a_pass_table_takes_no_more_than_its_bytes_per_row) {
  for (const size_t n : {1000u, 1024u, 1025u, 4097u, 65537u}) {
    Result<std::unique_ptr<HbmTier>> built = HbmTier::Build(100, Range(1, n + 1));
    CHECK_OK(built.status());
    CHECK(built.value()->bytes() <= n * HbmTier::BytesPerRow(100));
  }
}

TEST(keys_out_of_order_repeated_or_padding_are_refused) {
  const auto table = test::OpenTable(test::SmallConfig());
  for (const Keys& keys : {Keys{0}, Keys{0, 1}, Keys{2, 1}, Keys{1, 1}, Keys{1, 2, 3, 3}}) {
    CHECK_CODE(Stage(table.get(), keys).status(), Code::kInvalidArgument);
  }
  const auto empty = Stage(table.get(), {});
  CHECK_OK(empty.status());
  CHECK_OK(table->Begin(empty.value().stamp));
  CHECK_OK(table->End());
  CHECK(test::Commit(table.get()).empty());
}

TEST(a_feasign_outside_the_pass_is_an_error_in_training_and_absent_in_evaluation) {
  const auto table = test::OpenTable(test::SmallConfig());
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 10)).value().stamp));
  const uint64_t feasigns[3] = {0, 5, 12345};
  int32_t ids[3] = {7, 7, 7};
  CHECK_OK(table->Translate(feasigns, 2, ids));
  CHECK_EQ(ids[0], -1);
  CHECK(ids[1] >= 0 && ids[1] < 9);
  const Status outside = table->Translate(feasigns, 3, ids);
  CHECK_CODE(outside, Code::kInvalidArgument);
  CHECK(Contains(outside.message(), "12345"));
  Touch(table.get(), Range(1, 10));
  CHECK_OK(table->End());
  CHECK_OK(table->Begin(Stage(table.get(), Range(1, 10), Purpose::kEvaluate).value().stamp));
  CHECK_OK(table->Translate(feasigns, 3, ids));
  CHECK_EQ(ids[0], -1);
  CHECK(ids[1] >= 0);
  CHECK_EQ(ids[2], -1);
}

TEST(a_width_outside_what_a_pull_can_hold_is_refused) {
  for (const int dim : {-1, 0, 254}) {
    TableConfig config = test::SmallConfig();
    config.accessor.layout.embedx_dim = dim;
    CHECK_CODE(Table::Open(config, {}).status(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace pbx
