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

TEST(full_of_dirty_rows_is_out_of_space_and_keeps_what_was_written) {
  const auto tier = Open();
  const Batch batch(Range(1, 20001), 3);  // 1.6 MB of rows
  const Status status = tier->Write(batch.keys.data(), batch.rows.data(), batch.keys.size());
  CHECK_CODE(status, Code::kOutOfSpace);
  CHECK(test::Contains(status.message(), std::to_string(kTiny)));
  const size_t written = tier->rows();
  CHECK(written > 10000 - 2000);  // 80 of every 96.3 bytes, less a chunk
  CHECK_EQ(tier->dirty_rows(), written);
  const std::vector<uint8_t> found = Here(tier.get(), batch.keys, 3);
  const auto absent = std::find(found.begin(), found.end(), uint8_t{0});
  CHECK_EQ(static_cast<size_t>(absent - found.begin()), written);  // the first ones, in order
  CHECK(std::count(absent, found.end(), 1) == 0);
  // Rows that are here may still change, and clean ones are turned away without an error.
  CHECK_OK(tier->Write(batch.keys.data(), Batch(Range(1, 20001), 4).rows.data(), written));
  CHECK_OK(Insert(tier.get(), Batch(Range(30000, 31000), 0), true));
  CHECK_EQ(tier->counters().not_admitted, 1000u);
  // Room that is given back is used again.
  std::vector<char> rows(written * kRowBytes);
  std::vector<uint8_t> taken(written, 0);
  CHECK_OK(tier->Take(batch.keys.data(), 500, rows.data(), taken.data()));
  const Batch more(Range(40000, 40400), 5);
  CHECK_OK(tier->Write(more.keys.data(), more.rows.data(), more.keys.size()));
  CHECK_EQ(CountHere(tier.get(), more.keys, 5), 400u);
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

// One clock for the whole index took time that grew with the square of the batch. What a put costs
// now is bounded by what it may look at, and the rows that stay are those that came last.
TEST(sorted_batches_far_above_the_budget_keep_the_tier_full_and_even) {
  const auto tier = Open();
  Keys last;
  for (uint64_t round = 0; round < 5; ++round) {
    last = Range(round * 200000 + 1, round * 200000 + 200001);
    CHECK_OK(Insert(tier.get(), Batch(last, round), true));
  }
  const std::vector<uint8_t> found = Here(tier.get(), last, 4);
  CHECK(tier->rows() > 8000);
  // Every tenth of the key range holds its share, so no end of the batch pushed out the other.
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    const auto begin = found.begin() + static_cast<std::ptrdiff_t>(found.size() / 10 * tenth);
    const auto held = std::count(begin, begin + static_cast<std::ptrdiff_t>(found.size() / 10), 1);
    CHECK(static_cast<size_t>(held) * 10 > tier->rows() / 2);
  }
  // Each row that came in made at most one go.
  const MemCounters counters = tier->counters();
  CHECK(counters.evicted + counters.not_admitted + tier->rows() <= 1000000);
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

TEST(hits_and_questions_are_counted) {
  const auto tier = Open();
  CHECK_OK(Insert(tier.get(), Batch(Range(1, 101), 0), true));
  CountHere(tier.get(), Range(51, 151), 0);
  CHECK_EQ(tier->counters().keys_asked, 100u);
  CHECK_EQ(tier->counters().hits, 50u);
}

}  // namespace
}  // namespace pbx
