#include "store/mem_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "scratch.h"

namespace pbx {
namespace {

using test::RowOf;
using Keys = std::vector<uint64_t>;

constexpr uint32_t kRowBytes = 80;
constexpr uint64_t kTiny = MemTier::kMinBudgetBytes;

std::unique_ptr<MemTier> Open(uint64_t budget = kTiny, uint32_t row_bytes = kRowBytes) {
  auto tier = MemTier::Open(row_bytes, budget);
  CHECK_OK(tier.status());
  return std::move(tier.value());
}

Keys Range(uint64_t begin, uint64_t end) {
  Keys keys;
  for (uint64_t i = begin; i < end; ++i) keys.push_back(Mix(i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

// Rows of one generation, with the pointers that Insert wants.
struct Batch {
  Batch(Keys of, uint64_t generation, uint32_t row_bytes = kRowBytes) : keys(std::move(of)) {
    for (const uint64_t key : keys) {
      const std::vector<char> row = RowOf(key, generation, row_bytes);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    for (size_t i = 0; i < keys.size(); ++i) pointers.push_back(&rows[i * row_bytes]);
  }
  Keys keys;
  std::vector<char> rows;
  std::vector<const char*> pointers;
};

Status Insert(MemTier* tier, const Batch& batch, bool clean) {
  return tier->Insert(batch.keys.data(), batch.pointers.data(), batch.keys.size(), clean);
}

// Which of the keys are here; checks that those rows are of the generation.
std::vector<uint8_t> Here(MemTier* tier, const Keys& keys, uint64_t generation) {
  std::vector<char> rows(keys.size() * kRowBytes);
  std::vector<uint8_t> found(keys.size(), 0);
  CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
  size_t wrong = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i] == 0) continue;
    const std::vector<char> row = RowOf(keys[i], generation, kRowBytes);
    wrong += !std::equal(row.begin(), row.end(), &rows[i * kRowBytes]);
  }
  CHECK_EQ(wrong, 0u);
  return found;
}

size_t CountHere(MemTier* tier, const Keys& keys, uint64_t generation) {
  const std::vector<uint8_t> found = Here(tier, keys, generation);
  return static_cast<size_t>(std::count(found.begin(), found.end(), 1));
}

TEST(the_budget_is_never_passed_and_nearly_used) {
  for (const uint32_t row_bytes : {4u, 44u, 80u, 1052u, 70000u}) {
    for (const uint64_t budget : {kTiny, kTiny + 12345, uint64_t{9} << 20, uint64_t{37} << 20}) {
      const auto tier = Open(budget, row_bytes);
      CHECK(tier->bytes() <= budget);
      // More clean rows than fit, in several sorted batches.
      const uint64_t enough =
          std::min<uint64_t>(budget / row_bytes + budget / row_bytes / 4, 300000);
      for (uint64_t part = 0; part < 4; ++part) {
        const Batch batch(Range(1 + enough * part / 4, 1 + enough * (part + 1) / 4), 0, row_bytes);
        CHECK_OK(Insert(tier.get(), batch, true));
        CHECK(tier->bytes() <= budget);
      }
      CHECK(tier->rows() * row_bytes <= tier->bytes());
      // What the budget is for are rows: 17.9 bytes a row go to the index, and some to regions that
      // are not quite full.
      const double usable = static_cast<double>(budget) * row_bytes / (row_bytes + 17.9);
      if (enough == budget / row_bytes + budget / row_bytes / 4 && row_bytes < 1000) {
        CHECK(static_cast<double>(tier->rows()) * row_bytes >= 0.95 * usable);
      }
    }
  }
}

TEST(a_budget_that_holds_nothing_is_refused_with_its_number) {
  CHECK_CODE(MemTier::Open(80, kTiny - 1).status(), Code::kInvalidArgument);
  const Status status = MemTier::Open(2 << 20, kTiny).status();
  CHECK_CODE(status, Code::kInvalidArgument);
  CHECK(test::Contains(status.message(), std::to_string(kTiny)));
}

TEST(eviction_takes_clean_rows_and_never_a_dirty_one) {
  const auto tier = Open();
  const Batch dirty(Range(1, 4001), 1);
  CHECK_OK(tier->Write(dirty.keys.data(), dirty.rows.data(), dirty.keys.size()));
  CHECK_EQ(tier->dirty_rows(), 4000u);
  for (uint64_t part = 1; part <= 10; ++part) {
    CHECK_OK(Insert(tier.get(), Batch(Range(part * 100000, part * 100000 + 20000), 2), true));
    CHECK(tier->bytes() <= kTiny);
  }
  CHECK_EQ(CountHere(tier.get(), dirty.keys, 1), dirty.keys.size());
  CHECK_EQ(tier->dirty_rows(), 4000u);
  CHECK(tier->counters().evicted > 0);
}

TEST(a_row_that_turns_clean_may_go_and_one_that_turns_dirty_stays) {
  const auto tier = Open();
  const Keys keys = Range(1, 2001);
  const Batch old(keys, 0), newer(keys, 1);
  CHECK_OK(Insert(tier.get(), old, true));
  CHECK_EQ(tier->dirty_rows(), 0u);
  CHECK_OK(tier->Write(keys.data(), newer.rows.data(), keys.size()));
  CHECK_EQ(tier->dirty_rows(), 2000u);
  CHECK_EQ(tier->rows(), 2000u);
  CHECK_OK(Insert(tier.get(), newer, true));
  CHECK_EQ(tier->dirty_rows(), 0u);
  CHECK_EQ(CountHere(tier.get(), keys, 1), 2000u);
}

TEST(dirty_rows_that_do_not_fit_are_out_of_space_and_none_of_them_is_written) {
  const auto tier = Open();
  const Batch first(Range(1, 6001), 3);
  CHECK_OK(tier->Write(first.keys.data(), first.rows.data(), first.keys.size()));
  // Far more than fits (taken in, in order, each would probe past all that came before it).
  for (const uint64_t many : {uint64_t{10000}, uint64_t{300000}}) {
    const Batch batch(Range(100000, 100000 + many), 4);
    const Status written = tier->Write(batch.keys.data(), batch.rows.data(), many);
    CHECK_CODE(written, Code::kOutOfSpace);
    CHECK(test::Contains(written.message(), std::to_string(kTiny)));
    CHECK_CODE(Insert(tier.get(), batch, false), Code::kOutOfSpace);
    CHECK_EQ(tier->rows(), 6000u);
    CHECK_EQ(tier->dirty_rows(), 6000u);
  }
  CHECK_EQ(CountHere(tier.get(), first.keys, 3), 6000u);
  // Rows that are here may still change however full it is.
  const Batch second(Range(6001, 10001), 3);
  CHECK_OK(tier->Write(second.keys.data(), second.rows.data(), second.keys.size()));
  const Batch all(Range(1, 10001), 5);
  CHECK_OK(tier->Write(all.keys.data(), all.rows.data(), all.keys.size()));
  CHECK_EQ(CountHere(tier.get(), all.keys, 5), 10000u);
  // Clean rows are turned away without an error, and room that is given back is used again.
  CHECK_OK(Insert(tier.get(), Batch(Range(30000, 40000), 0), true));
  CHECK(tier->counters().not_admitted > 0);
  CHECK_EQ(CountHere(tier.get(), all.keys, 5), 10000u);
  std::vector<char> rows(5000 * kRowBytes);
  std::vector<uint8_t> taken(5000, 0);
  CHECK_OK(tier->Take(all.keys.data(), 5000, rows.data(), taken.data()));
  const Batch more(Range(50000, 54000), 6);
  CHECK_OK(tier->Write(more.keys.data(), more.rows.data(), more.keys.size()));
  CHECK_EQ(CountHere(tier.get(), more.keys, 6), 4000u);
  CHECK(tier->bytes() <= kTiny);
}

TEST(dirty_rows_push_out_clean_ones_wherever_those_are) {
  const auto tier = Open();
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 100001), 0), true));
  const size_t full = tier->rows();
  Keys narrow;  // all at home in one slot
  for (uint64_t i = 0; i < 3000; ++i) narrow.push_back((uint64_t{1} << 63) + i);
  const Batch batch(narrow, 1);
  CHECK_OK(tier->Write(narrow.data(), batch.rows.data(), narrow.size()));
  CHECK_EQ(CountHere(tier.get(), narrow, 1), 3000u);
  CHECK(tier->rows() >= full);
  CHECK(tier->bytes() <= kTiny);
}

TEST(take_gives_each_row_once) {
  const auto tier = Open();
  const Batch batch(Range(1, 3001), 0);
  CHECK_OK(Insert(tier.get(), batch, true));
  const Keys asked = Range(1501, 4001);  // half of them here
  std::vector<char> rows(asked.size() * kRowBytes);
  std::vector<uint8_t> found(asked.size(), 0);
  found[0] = 1;  // an earlier tier had it: not taken
  const uint64_t left = asked[0];
  CHECK_OK(tier->Take(asked.data(), asked.size(), rows.data(), found.data()));
  size_t wrong = 0;
  const std::set<uint64_t> here(batch.keys.begin(), batch.keys.end());
  for (size_t i = 1; i < asked.size(); ++i) {
    wrong += found[i] != here.count(asked[i]);
    const std::vector<char> row = RowOf(asked[i], 0, kRowBytes);
    wrong += found[i] == 1 && !std::equal(row.begin(), row.end(), &rows[i * kRowBytes]);
  }
  CHECK_EQ(wrong, 0u);
  CHECK_EQ(CountHere(tier.get(), Range(1501, 3001), 0), here.count(left));
  CHECK_EQ(CountHere(tier.get(), Range(1, 1501), 0), 1500u);
}

// A lookup probes from a key's home to the next empty slot, so what it costs follows from how
// evenly the rows lie over the key range. A policy that lets a sorted batch gather its rows takes
// time with the square of the batch.
TEST(sorted_batches_far_above_the_budget_leave_the_rows_evenly_spread) {
  const auto tier = Open();
  for (uint64_t round = 0; round < 3; ++round) {
    const Batch batch(Range(round * 200000 + 1, round * 200000 + 200001), round);
    CHECK_OK(Insert(tier.get(), batch, true));
    CHECK(tier->rows() > 10000);
    constexpr size_t kParts = 10;
    std::vector<size_t> held(kParts, 0);
    CHECK_OK(tier->Visit([&](uint64_t key, const char*) {
      ++held[key / (UINT64_MAX / kParts + 1)];
      return Status::Ok();
    }));
    const size_t share = tier->rows() / kParts;
    for (const size_t rows : held) CHECK(rows > share * 3 / 4 && rows < share * 5 / 4);
    // What stays are rows of the newest batch.
    CHECK_EQ(CountHere(tier.get(), batch.keys, round), tier->rows());
  }
  const MemCounters counters = tier->counters();
  CHECK_EQ(counters.evicted + counters.not_admitted + tier->rows(), 600000u);
}

TEST(a_random_life_agrees_with_a_map) {
  for (const bool crowded : {false, true}) {
    const auto tier = Open();
    std::map<uint64_t, uint64_t> model;  // key -> generation, of rows that were put and not taken
    std::set<uint64_t> dirty;
    uint64_t random = crowded ? 1 : 2;
    const uint64_t population = crowded ? 30000 : 6000;  // 10,800 rows fit
    size_t wrong = 0;
    for (uint64_t round = 1; round <= 400; ++round) {
      std::set<uint64_t> chosen;
      for (uint64_t n = Mix(++random) % 400; n > 0; --n)
        chosen.insert(Mix(1 + Mix(++random) % population));
      const Keys keys(chosen.begin(), chosen.end());
      const uint64_t what = Mix(++random) % 4;
      if (what == 0 && dirty.size() < 4000) {
        const Batch batch(keys, round);
        CHECK_OK(tier->Write(keys.data(), batch.rows.data(), keys.size()));
        for (const uint64_t key : keys) model[key] = round;
        dirty.insert(keys.begin(), keys.end());
      } else if (what <= 1) {
        CHECK_OK(Insert(tier.get(), Batch(keys, round), true));
        for (const uint64_t key : keys) {
          model[key] = round;
          dirty.erase(key);
        }
      } else {
        std::vector<char> rows(keys.size() * kRowBytes);
        std::vector<uint8_t> found(keys.size(), 0);
        CHECK_OK(what == 2 ? tier->Read(keys.data(), keys.size(), rows.data(), found.data())
                           : tier->Take(keys.data(), keys.size(), rows.data(), found.data()));
        for (size_t i = 0; i < keys.size(); ++i) {
          const auto it = model.find(keys[i]);
          if (found[i] == 0) {
            // Absent: never put, taken, or clean and evicted.
            wrong += it != model.end() && (!crowded || dirty.count(keys[i]) != 0);
          } else if (it == model.end()) {
            ++wrong;
          } else {
            const std::vector<char> row = RowOf(keys[i], it->second, kRowBytes);
            wrong += !std::equal(row.begin(), row.end(), &rows[i * kRowBytes]);
          }
          if (what == 3 || found[i] == 0) {
            model.erase(keys[i]);
            dirty.erase(keys[i]);
          }
        }
      }
      wrong += tier->bytes() > kTiny;
      wrong += tier->dirty_rows() != dirty.size();
      wrong += crowded ? tier->rows() > model.size() : tier->rows() != model.size();
    }
    CHECK_EQ(wrong, 0u);
    size_t visited = 0;
    CHECK_OK(tier->Visit([&](uint64_t key, const char* row) {
      ++visited;
      const auto it = model.find(key);
      if (it == model.end()) return Error(Code::kCorruption, "a row that was taken");
      const std::vector<char> expected = RowOf(key, it->second, kRowBytes);
      const bool same = std::equal(expected.begin(), expected.end(), row);
      return same ? Status::Ok() : Error(Code::kCorruption, "an old row");
    }));
    CHECK_EQ(visited, tier->rows());
    CHECK_EQ(tier->counters().evicted > 0, crowded);
  }
}

TEST(a_sweep_removes_what_is_not_kept_and_leaves_the_rest_to_be_found) {
  const auto tier = Open();
  const Keys keys = Range(1, 8001);
  const Batch batch(keys, 3);
  CHECK_OK(tier->Write(keys.data(), batch.rows.data(), keys.size()));
  // Every third row goes; the others' last byte is changed.
  Keys gone, left;
  for (const uint64_t key : keys) { (key % 3 == 0 ? gone : left).push_back(key); }
  CHECK_EQ(tier->Sweep([&](uint64_t key, char* row) {
    CHECK(RowOf(key, 3, kRowBytes) == std::vector<char>(row, row + kRowBytes));
    row[kRowBytes - 1] = 'x';
    return key % 3 != 0;
  }),
           gone.size());
  CHECK_EQ(tier->rows(), left.size());
  CHECK_EQ(tier->dirty_rows(), left.size());
  std::vector<uint8_t> found(keys.size());
  tier->Find(gone.data(), gone.size(), found.data());
  CHECK_EQ(std::count(found.begin(), found.begin() + static_cast<ptrdiff_t>(gone.size()), 1), 0);
  size_t wrong = 0;
  std::vector<char> row(kRowBytes);
  for (const uint64_t key : left) {
    uint8_t here = 0;
    CHECK_OK(tier->Read(&key, 1, row.data(), &here));
    std::vector<char> expected = RowOf(key, 3, kRowBytes);
    expected.back() = 'x';
    wrong += here == 0 || row != expected;
  }
  CHECK_EQ(wrong, 0u);
  // What was freed is used again.
  const Batch again(gone, 4);
  CHECK_OK(tier->Write(gone.data(), again.rows.data(), gone.size()));
  CHECK_EQ(tier->rows(), keys.size());
}

// What a life of passes leaves behind: digests of rows, found flags and counters.
struct Outcome {
  std::vector<std::pair<uint64_t, uint64_t>> rows;
  std::vector<std::vector<uint8_t>> found;
  uint64_t evicted = 0, not_admitted = 0;
  size_t dirty = 0;
};

Outcome LifeWith(ThreadPool* pool) {
  const auto tier = Open(uint64_t{12} << 20);  // four ranges
  Outcome outcome;
  for (uint64_t pass = 0; pass < 6; ++pass) {
    const Batch batch(Range(pass * 30000 + 1, pass * 30000 + 90001), pass);
    std::vector<char> rows(batch.rows.size());
    std::vector<uint8_t> found(batch.keys.size(), 0);
    CHECK_OK(tier->Take(batch.keys.data(), batch.keys.size(), rows.data(), found.data(), pool));
    size_t wrong = 0;  // what comes back of a key is what was last put
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == 0) continue;
      const std::vector<char> row = RowOf(batch.keys[i], pass - 1, kRowBytes);
      wrong += !std::equal(row.begin(), row.end(), &rows[i * kRowBytes]);
    }
    CHECK_EQ(wrong, 0u);
    outcome.found.push_back(found);
    CHECK_OK(
        tier->Insert(batch.keys.data(), batch.pointers.data(), batch.keys.size(), pass != 2, pool));
  }
  CHECK_OK(tier->Visit([&](uint64_t key, const char* row) {
    outcome.rows.emplace_back(key, HashBytes(row, kRowBytes, 0));
    return Status::Ok();
  }));
  outcome.evicted = tier->counters().evicted;
  outcome.not_admitted = tier->counters().not_admitted;
  outcome.dirty = tier->dirty_rows();
  CHECK_EQ(outcome.rows.size(), tier->rows());
  return outcome;
}

TEST(any_number_of_threads_leaves_the_same_rows) {
  const Outcome alone = LifeWith(nullptr);
  CHECK(alone.evicted > 0);
  CHECK(alone.dirty > 0);
  for (const int threads : {1, 2, 5}) {
    if (test::kSanitized && threads != 5) continue;
    ThreadPool pool(threads);
    const Outcome shared = LifeWith(&pool);
    CHECK(shared.rows == alone.rows);
    CHECK(shared.found == alone.found);
    CHECK_EQ(shared.evicted, alone.evicted);
    CHECK_EQ(shared.not_admitted, alone.not_admitted);
    CHECK_EQ(shared.dirty, alone.dirty);
  }
}

// Ranges have shares, and dirty rows do not keep to them.
TEST(dirty_rows_of_one_range_take_the_room_of_the_others) {
  const uint64_t budget = uint64_t{12} << 20;
  const auto tier = Open(budget);
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 200001), 0), true));
  const size_t full = tier->rows();
  Keys lower;  // a quarter of the keys that are expected, and more than that of the rows
  for (const uint64_t key : Range(1, 1000001)) {
    if (key < UINT64_MAX / 4 && lower.size() < full / 4 * 23 / 20) lower.push_back(key);
  }
  const Batch batch(lower, 1);
  CHECK_OK(tier->Write(lower.data(), batch.rows.data(), lower.size()));
  CHECK_EQ(CountHere(tier.get(), lower, 1), lower.size());
  CHECK_EQ(tier->dirty_rows(), lower.size());
  CHECK(tier->bytes() <= budget);
  // Up to the last row: what is left is for any key.
  Keys upper;
  for (const uint64_t key : Range(2000001, 3000001)) {
    if (key > UINT64_MAX / 4) upper.push_back(key);
  }
  Keys rest;
  const size_t room = [&] {
    const Status status =
        tier->Write(upper.data(), std::vector<char>(upper.size() * kRowBytes).data(), upper.size());
    CHECK_CODE(status, Code::kOutOfSpace);
    const std::string& message = status.message();
    return std::stoul(message.substr(message.find("hold ") + 5)) - lower.size();
  }();
  for (size_t i = 0; i < room; ++i) rest.push_back(upper[i * upper.size() / room]);
  const Batch last(rest, 2);
  CHECK_OK(tier->Write(rest.data(), last.rows.data(), rest.size()));
  CHECK_EQ(CountHere(tier.get(), lower, 1), lower.size());
  CHECK_EQ(CountHere(tier.get(), rest, 2), rest.size());
  CHECK_CODE(tier->Write(&upper[1], last.rows.data(), 1), Code::kOutOfSpace);
  CHECK(tier->bytes() <= budget);
}

TEST(dirty_rows_that_crowd_one_range_are_out_of_space_and_none_of_them_is_written) {
  const auto tier = Open(uint64_t{12} << 20);
  Keys narrow;
  for (uint64_t i = 0; i < 60000; ++i) narrow.push_back((uint64_t{1} << 63) + i);
  const Batch batch(narrow, 1);
  const Status status = tier->Write(narrow.data(), batch.rows.data(), narrow.size());
  CHECK_CODE(status, Code::kOutOfSpace);
  CHECK(test::Contains(status.message(), "60000 rows"));
  CHECK(test::Contains(status.message(), "one of"));
  CHECK_EQ(tier->rows(), 0u);
}

// A rank owns a range of keys: the whole tier is for them.
TEST(a_tier_for_a_range_of_keys_holds_as_many_of_them) {
  const uint64_t budget = uint64_t{12} << 20;
  Keys own;
  for (const uint64_t key : Range(1, 800001)) {
    if (key >= UINT64_MAX / 8 * 3 && key <= UINT64_MAX / 8 * 4) own.push_back(key);
  }
  auto made = MemTier::Open(kRowBytes, budget, {UINT64_MAX / 8 * 3, UINT64_MAX / 8 * 4});
  CHECK_OK(made.status());
  MemTier* tier = made.value().get();
  const Batch batch(own, 0);
  CHECK(own.size() > 95000 && own.size() * (kRowBytes + 18) < budget);
  CHECK_OK(tier->Write(own.data(), batch.rows.data(), own.size()));
  CHECK_EQ(CountHere(tier, own, 0), own.size());
  // Keys outside are legal.
  const Keys outside = {1, 2, UINT64_MAX - 1, UINT64_MAX};
  const Batch few(outside, 3);
  CHECK_OK(tier->Write(outside.data(), few.rows.data(), outside.size()));
  CHECK_EQ(CountHere(tier, outside, 3), outside.size());
  for (const KeyRange one : {KeyRange{5, 5}, KeyRange{0, 0}, KeyRange{UINT64_MAX, UINT64_MAX}}) {
    auto narrow = MemTier::Open(kRowBytes, kTiny, one);
    CHECK_OK(narrow.status());
    CHECK_OK(narrow.value()->Write(outside.data(), few.rows.data(), outside.size()));
    CHECK_EQ(CountHere(narrow.value().get(), outside, 3), outside.size());
  }
  CHECK_CODE(MemTier::Open(kRowBytes, budget, {7, 6}).status(), Code::kInvalidArgument);
}

// Passes come and go: rows are taken, and others come back. A tier whose rows drift from their
// homes, or whose free rows get lost, shows here.
TEST(after_many_passes_there_is_room_for_as_many_rows_as_at_first) {
  const auto tier = Open();
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 100001), 0), true));
  const size_t full = tier->rows();
  uint64_t random = 3;
  for (uint64_t pass = 1; pass <= 60; ++pass) {
    std::set<uint64_t> chosen;
    while (chosen.size() < 8000) chosen.insert(Mix(1 + Mix(++random) % 20000));
    const Keys keys(chosen.begin(), chosen.end());
    std::vector<char> rows(keys.size() * kRowBytes);
    std::vector<uint8_t> found(keys.size(), 0);
    CHECK_OK(tier->Take(keys.data(), keys.size(), rows.data(), found.data()));
    CHECK_OK(Insert(tier.get(), Batch(keys, pass), true));
  }
  CHECK(tier->rows() > full * 95 / 100);
  const size_t room = full * 98 / 100;
  const Batch dirty(Range(1000000, 1000000 + room), 7);
  CHECK_OK(tier->Write(dirty.keys.data(), dirty.rows.data(), room));
  CHECK_EQ(CountHere(tier.get(), dirty.keys, 7), room);
}

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Sanitizers keep books of their own beside each byte.
constexpr bool kOwnMemory = !test::kSanitized;

TEST(a_full_tier_takes_its_budget_from_the_system_to_two_percent) {
  const uint64_t parts = kOwnMemory ? 32 : 4;  // 3.2 M rows, of which 2.8 M fit; or an eighth
  const uint64_t budget = parts << 23;
  const Batch batch(Range(1, 100001), 0);
  std::vector<uint64_t> keys(batch.keys.size());
  const size_t before = ResidentBytes();
  const auto tier = Open(budget);
  for (uint64_t part = 0; part < parts; ++part) {
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = batch.keys[i] + part * 1000003;
    CHECK_OK(tier->Insert(keys.data(), batch.pointers.data(), keys.size(), true));
  }
  const auto near = [](size_t a, size_t b) {
    return static_cast<double>(a) > 0.98 * static_cast<double>(b) &&
           static_cast<double>(b) > 0.98 * static_cast<double>(a);
  };
  CHECK(tier->bytes() <= budget);
  CHECK(near(tier->bytes(), budget));
  if (kOwnMemory) CHECK(near(ResidentBytes() - before, budget));
}

TEST(hits_and_questions_are_counted) {
  const auto tier = Open();
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 101), 0), true));
  CountHere(tier.get(), Range(51, 151), 0);
  CHECK_EQ(tier->counters().keys_asked, 100u);
  CHECK_EQ(tier->counters().hits, 50u);
}

}  // namespace
}  // namespace pbx
