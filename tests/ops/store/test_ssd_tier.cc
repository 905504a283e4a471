#include "store/ssd_tier.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "check.h"
#include "scratch.h"
#include "store/segment_reader.h"

namespace pbx {
namespace {

using test::RowOf;
using test::Scratch;

constexpr uint32_t kRowBytes = 80;

SsdOptions Options(const Scratch& scratch, uint64_t max_segment_bytes = 256ull << 20) {
  SsdOptions options;
  options.folder = scratch.path();
  options.row_bytes = kRowBytes;
  options.layout_fingerprint = 42;
  options.max_segment_bytes = max_segment_bytes;
  return options;
}

std::unique_ptr<SsdTier> OpenTier(const SsdOptions& options, ThreadPool* pool,
                                  const std::vector<SegmentDescriptor>& segments = {}) {
  auto tier = SsdTier::Open(options, segments, pool);
  CHECK_OK(tier.status());
  return std::move(tier.value());
}

// Keys Mix(begin) .. Mix(end - 1) in order.
std::vector<uint64_t> Keys(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> keys;
  for (uint64_t i = begin; i < end; ++i) keys.push_back(Mix(i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<char> Rows(const std::vector<uint64_t>& keys, uint64_t generation) {
  std::vector<char> rows;
  for (const uint64_t key : keys) {
    const std::vector<char> row = RowOf(key, generation, kRowBytes);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

Status WriteKeys(SsdTier* tier, const std::vector<uint64_t>& keys, uint64_t generation) {
  return tier->Write(keys.data(), Rows(keys, generation).data(), keys.size());
}

using Model = std::map<uint64_t, uint64_t>;  // key -> generation of its newest row

void CheckReads(SsdTier* tier, const std::vector<uint64_t>& keys, const Model& model) {
  std::vector<char> rows(keys.size() * kRowBytes);
  std::vector<uint8_t> found(keys.size());
  CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
  size_t wrong = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto it = model.find(keys[i]);
    const std::vector<char> expected =
        it == model.end() ? std::vector<char>(kRowBytes) : RowOf(keys[i], it->second, kRowBytes);
    const bool same = std::equal(expected.begin(), expected.end(), &rows[i * kRowBytes]);
    wrong += (found[i] == 1) != (it != model.end()) || !same ? 1 : 0;
  }
  CHECK_EQ(wrong, 0u);
}

TEST(the_newest_row_of_a_key_wins_in_read_and_visit_and_after_reopening) {
  for (const int threads : {1, 4}) {
    const Scratch scratch;
    ThreadPool pool(threads);
    const SsdOptions options = Options(scratch, 100000);  // about 1100 rows a segment
    std::vector<SegmentDescriptor> all;
    Model model;
    {
      const auto tier = OpenTier(options, &pool);
      for (uint64_t generation = 0; generation < 5; ++generation) {
        const auto keys = Keys(generation * 1000, generation * 1000 + 3000);
        const auto rows = Rows(keys, generation);
        std::vector<const char*> pointers;
        for (size_t i = 0; i < keys.size(); ++i) pointers.push_back(&rows[i * kRowBytes]);
        auto prepared = tier->Prepare(keys.data(), pointers.data(), keys.size());
        CHECK_OK(prepared.status());
        CHECK(prepared.value().size() > 1);
        for (const SegmentDescriptor& segment : prepared.value()) {
          CHECK(segment.bytes <= options.max_segment_bytes);
        }
        CheckReads(tier.get(), Keys(0, 8000), model);  // prepared rows are not seen yet
        CHECK_OK(tier->Publish(prepared.value()));
        all.insert(all.end(), prepared.value().begin(), prepared.value().end());
        for (const uint64_t key : keys) model[key] = generation;
        CheckReads(tier.get(), Keys(0, 8000), model);
      }
    }
    std::reverse(all.begin(), all.end());  // any order will do
    const auto tier = OpenTier(options, &pool, all);
    CheckReads(tier.get(), Keys(0, 8000), model);
    CHECK_EQ(tier->segments(), all.size());
    CHECK_EQ(tier->rows(), size_t{15000});

    auto expected = model.begin();
    CHECK_OK(tier->Visit([&](uint64_t key, const char* row) {
      const std::vector<char> want = RowOf(key, expected->second, kRowBytes);
      CHECK_EQ(key, expected->first);
      CHECK(std::equal(want.begin(), want.end(), row));
      ++expected;
      return Status::Ok();
    }));
    CHECK(expected == model.end());
  }
}

TEST(a_visit_of_a_range_gives_the_rows_of_its_keys_and_no_others) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(Options(scratch, 100000), &pool);
  const auto keys = Keys(0, 5000);
  CHECK_OK(WriteKeys(tier.get(), keys, 1));
  CHECK_OK(WriteKeys(tier.get(), Keys(1000, 2000), 2));
  for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 4999}, {17, 17}, {1200, 3800}}) {
    std::vector<uint64_t> found;
    CHECK_OK(tier->Visit(keys[first], keys[last], [&](uint64_t key, const char*) {
      found.push_back(key);
      return Status::Ok();
    }));
    CHECK(std::equal(found.begin(), found.end(), keys.begin() + static_cast<ptrdiff_t>(first),
                     keys.begin() + static_cast<ptrdiff_t>(last) + 1));
  }
}

TEST(visit_stops_at_the_first_error_and_returns_it) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 100), 0));
  int calls = 0;
  const Status status = tier->Visit([&](uint64_t, const char*) {
    return ++calls == 3 ? Error(Code::kFailedPrecondition, "enough") : Status::Ok();
  });
  CHECK_CODE(status, Code::kFailedPrecondition);
  CHECK_EQ(calls, 3);
}

TEST(a_key_found_by_an_earlier_tier_is_left_alone) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(Options(scratch), &pool);
  const auto keys = Keys(0, 1000);
  CHECK_OK(WriteKeys(tier.get(), keys, 0));
  std::vector<char> rows(keys.size() * kRowBytes, 'x');
  std::vector<uint8_t> found(keys.size(), 1);
  CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
  CHECK(std::all_of(rows.begin(), rows.end(), [](char c) { return c == 'x'; }));
  CHECK_EQ(tier->counters().keys_asked, 0u);
  CHECK_EQ(tier->counters().blocks_read, 0u);
}

TEST(at_most_1_of_100_absent_keys_costs_a_read_also_in_a_deep_stack) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 200000), 0));
  for (uint64_t young = 1; young < 16; ++young) {
    CHECK_OK(WriteKeys(tier.get(), Keys(10000 * young, 10000 * young + 10000), young));
  }
  const auto absent = Keys(200000, 300000);
  std::vector<char> rows(absent.size() * kRowBytes);
  std::vector<uint8_t> found(absent.size());
  CHECK_OK(tier->Read(absent.data(), absent.size(), rows.data(), found.data()));
  const SsdCounters counters = tier->counters();
  CHECK_EQ(counters.keys_asked, 100000u);
  CHECK_EQ(counters.rows_found, 0u);
  CHECK(counters.absent_read > 0);
  CHECK(counters.absent_read <= 1000);
  CHECK(counters.absent_read <= counters.filter_passed);
  CHECK(tier->memory_bytes() <= 2 * 200000 + 15 * 18000);
}

TEST(each_needed_block_is_read_once_whatever_the_thread_count) {
  for (const int threads : {1, 3, 4}) {
    const Scratch scratch;
    ThreadPool pool(threads);
    const auto tier = OpenTier(Options(scratch), &pool);
    const auto keys = Keys(0, 50000);
    CHECK_OK(WriteKeys(tier.get(), keys, 0));
    std::vector<char> rows(keys.size() * kRowBytes);
    std::vector<uint8_t> found(keys.size());
    CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
    const uint64_t blocks = (50000 + 45) / 46;  // 46 rows of 8 + 80 bytes a block
    CHECK_EQ(tier->counters().blocks_read, blocks);
    CHECK_EQ(tier->counters().bytes_read, blocks * 4096);
    CHECK_EQ(tier->counters().rows_found, 50000u);
  }
}

TEST(a_full_disk_leaves_no_file_and_the_tier_readable) {
  const Scratch scratch;
  ThreadPool pool(1);  // two files are written at a time
  const auto tier = OpenTier(Options(scratch, 100000), &pool);
  Model model;
  for (const uint64_t key : Keys(0, 500)) model[key] = 0;
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 500), 0));
  const size_t files = scratch.files();
  // In the first block, in a footer, and when one of the files of 100 kB is complete in any case.
  for (const int64_t after : {int64_t{10}, int64_t{98000}, int64_t{300000}}) {
    InjectWriteFault(after, ENOSPC);
    const Status status = WriteKeys(tier.get(), Keys(0, 5000), 1);
    InjectWriteFault(-1, 0);
    CHECK_CODE(status, Code::kOutOfSpace);
    CHECK_EQ(scratch.files(), files);
    CheckReads(tier.get(), Keys(0, 5000), model);
  }
  for (const uint64_t key : Keys(0, 5000)) model[key] = 1;
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 5000), 1));
  CheckReads(tier.get(), Keys(0, 5000), model);
}

TEST(a_missing_segment_or_folder_or_a_repeated_id_is_an_error_that_names_it) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(Options(scratch), &pool);
  const auto keys = Keys(1, 2);
  const char row[kRowBytes] = {};
  const char* pointer = row;
  auto prepared = tier->Prepare(keys.data(), &pointer, 1);
  CHECK_OK(tier->Publish(prepared.value()));
  CHECK_CODE(tier->Publish(prepared.value()), Code::kInvalidArgument);
  CHECK_EQ(tier->segments(), size_t{1});

  std::filesystem::remove(scratch / prepared.value()[0].file);
  const Status missing = SsdTier::Open(Options(scratch), prepared.value(), &pool).status();
  CHECK_CODE(missing, Code::kNotFound);
  CHECK(test::Contains(missing.message(), prepared.value()[0].file));
  SsdOptions nowhere = Options(scratch);
  nowhere.folder += "/none";
  CHECK_CODE(SsdTier::Open(nowhere, {}, &pool).status(), Code::kNotFound);
}

TEST(a_damaged_block_fails_the_read_that_needs_it_and_no_other) {
  const Scratch scratch;
  ThreadPool pool(4);
  const auto tier = OpenTier(Options(scratch), &pool);
  const auto keys = Keys(0, 5000);
  CHECK_OK(WriteKeys(tier.get(), keys, 0));
  const std::string path = scratch / "seg-000000000001.seg";
  std::string bytes = test::ReadAll(path);
  bytes[10 * 4096 + 100] = static_cast<char>(~bytes[10 * 4096 + 100]);
  test::WriteAll(path, bytes);
  Model model;
  for (const uint64_t key : keys) model[key] = 0;
  CheckReads(tier.get(), std::vector<uint64_t>(keys.begin(), keys.begin() + 460), model);
  std::vector<char> rows(keys.size() * kRowBytes);
  std::vector<uint8_t> found(keys.size());
  const Status status = tier->Read(keys.data(), keys.size(), rows.data(), found.data());
  CHECK_CODE(status, Code::kCorruption);
  CHECK(test::Contains(status.message(), "block 10 at offset 40960"));
  CHECK(test::Contains(status.message(), "(rows 460..505)"));
  CHECK_CODE(tier->Visit([](uint64_t, const char*) { return Status::Ok(); }), Code::kCorruption);
}

// Keys Mix(begin) .. in four generations over a base: a stack as a table grows it.
Model Stack(SsdTier* tier) {
  Model model;
  for (uint64_t generation = 0; generation < 5; ++generation) {
    const auto keys = Keys(generation * 700, generation == 0 ? 20000 : generation * 700 + 1500);
    CHECK_OK(WriteKeys(tier, keys, generation));
    for (const uint64_t key : keys) model[key] = generation;
  }
  return model;
}

// A tier of small ranges: about 1100 rows a file.
SsdOptions SmallRanges(const Scratch& scratch) { return Options(scratch, 100000); }

std::vector<uint64_t> IdsOfFiles(const Scratch& scratch) {
  std::vector<uint64_t> ids;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    ids.push_back(std::stoull(entry.path().filename().string().substr(4)));
  }
  return ids;
}

TEST(a_merge_leaves_every_row_as_it_was_and_one_copy_of_each) {
  for (const int threads : {1, 4}) {
    const Scratch scratch;
    ThreadPool pool(threads);
    const auto tier = OpenTier(SmallRanges(scratch), &pool);
    const Model model = Stack(tier.get());
    const std::vector<uint64_t> inputs = IdsOfFiles(scratch);
    const auto merged = tier->Merge({inputs, false, nullptr});
    CHECK_OK(merged.status());
    CHECK_EQ(merged.value().rows_in, uint64_t{20000 + 4 * 1500});
    CHECK_EQ(merged.value().rows_out, model.size());
    CHECK_EQ(merged.value().rows_dropped, 0u);
    CheckReads(tier.get(), Keys(0, 25000), model);  // nothing is seen before Replace
    CHECK_OK(tier->Replace(inputs, merged.value().segments));
    for (const uint64_t id : inputs) std::filesystem::remove(scratch / SegmentFileName(id));
    CHECK_EQ(tier->rows(), model.size());
    CHECK_EQ(tier->segments(), merged.value().segments.size());
    CheckReads(tier.get(), Keys(0, 25000), model);
    const auto again = OpenTier(SmallRanges(scratch), &pool, merged.value().segments);
    CheckReads(again.get(), Keys(0, 25000), model);
  }
}

TEST(a_merge_of_young_segments_stays_older_than_what_was_written_after_it_began) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(Options(scratch), &pool);
  Model model;
  std::vector<uint64_t> young;
  for (uint64_t generation = 0; generation < 4; ++generation) {
    CHECK_OK(WriteKeys(tier.get(), Keys(0, 3000), generation));
    if (generation > 0) young.push_back(generation + 1);  // one file each, ids from 1
  }
  const auto merged = tier->Merge({young, false, nullptr});
  CHECK_OK(merged.status());
  CHECK_OK(WriteKeys(tier.get(), Keys(1000, 2000), 9));
  CHECK_OK(tier->Replace(young, merged.value().segments));
  for (const uint64_t key : Keys(0, 3000)) model[key] = 3;
  for (const uint64_t key : Keys(1000, 2000)) model[key] = 9;
  CheckReads(tier.get(), Keys(0, 4000), model);
}

TEST(a_merge_that_skips_a_segment_between_its_inputs_is_refused) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  for (uint64_t generation = 0; generation < 3; ++generation) {
    CHECK_OK(WriteKeys(tier.get(), Keys(0, 100), generation));
  }
  const Status status = tier->Merge({{1, 3}, false, nullptr}).status();
  CHECK_CODE(status, Code::kInvalidArgument);
  CHECK(test::Contains(status.message(), "segment 2"));
  CHECK_CODE(tier->Merge({{1, 7}, false, nullptr}).status(), Code::kInvalidArgument);
  CHECK_CODE(tier->Merge({{}, false, nullptr}).status(), Code::kInvalidArgument);
  CHECK_EQ(scratch.files(), 3u);
}

TEST(dead_rows_are_dropped_at_the_bottom_and_kept_where_an_older_copy_would_come_back) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  const auto keys = Keys(0, 1000);
  for (uint64_t generation = 0; generation < 3; ++generation) {
    CHECK_OK(WriteKeys(tier.get(), keys, generation));
  }
  // A row is dead when its first byte is odd; a living one gets a mark.
  const auto life = [](uint64_t key, char* row) {
    CHECK_EQ(row[0], RowOf(key, 2, kRowBytes)[0]);
    row[1] = 'L';
    return (row[0] & 1) == 0;
  };
  const auto dead = [&](uint64_t key) { return (RowOf(key, 2, kRowBytes)[0] & 1) != 0; };
  const auto young = tier->Merge({{2, 3}, false, life});
  CHECK_OK(young.status());
  CHECK_EQ(young.value().rows_dropped, 0u);
  CHECK_EQ(young.value().rows_out, 1000u);
  CHECK_OK(tier->Replace({2, 3}, young.value().segments));
  std::vector<char> rows(keys.size() * kRowBytes);
  std::vector<uint8_t> found(keys.size());
  CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<char> expected = RowOf(keys[i], 2, kRowBytes);
    if (!dead(keys[i])) expected[1] = 'L';
    CHECK(std::equal(expected.begin(), expected.end(), &rows[i * kRowBytes]));
  }
  const auto all = tier->Merge({{1, young.value().segments[0].id}, false, life});
  CHECK_OK(all.status());
  const auto died = static_cast<uint64_t>(std::count_if(keys.begin(), keys.end(), dead));
  CHECK(died > 0);
  CHECK_EQ(all.value().rows_dropped, died);
  CHECK_EQ(all.value().keys_gone, died);
  CHECK_EQ(all.value().rows_out, 1000 - died);
}

TEST(a_dead_copy_under_a_younger_row_is_dropped_and_its_key_is_not_gone) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 1000), 0));
  CHECK_OK(WriteKeys(tier.get(), Keys(400, 1000), 1));
  const auto merged = tier->Merge({{1}, false, [](uint64_t, char*) { return false; }});
  CHECK_OK(merged.status());
  CHECK_EQ(merged.value().rows_dropped, 1000u);
  // 12 bits of filter take about one key in 4000 for another.
  CHECK(merged.value().keys_gone <= 400 && merged.value().keys_gone >= 395);
  CHECK_OK(tier->Replace({1}, merged.value().segments));
  const auto old = Keys(0, 400), young = Keys(400, 1000);
  std::vector<uint8_t> held(1000);
  tier->MayHold(young.data(), young.size(), held.data());
  CHECK_EQ(std::count(held.begin(), held.begin() + 600, 1), 600);
  tier->MayHold(old.data(), old.size(), held.data());
  CHECK(std::count(held.begin(), held.begin() + 400, 1) <= 5);
}

TEST(a_young_dead_row_is_dropped_alone_if_no_older_segment_holds_its_key) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 200), 0));
  CHECK_OK(WriteKeys(tier.get(), Keys(100, 300), 1));
  // All rows are dead: of the 200 in each segment, the keys of 100 are in the other one too. Up to
  // 1 % of the others may pass a filter.
  const auto shares = tier->DeadShares([](uint64_t, float*) { return false; });
  CHECK_EQ(shares.size(), size_t{2});
  for (const DeadShare& share : shares) {
    const double alone = share.id == 1 ? share.keys_gone : share.droppable;
    CHECK_EQ(share.id == 1 ? share.droppable : share.keys_gone, 1.0);
    CHECK(alone <= 0.5 && alone >= 0.48);
  }
  CHECK(tier->DeadShares([](uint64_t, float*) { return true; }).size() == 2);  // the dead stay dead
  const auto merged = tier->Merge({{2}, false, [](uint64_t, char*) { return false; }});
  CHECK_OK(merged.status());
  CHECK(merged.value().rows_dropped <= 100 && merged.value().rows_dropped >= 98);
  CHECK_EQ(merged.value().rows_out, 200 - merged.value().rows_dropped);
  CHECK_OK(tier->Replace({2}, merged.value().segments));
  CHECK_EQ(tier->DeadShares([](uint64_t, float*) { return true; }).size(),
           size_t{1});  // a new sample
}

TEST(a_merge_of_rows_that_are_all_dead_makes_no_file) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 100), 0));
  const auto merged = tier->Merge({{1}, false, [](uint64_t, char*) { return false; }});
  CHECK_OK(merged.status());
  CHECK_EQ(merged.value().segments.size(), size_t{0});
  CHECK_OK(tier->Replace({1}, {}));
  CheckReads(tier.get(), Keys(0, 100), {});
}

TEST(a_cancelled_or_failed_merge_leaves_no_file) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(SmallRanges(scratch), &pool);
  const Model model = Stack(tier.get());
  const std::vector<uint64_t> inputs = IdsOfFiles(scratch);
  InjectWriteFault(500000, ENOSPC);
  CHECK_CODE(tier->Merge({inputs, false, nullptr}).status(), Code::kOutOfSpace);
  InjectWriteFault(-1, 0);
  CHECK_EQ(scratch.files(), inputs.size());
  tier->CancelMerges();
  CHECK_CODE(tier->Merge({inputs, false, nullptr}).status(), Code::kFailedPrecondition);
  CHECK_EQ(scratch.files(), inputs.size());
  CheckReads(tier.get(), Keys(0, 25000), model);
}

TEST(replacing_a_segment_that_is_not_there_changes_nothing) {
  const Scratch scratch;
  ThreadPool pool(1);
  const auto tier = OpenTier(Options(scratch), &pool);
  CHECK_OK(WriteKeys(tier.get(), Keys(0, 100), 0));
  CHECK_CODE(tier->Replace({1, 2}, {}), Code::kInvalidArgument);
  CHECK_EQ(tier->segments(), size_t{1});
}

TEST(a_read_gets_past_interruptions_and_tells_every_other_fault) {
  const Scratch scratch;
  ThreadPool pool(2);
  const auto tier = OpenTier(SmallRanges(scratch), &pool);
  const Model model = Stack(tier.get());
  const auto keys = Keys(0, 25000);
  std::vector<char> rows(keys.size() * kRowBytes);
  for (const int64_t after : {0, 3, 10}) {
    for (const ReadFault fault : {ReadFault::kInterrupted, ReadFault::kShort}) {
      InjectReadFault(fault, after);
      CheckReads(tier.get(), keys, model);
    }
    for (const auto& [fault, code] : {std::pair{ReadFault::kIoError, Code::kIOError},
                                      {ReadFault::kFlippedBit, Code::kCorruption}}) {
      InjectReadFault(fault, after);
      std::vector<uint8_t> found(keys.size());
      const Status status = tier->Read(keys.data(), keys.size(), rows.data(), found.data());
      CHECK_CODE(status, code);
      CHECK(test::Contains(status.message(), scratch.path()));
      InjectReadFault(ReadFault::kNone);
    }
  }
  CheckReads(tier.get(), keys, model);
}

}  // namespace
}  // namespace pbx
