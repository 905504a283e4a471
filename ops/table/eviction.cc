// Eviction: finds and deletes the rows of the lowest ranks (rule/life.h) of a table that must not
// grow.
#include <algorithm>
#include <utility>

#include "table/table.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 4096;
constexpr size_t kDigits = size_t{1} << Table::kRankDigitBits;
__extension__ typedef unsigned __int128 Wide;

Wide Joined(const EvictionRank& rank) {
  return Wide{rank.day} << 96 | Wide{rank.score} << 64 | rank.key;
}

// Counts live rows by one digit of their ranks.
class RankCounter {
 public:
  RankCounter(const AccessorConfig& config, const std::vector<LifeEvent>& events, bool by_day,
              const EvictionRank& prefix, int shift)
      : config_(config),
        events_(events),
        by_day_(by_day),
        shift_(shift),
        prefix_(Joined(prefix) >> (shift + Table::kRankDigitBits)),
        counts_(kDigits) {}

  // row: of a tier or of a pass; only its first words are read.
  void Add(uint64_t key, const char* row) {
    float head[life::kHeadWords];
    std::copy_n(reinterpret_cast<const float*>(row), life::kHeadWords, head);
    if (!life::Survives(config_, events_.data(), events_.size(), key, head)) return;
    const Wide rank = Joined(life::RankOf(config_, by_day_, key, head));
    if (rank >> (shift_ + Table::kRankDigitBits) != prefix_) return;
    ++counts_[static_cast<size_t>(rank >> shift_) & (kDigits - 1)];
  }

  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  const AccessorConfig& config_;
  const std::vector<LifeEvent>& events_;
  const bool by_day_;
  const int shift_;
  const Wide prefix_;
  std::vector<uint64_t> counts_;
};

}  // namespace

Result<std::vector<uint64_t>> Table::CountRanks(bool by_day, const EvictionRank& prefix,
                                                int shift) const {
  std::shared_ptr<const PassTable> frozen;
  std::vector<LifeEvent> events;
  {
    const std::lock_guard<std::mutex> lock(residency_);
    if (training_ != nullptr) {
      return Error(Code::kFailedPrecondition,
                   "table '%s': pass %d is open; rows can be evicted after its end_pass",
                   config_.name.c_str(), training_->stamp);
    }
    frozen = frozen_;
    events = events_;
  }
  const size_t tasks = ssd_ == nullptr ? 1 : static_cast<size_t>(pool_->threads());
  std::vector<RankCounter> counters(tasks, {config_.accessor, events, by_day, prefix, shift});
  std::vector<Status> read(tasks, Status::Ok());
  if (ssd_ == nullptr) {
    CountInMemory(frozen.get(), [&](uint64_t key, const char* row) { counters[0].Add(key, row); });
  } else {
    const uint64_t step = UINT64_MAX / tasks;
    pool_->ParallelFor(tasks, [&](size_t task) {
      const uint64_t low = task * step;
      const uint64_t high = task + 1 == tasks ? UINT64_MAX : low + step - 1;
      read[task] = VisitEnded(frozen.get(), low, high,
                              [&](uint64_t key, const char* row) { counters[task].Add(key, row); });
    });
  }
  for (const Status& status : read) PBX_RETURN_IF_ERROR(status);
  std::vector<uint64_t> sums(kDigits);
  for (const RankCounter& counter : counters) {
    for (size_t i = 0; i < kDigits; ++i) sums[i] += counter.counts()[i];
  }
  return Result<std::vector<uint64_t>>(std::move(sums));
}

// Visits the rows with keys in [low, high] on SSD, but those that the ended pass has changed as it
// left them, in ascending order of key.
Status Table::VisitEnded(const PassTable* frozen, uint64_t low, uint64_t high,
                         const std::function<void(uint64_t key, const char* row)>& visit) const {
  static const std::vector<uint64_t> kNone;
  const std::vector<uint64_t>& keys = frozen == nullptr ? kNone : frozen->table->keys();
  auto at = static_cast<size_t>(std::lower_bound(keys.begin(), keys.end(), low) - keys.begin());
  const auto changed = [&](size_t i) { return frozen->touched[i] != 0; };
  PBX_RETURN_IF_ERROR(ssd_->Visit(low, high, [&](uint64_t key, const char* row) {
    for (; at < keys.size() && keys[at] < key; ++at) {
      if (changed(at)) visit(keys[at], frozen->table->row(at));
    }
    const bool newer = at < keys.size() && keys[at] == key && changed(at);
    if (!newer) visit(key, row);
    return Status::Ok();
  }));
  for (; at < keys.size() && keys[at] <= high; ++at) {
    if (changed(at)) visit(keys[at], frozen->table->row(at));
  }
  return Status::Ok();
}

// The same for a table without an SSD tier, in any order.
void Table::CountInMemory(const PassTable* frozen,
                          const std::function<void(uint64_t key, const char* row)>& visit) const {
  std::unique_lock<std::mutex> lock(residency_);
  staged_.wait(lock, [&] { return staging_ == nullptr; });
  const auto in_frozen = [&](uint64_t key) {
    const int64_t at = frozen == nullptr ? -1 : frozen->table->index().Find(key);
    return at >= 0 && frozen->Exists(static_cast<size_t>(at));
  };
  for (const PassTable* pass : {frozen, static_cast<const PassTable*>(staged_train_.get())}) {
    for (size_t i = 0; pass != nullptr && i < pass->rows(); ++i) {
      const uint64_t key = pass->table->keys()[i];
      if (pass->Exists(i) && (pass == frozen || !in_frozen(key))) visit(key, pass->table->row(i));
    }
  }
  // The rows of passes are not in MEM, so no row is visited twice.
  (void)mem_->Visit([&](uint64_t key, const char* row) {
    visit(key, row);
    return Status::Ok();
  });
}

uint64_t Table::ended_new_rows() const {
  const std::lock_guard<std::mutex> lock(residency_);
  uint64_t rows = 0;
  for (size_t i = 0; frozen_ != nullptr && i < frozen_->rows(); ++i) {
    rows += frozen_->Created(i) && frozen_->touched[i] != 0 ? 1 : 0;
  }
  return rows;
}

Status Table::Evict(bool by_day, const EvictionRank& lowest) {
  std::unique_lock<std::mutex> lock(residency_);
  if (training_ != nullptr || frozen_ == nullptr || frozen_->written) {
    return Error(Code::kFailedPrecondition,
                 "table '%s': rows are evicted between end_pass and the commit of the pass",
                 config_.name.c_str());
  }
  LifeEvent event;
  event.seq = LastSeq() + 1;
  event.kind = LifeKind::kEvict;
  event.by_day = by_day;
  event.lowest = lowest;
  events_.push_back(event);
  pass_events_.push_back(event);
  PassTable& ended = *frozen_;
  pool_->ParallelRanges(ended.rows(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      // A row with a stored copy stays: it must hide the copy.
      if (!ended.Exists(i) || (ssd_ != nullptr && !ended.Created(i))) continue;
      float head[life::kHeadWords];
      std::copy_n(reinterpret_cast<const float*>(ended.table->row(i)), life::kHeadWords, head);
      if (life::Survives(config_.accessor, events_.data(), events_.size(), ended.table->keys()[i],
                         head)) {
        continue;
      }
      ended.touched[i] = 0;
      ended.origin[i] = Origin::kDead;
    }
  });
  if (ssd_ == nullptr) SweepMem();
  BringStagedUpToDate();
  return Status::Ok();
}

// Removes dead rows, which no merge would reach. The caller holds residency_.
void Table::SweepMem() {
  dead_swept_ += mem_->Sweep([&](uint64_t key, char* row) {
    return life::ApplyPacked(config_.accessor, codec_, events_.data(), events_.size(), key, row);
  });
}

}  // namespace pbx
