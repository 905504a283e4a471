// What every tier promises (store/tier.h), as one suite that each tier runs: TierSuite takes a
// factory and knows nothing else of the tier.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "scratch.h"
#include "store/tier.h"

namespace pbx::test {

class TierSuite {
 public:
  static constexpr uint32_t kRowBytes = 48;
  using Keys = std::vector<uint64_t>;
  using Model = std::map<uint64_t, std::vector<char>>;
  using Factory = std::function<std::unique_ptr<Tier>()>;  // an empty tier of rows of kRowBytes

  explicit TierSuite(Factory factory) : factory_(std::move(factory)) {}

  void Run() const {
    AnEmptyTierHoldsNothing();
    EmptyBatchesAreNothing();
    TheSmallestAndTheLargestKeyAreKeys();
    TheNewestWriteOfAKeyWins();
    FoundKeysAreLeftAlone();
    AbsentKeysLeaveTheirRowsAlone();
    VisitIsInOrderAndStopsAtTheFirstError();
    ALargeBatchIsHeldWhole();
    RandomBatchesAgreeWithAMap();
    ReadsAndVisitsRunSideBySide();
  }

 private:
  // Keys Mix(begin) .. Mix(end - 1) in order: uniform, as a tier may expect them to be.
  static Keys Range(uint64_t begin, uint64_t end) {
    Keys keys;
    for (uint64_t i = begin; i < end; ++i) keys.push_back(Mix(i));
    std::sort(keys.begin(), keys.end());
    return keys;
  }

  static void Write(Tier* tier, const Keys& keys, uint64_t generation, Model* model) {
    std::vector<char> rows;
    for (const uint64_t key : keys) {
      const std::vector<char> row = RowOf(key, generation, kRowBytes);
      rows.insert(rows.end(), row.begin(), row.end());
      (*model)[key] = row;
    }
    CHECK_OK(tier->Write(keys.data(), rows.data(), keys.size()));
  }

  // Every row of the model, and none besides: by Read, by Visit and by the count.
  static void CheckHolds(Tier* tier, const Keys& asked, const Model& model) {
    std::vector<char> rows(asked.size() * kRowBytes, 'u');
    std::vector<uint8_t> found(asked.size(), 0);
    CHECK_OK(tier->Read(asked.data(), asked.size(), rows.data(), found.data()));
    const std::vector<char> untouched(kRowBytes, 'u');
    size_t wrong = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto it = model.find(asked[i]);
      const std::vector<char>& expected = it == model.end() ? untouched : it->second;
      wrong += found[i] != (it == model.end() ? 0 : 1) ||
               !std::equal(expected.begin(), expected.end(), &rows[i * kRowBytes]);
    }
    CHECK_EQ(wrong, 0u);
    auto next = model.begin();
    CHECK_OK(tier->Visit([&](uint64_t key, const char* row) {
      const bool right = next != model.end() && next->first == key &&
                         std::equal(next->second.begin(), next->second.end(), row);
      if (!right) return Error(Code::kCorruption, "not the model's key and row");
      ++next;
      return Status::Ok();
    }));
    CHECK(next == model.end());
    CHECK(tier->rows() >= model.size());
    CHECK_EQ(tier->rows() == 0, model.empty());
    CHECK(model.empty() || tier->bytes() >= model.size() * kRowBytes);
  }

  void AnEmptyTierHoldsNothing() const {
    const auto tier = factory_();
    CheckHolds(tier.get(), Range(1, 100), {});
  }

  void EmptyBatchesAreNothing() const {
    const auto tier = factory_();
    CHECK_OK(tier->Write(nullptr, nullptr, 0));
    CHECK_OK(tier->Read(nullptr, 0, nullptr, nullptr));
    CHECK_EQ(tier->rows(), 0u);
    Model model;
    Write(tier.get(), Range(1, 10), 0, &model);
    CHECK_OK(tier->Write(nullptr, nullptr, 0));
    CHECK_OK(tier->Read(nullptr, 0, nullptr, nullptr));
    CheckHolds(tier.get(), Range(1, 10), model);
  }

  void TheSmallestAndTheLargestKeyAreKeys() const {
    const auto tier = factory_();
    Model model;
    Write(tier.get(), {1, UINT64_MAX}, 0, &model);
    CheckHolds(tier.get(), {1, 2, UINT64_MAX - 1, UINT64_MAX}, model);
    Write(tier.get(), {1, 2, UINT64_MAX - 1, UINT64_MAX}, 1, &model);
    CheckHolds(tier.get(), {1, 2, 3, UINT64_MAX - 2, UINT64_MAX - 1, UINT64_MAX}, model);
  }

  void TheNewestWriteOfAKeyWins() const {
    const auto tier = factory_();
    Model model;
    Write(tier.get(), Range(1, 1000), 0, &model);
    Write(tier.get(), Range(500, 1500), 1, &model);
    Write(tier.get(), Range(900, 901), 2, &model);
    CheckHolds(tier.get(), Range(1, 2000), model);
  }

  void FoundKeysAreLeftAlone() const {
    const auto tier = factory_();
    Model model;
    const Keys keys = Range(1, 1000);
    Write(tier.get(), keys, 0, &model);
    std::vector<char> rows(keys.size() * kRowBytes, 'u');
    std::vector<uint8_t> found(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) found[i] = i % 3 == 0;  // by an earlier tier
    CHECK_OK(tier->Read(keys.data(), keys.size(), rows.data(), found.data()));
    const std::vector<char> untouched(kRowBytes, 'u');
    size_t wrong = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::vector<char>& expected = i % 3 == 0 ? untouched : model[keys[i]];
      wrong += found[i] != 1 || !std::equal(expected.begin(), expected.end(), &rows[i * kRowBytes]);
    }
    CHECK_EQ(wrong, 0u);
  }

  void AbsentKeysLeaveTheirRowsAlone() const {
    const auto tier = factory_();
    Model model;
    Write(tier.get(), Range(1, 500), 0, &model);
    CheckHolds(tier.get(), Range(500, 3000), model);
  }

  void VisitIsInOrderAndStopsAtTheFirstError() const {
    const auto tier = factory_();
    Model model;
    Write(tier.get(), Range(1, 200), 0, &model);
    Write(tier.get(), Range(100, 300), 1, &model);
    Keys seen;
    const Status stopped = tier->Visit([&](uint64_t key, const char*) {
      seen.push_back(key);
      return seen.size() == 150 ? Error(Code::kIOError, "enough") : Status::Ok();
    });
    CHECK_CODE(stopped, Code::kIOError);
    CHECK(stopped.message() == "enough");
    const Keys all = Range(1, 300);
    CHECK(seen == Keys(all.begin(), all.begin() + 150));
  }

  void ALargeBatchIsHeldWhole() const {
    const auto tier = factory_();
    Model model;
    const Keys keys = Range(1, 100001);
    Write(tier.get(), keys, 0, &model);
    CheckHolds(tier.get(), keys, model);
  }

  void RandomBatchesAgreeWithAMap() const {
    const auto tier = factory_();
    Model model;
    uint64_t random = 1;
    for (uint64_t round = 0; round < 40; ++round) {
      std::set<uint64_t> batch;
      const uint64_t size = Mix(++random) % (round % 4 == 0 ? 1000 : 20);
      while (batch.size() < size) batch.insert(Mix(1 + Mix(++random) % 3000));
      const Keys keys(batch.begin(), batch.end());
      Write(tier.get(), keys, round, &model);
      CheckHolds(tier.get(), keys, model);
    }
    CheckHolds(tier.get(), Range(1, 4000), model);
  }

  void ReadsAndVisitsRunSideBySide() const {
    const auto tier = factory_();
    Model model;
    const Keys keys = Range(1, 2000);
    Write(tier.get(), keys, 0, &model);
    std::vector<std::thread> threads;
    std::vector<size_t> right(4, 0);
    for (size_t t = 0; t < right.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 5; ++round) {
          std::vector<char> rows(keys.size() * kRowBytes);
          std::vector<uint8_t> found(keys.size(), 0);
          const Status read = tier->Read(keys.data(), keys.size(), rows.data(), found.data());
          right[t] +=
              read.ok() ? static_cast<size_t>(std::count(found.begin(), found.end(), 1)) : 0;
          const Status visit = tier->Visit([&](uint64_t key, const char* row) {
            right[t] += std::equal(row, row + kRowBytes, model.find(key)->second.begin());
            return Status::Ok();
          });
          right[t] -= visit.ok() ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const size_t count : right) CHECK_EQ(count, 2 * 5 * keys.size());
  }

  Factory factory_;
};

}  // namespace pbx::test
