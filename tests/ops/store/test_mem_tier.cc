#include "store/mem_tier.h"

#include <algorithm>
#include <cstdint>
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
      // What the budget is for are rows: 16.3 bytes a row go to the index, and up to two sixteenths
      // to whole chunks and to regions that are not quite full.
      const double usable = static_cast<double>(budget) * row_bytes / (row_bytes + 16.3);
      if (enough == budget / row_bytes + budget / row_bytes / 4 && row_bytes < 1000) {
        CHECK(static_cast<double>(tier->rows()) * row_bytes >= 0.85 * usable);
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
  std::map<std::vector<char>, uint64_t> key_of;
  Keys gone, left;
  for (const uint64_t key : keys) {
    key_of[RowOf(key, 3, kRowBytes)] = key;
    (key % 3 == 0 ? gone : left).push_back(key);
  }
  CHECK_EQ(tier->Sweep([&](char* row) {
    const uint64_t key = key_of.at(std::vector<char>(row, row + kRowBytes));
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

TEST(hits_and_questions_are_counted) {
  const auto tier = Open();
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 101), 0), true));
  CountHere(tier.get(), Range(51, 151), 0);
  CHECK_EQ(tier->counters().keys_asked, 100u);
  CHECK_EQ(tier->counters().hits, 50u);
}

}  // namespace
}  // namespace pbx
