// Staging: moves the rows of a pass from the tiers into its table, and back.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/sorted_merge.h"
#include "table/table.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 4096;

void MarkOrigin(const std::vector<uint8_t>& found, Origin origin, std::vector<Origin>* origins) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != 0 && (*origins)[i] == Origin::kNew) (*origins)[i] = origin;
  }
}

// Copies the rows of `from` that exist and are among keys. rows: (n, row_bytes).
void CopyExisting(const PassTable& from, const std::vector<uint64_t>& keys, char* rows,
                  std::vector<uint8_t>* found) {
  const std::vector<uint64_t>& theirs = from.table->keys();
  const size_t row_bytes = from.table->row_bytes();
  ForEachCommon(keys.data(), keys.size(), theirs.data(), theirs.size(), [&](size_t i, size_t j) {
    if ((*found)[i] != 0 || !from.Exists(j)) return;
    std::memcpy(rows + i * row_bytes, from.table->row(j), row_bytes);
    (*found)[i] = 1;
  });
}

}  // namespace

Status Table::CheckStage(const uint64_t* keys, size_t n, Purpose purpose) const {
  if (n > max_pass_rows()) {
    return Error(Code::kOutOfSpace,
                 "hbm.budget_bytes: a pass of %zu rows needs %" PRIu64
                 " bytes (three pass tables of "
                 "%" PRIu64 " bytes per row), the budget is %" PRIu64,
                 n, 3 * n * PassTable::BytesPerRow(row_bytes()),
                 PassTable::BytesPerRow(row_bytes()), config_.hbm_budget_bytes);
  }
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] <= (i == 0 ? 0 : keys[i - 1])) {
      return Error(Code::kInvalidArgument,
                   "pass keys: key %zu is not above the key before it, or is padding", i);
    }
  }
  if (purpose == Purpose::kTrain && config_.read_only) {
    return Error(Code::kFailedPrecondition,
                 "table '%s' is read-only: it takes only passes for evaluation",
                 config_.name.c_str());
  }
  return Status::Ok();
}

void Table::CreateRow(PassTable* pass, size_t id) const {
  float* row = reinterpret_cast<float*>(pass->table->row(id));
  accessor::Create(config_.accessor, pass->table->keys()[id],
                   pass->slots.empty() ? uint16_t{0} : pass->slots[id], row);
  SetWord(row, RowLayout::kLifeSeq, LastSeq());
}

// Applies the life events that the found rows have not seen. A row that an event deletes becomes
// not found.
void Table::BringUpToDate(PassTable* pass, uint8_t* found) {
  if (events_.empty()) return;
  staging_pool_->ParallelRanges(pass->rows(), kRowsPerTask, [&](size_t begin, size_t end) {
    uint64_t dead = 0;
    for (size_t i = begin; i < end; ++i) {
      if (found[i] == 0) continue;
      if (pass->Created(i)) {
        found[i] = 0;  // the pass that held the row did not create it, so it is a new row
        continue;
      }
      if (life::Apply(config_.accessor, codec_, events_.data(), events_.size(),
                      pass->table->keys()[i], reinterpret_cast<float*>(pass->table->row(i)))) {
        continue;
      }
      found[i] = 0;
      pass->origin[i] = Origin::kDead;
      ++dead;
    }
    dead_staged_ += dead;
  });
}

Result<StagedPass> Table::Stage(const uint64_t* keys, const uint16_t* slots, size_t n,
                                Purpose purpose, uint32_t day) {
  const bool train = purpose == Purpose::kTrain;
  PBX_RETURN_IF_ERROR(CheckStage(keys, n, purpose));
  auto pass = std::make_shared<PassTable>();
  pass->purpose = purpose;
  pass->day = day;
  const std::vector<uint64_t> wanted(keys, keys + n);
  Result<std::unique_ptr<HbmTier>> built = HbmTier::Build(row_bytes(), wanted);
  if (!built.ok()) return built.status();
  pass->table = std::move(built.value());
  pass->origin.assign(n, Origin::kNew);
  if (slots != nullptr) pass->slots.assign(slots, slots + n);
  char* rows = n == 0 ? nullptr : pass->table->row(0);
  // If the tiers hold packed rows, they are first read into a buffer.
  Buffer packed;
  if (!codec_.identity()) {
    auto memory = Buffer::Allocate(n * stored_row_bytes());
    if (!memory.ok()) return memory.status();
    packed = std::move(memory.value());
  }
  char* stored = codec_.identity() ? rows : packed.data();

  std::vector<uint8_t> found(n, 0);
  {
    std::unique_lock<std::mutex> lock(residency_);
    // Rows that one Stage is reading cannot be read by another Stage.
    if (!train) staged_.wait(lock, [&] { return staging_ == nullptr; });
    if (abandoned_) {
      return Error(Code::kFailedPrecondition,
                   "table '%s': a pass was abandoned; reopen the table at its last commit",
                   config_.name.c_str());
    }
    if (train && (staged_train_ != nullptr || staging_ != nullptr)) {
      return Error(Code::kFailedPrecondition, "pass %d is staged already: begin_pass it first",
                   staged_train_ != nullptr ? staged_train_->stamp : staging_->stamp);
    }
    if (!train && training_ != nullptr && training_->purpose == Purpose::kTrain) {
      return Error(Code::kFailedPrecondition,
                   "pass %d trains: an evaluation can be staged after its end_pass",
                   training_->stamp);
    }
    if (train && training_ != nullptr && training_->purpose == Purpose::kTrain) {
      const std::vector<uint64_t>& held = training_->table->keys();
      ForEachCommon(wanted.data(), n, held.data(), held.size(), [&](size_t i, size_t) {
        pass->awaited.push_back(static_cast<uint32_t>(i));
        found[i] = 1;
        // The row is created here too, because the pass that holds it may end without creating it.
        CreateRow(pass.get(), i);
      });
    }
    for (const std::shared_ptr<PassTable>& holder : {frozen_, train ? nullptr : staged_train_}) {
      if (holder != nullptr) CopyExisting(*holder, wanted, rows, &found);
    }
    MarkOrigin(found, Origin::kHbm, &pass->origin);
    PBX_RETURN_IF_ERROR(train ? mem_->Take(keys, n, stored, found.data(), mem_pool_.get())
                              : mem_->Read(keys, n, stored, found.data()));
    MarkOrigin(found, Origin::kMem, &pass->origin);
    pass->stamp = next_stamp_++;
    // From here on the rows belong to this pass, also while SSD is read without the lock.
    if (train) staging_ = pass;
  }

  std::vector<uint8_t> known = found;
  const Status read = ssd_ == nullptr ? Status::Ok() : ssd_->Read(keys, n, stored, found.data());

  std::unique_lock<std::mutex> lock(residency_);
  if (train) staging_ = nullptr;
  staged_.notify_all();
  // After an error no row is lost: rows taken from MEM are also on SSD.
  PBX_RETURN_IF_ERROR(read);
  if (abandoned_) {
    return Error(Code::kFailedPrecondition,
                 "table '%s': a pass was abandoned; reopen the table at its last commit",
                 config_.name.c_str());
  }
  for (size_t i = 0; i < n; ++i) {
    if (found[i] != 0 && known[i] == 0) pass->origin[i] = Origin::kSsd;
  }
  if (!codec_.identity()) {
    staging_pool_->ParallelRanges(n, kRowsPerTask, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (pass->origin[i] != Origin::kMem && pass->origin[i] != Origin::kSsd) continue;
        codec_.Unpack(stored + i * stored_row_bytes(),
                      reinterpret_cast<float*>(pass->table->row(i)));
      }
    });
  }
  BringUpToDate(pass.get(), found.data());
  if (!train) return FinishEvaluation(pass, found);
  Result<StagedPass> staged = FinishTraining(pass, found);
  if (device_ == nullptr || !staged.ok()) return staged;
  const std::lock_guard<std::mutex> copying(to_device_);
  const std::vector<uint32_t> awaited = pass->awaited;
  const size_t events = LastSeq();
  lock.unlock();
  device_->Stage(*pass, awaited, events);
  return staged;
}

// Adds the keys that the filter and chance admit to `kept`, which holds the keys that have a row.
// Chance depends on seed, key and pass, so a pass that is trained again admits the same keys.
void Table::Admit(const PassTable& pass, std::vector<uint8_t>* kept) const {
  const std::vector<uint64_t>& keys = pass.table->keys();
  const std::lock_guard<std::mutex> lock(admission_mutex_);
  const double probability = config_.admission_probability;
  const bool always = probability >= 1;
  const auto below = always ? UINT64_MAX : static_cast<uint64_t>(std::ldexp(probability, 64));
  const uint64_t salt = Mix(config_.accessor.seed ^ Mix(counted_pass_ + 0x6368616e6365ULL));
  for (size_t i = 0; i < keys.size(); ++i) {
    if ((*kept)[i] != 0) continue;
    const bool counted = admission_ == nullptr || admission_->Admits(keys[i]);
    (*kept)[i] = counted && (always || Mix(keys[i] ^ salt) < below) ? 1 : 0;
  }
}

// Removes the rows that are not kept from the pass table. Sets the id of each key, -1: no row.
Status Table::KeepRows(PassTable* pass, const std::vector<uint8_t>& kept, StagedPass* staged) {
  const std::vector<uint64_t>& keys = pass->table->keys();
  std::vector<uint64_t> present;
  staged->row_of_key.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    staged->row_of_key[i] = kept[i] != 0 ? static_cast<int32_t>(present.size()) : -1;
    if (kept[i] != 0) present.push_back(keys[i]);
  }
  staged->rows = present.size();
  if (present.size() == keys.size()) return Status::Ok();
  Result<std::unique_ptr<HbmTier>> compact = HbmTier::Build(row_bytes(), std::move(present));
  if (!compact.ok()) return compact.status();
  std::vector<Origin> origin;
  std::vector<uint16_t> slots;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (kept[i] == 0) {
      if (pass->purpose == Purpose::kTrain) pass->refused.push_back(keys[i]);
      continue;
    }
    std::memcpy(compact.value()->row(origin.size()), pass->table->row(i), row_bytes());
    origin.push_back(pass->origin[i]);
    if (!pass->slots.empty()) slots.push_back(pass->slots[i]);
  }
  for (uint32_t& id : pass->awaited) id = static_cast<uint32_t>(staged->row_of_key[id]);
  pass->table = std::move(compact.value());
  pass->origin = std::move(origin);
  pass->slots = std::move(slots);
  return Status::Ok();
}

Result<StagedPass> Table::FinishTraining(const std::shared_ptr<PassTable>& pass,
                                         const std::vector<uint8_t>& found) {
  StagedPass staged;
  staged.stamp = pass->stamp;
  std::vector<uint8_t> kept(found.size(), 1);
  if (!AdmitsAll()) {
    kept = found;
    Admit(*pass, &kept);
    staged.refused = static_cast<size_t>(std::count(kept.begin(), kept.end(), uint8_t{0}));
    keys_refused_ += staged.refused;
  }
  staging_pool_->ParallelRanges(found.size(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (found[i] == 0 && kept[i] != 0) CreateRow(pass.get(), i);
    }
  });
  PBX_RETURN_IF_ERROR(KeepRows(pass.get(), kept, &staged));
  for (const Origin origin : pass->origin) ++staged.rows_by_origin[static_cast<size_t>(origin)];
  staged_train_ = pass;
  return staged;
}

// Only existing rows get an id. Absent feasigns have id -1 and read as zeros.
Result<StagedPass> Table::FinishEvaluation(const std::shared_ptr<PassTable>& pass,
                                           const std::vector<uint8_t>& found) {
  StagedPass staged;
  staged.stamp = pass->stamp;
  for (const Origin origin : pass->origin) ++staged.rows_by_origin[static_cast<size_t>(origin)];
  PBX_RETURN_IF_ERROR(KeepRows(pass.get(), found, &staged));
  pass->origin.assign(pass->rows(), Origin::kMem);
  staged_evaluate_.push_back(pass);
  return staged;
}

Status Table::DropStaged(int32_t stamp) {
  const std::lock_guard<std::mutex> lock(residency_);
  if (staged_train_ != nullptr && staged_train_->stamp == stamp) {
    PBX_RETURN_IF_ERROR(ReturnToMem(*staged_train_, {training_.get(), frozen_.get()}));
    staged_train_ = nullptr;
    return Status::Ok();
  }
  const auto it = std::find_if(staged_evaluate_.begin(), staged_evaluate_.end(),
                               [&](const auto& pass) { return pass->stamp == stamp; });
  if (it == staged_evaluate_.end()) {
    return Error(Code::kFailedPrecondition, "pass %d is not staged", stamp);
  }
  staged_evaluate_.erase(it);
  return Status::Ok();
}

// Returns the existing rows of a pass to MEM, except those that another pass table holds.
Status Table::ReturnToMem(const PassTable& pass, const std::vector<const PassTable*>& holders) {
  const std::vector<uint64_t>& keys = pass.table->keys();
  std::vector<uint8_t> held(keys.size(), 0);
  for (const PassTable* holder : holders) {
    if (holder == nullptr || holder->purpose != Purpose::kTrain) continue;
    const std::vector<uint64_t>& theirs = holder->table->keys();
    ForEachCommon(keys.data(), keys.size(), theirs.data(), theirs.size(),
                  [&](size_t i, size_t) { held[i] = 1; });
  }
  std::vector<uint64_t> back;
  std::vector<const char*> rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (held[i] != 0 || !pass.Exists(i)) continue;
    back.push_back(keys[i]);
    rows.push_back(pass.table->row(i));
  }
  const auto packed = PackRows(&rows);
  PBX_RETURN_IF_ERROR(packed.status());
  return mem_->Insert(back.data(), rows.data(), back.size(), ssd_ != nullptr, mem_pool_.get());
}

// If the tiers hold packed rows: packs the rows into the returned buffer, and points `rows` there.
Result<Buffer> Table::PackRows(std::vector<const char*>* rows) {
  if (codec_.identity()) return Buffer();
  auto packed = Buffer::Allocate(rows->size() * stored_row_bytes());
  if (!packed.ok()) return packed;
  char* out = packed.value().data();
  mem_pool_->ParallelRanges(rows->size(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      char* to = out + i * stored_row_bytes();
      codec_.Pack(reinterpret_cast<const float*>((*rows)[i]), to);
      (*rows)[i] = to;
    }
  });
  return packed;
}

}  // namespace pbx
