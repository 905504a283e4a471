// Table: all rows of one layout on this rank, through three tiers, and the life of its passes.
//
//   Stage(keys) ---> Begin ---> Pull / Push ... ---> End ---> WriteFrozen ---> Publish
//    n+2             n+1         n+1                  n+1      n (background)   n
//
// At most one pass is staged for training, one trains, one is frozen (being committed). Rows live
// in one place of authority: the newest pass table that holds them, else MEM, else the newest
// segment. Staging moves rows out of MEM; rows that the training pass holds are copied when it
// ends. Publish gives the frozen pass's rows back to MEM, but for those that a younger pass holds.
//
// What a row ends as does not depend on when, in which order of threads, or through which tier it
// came: that is tested.
//
// Thread safety: Stage, End, WriteFrozen, Publish, DropStaged may be called from different threads;
// Pull and Push from the training thread, between Begin and End. WriteFrozen and Publish of one
// pass belong to one thread.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "row/codec.h"
#include "rule/accessor.h"
#include "rule/life.h"
#include "store/mem_tier.h"
#include "store/ssd_tier.h"
#include "table/admission.h"
#include "table/device_rows.h"
#include "table/pass_table.h"
#include "table/row_access.h"

namespace pbx {

struct TableConfig {
  std::string name = "default";
  AccessorConfig accessor;
  std::vector<float> slot_rates;  // of slot 0, 1 ...: what its learning rates are multiplied by
  uint64_t hbm_budget_bytes = 2ull << 30;  // for the three pass tables that can live at once
  uint64_t mem_budget_bytes = 1ull << 30;
  std::string ssd_folder;  // empty: no SSD tier, everything stays in memory
  uint64_t max_segment_bytes = 256ull << 20;
  int threads = 1;                            // of the store: staging, pull, push
  bool read_only = false;                     // only passes for evaluation; no byte on disk changes
  Precision precision = Precision::kFloat32;  // of embedx in MEM and on SSD
  uint32_t admission_min_count = 1;  // occurrences from which a feasign gets a row; 1: at once
  uint64_t admission_filter_bytes = 64ull << 20;
  OnBadGrad on_bad_grad = OnBadGrad::kError;
  float bad_grad_bound = 10.0f;   // kClip: what an infinity becomes
  std::vector<LifeEvent> events;  // that have happened: seq 1, 2, 3 ...
};

struct StagedPass {
  int32_t stamp = 0;
  size_t rows = 0;
  std::array<uint64_t, 5> rows_by_origin{};  // indexed by Origin
  size_t refused = 0;               // keys without a row: they have not occurred often enough
  std::vector<int32_t> row_of_key;  // (n) row id of each staged key, -1 where it has none
};

// What WriteFrozen made durable.
struct WrittenPass {
  std::vector<SegmentDescriptor> segments;
  uint64_t rows = 0;
  uint64_t new_rows = 0;  // of keys that no segment held before
};

// Sums since the table was opened.
struct TableCounters : AccessCounters {
  uint64_t bytes_pulled = 0, bytes_pushed = 0;  // of rows read, and read and written
  uint64_t keys_refused = 0;                    // of passes: they had not occurred often enough
  uint64_t life_events = 0;       // that have happened, those before the table was opened too
  uint64_t life_dead_staged = 0;  // rows that staging met and events had deleted
  uint64_t life_dead_merged = 0;  // rows that merges dropped
  uint64_t life_dead_swept = 0;   // rows that a shrink dropped at once: in memory alone
  uint64_t mem_rows = 0, mem_bytes = 0, mem_evicted = 0;
  uint64_t ssd_rows = 0, ssd_bytes = 0, ssd_segments = 0, ssd_memory_bytes = 0;
  SsdCounters ssd;
};

class Table : public RowAccess {
 public:
  // segments: the committed ones, from the manifest. device: where the rows of an open pass are;
  // null: on the host.
  static Result<std::unique_ptr<Table>> Open(const TableConfig& config,
                                             const std::vector<SegmentDescriptor>& segments,
                                             std::unique_ptr<DevicePass> device = nullptr);
  ~Table() override;

  const TableConfig& config() const { return config_; }
  const std::string& name() const override { return config_.name; }
  const RowLayout& layout() const override { return config_.accessor.layout; }
  uint32_t row_bytes() const { return config_.accessor.layout.bytes(); }
  uint32_t stored_row_bytes() const { return codec_.bytes(); }  // in MEM and on SSD
  const RowCodec& codec() const { return codec_; }
  // Most rows that one pass may have under hbm_budget_bytes.
  uint64_t max_pass_rows() const;

  // Brings the rows of a pass up. keys: (n) ascending, none of them Mix(0) = 0; slots: (n) of rows
  // made new (may be null: slot 0). OutOfSpace with the bytes needed when the pass is over the HBM
  // budget.
  Result<StagedPass> Stage(const uint64_t* keys, const uint16_t* slots, size_t n, Purpose purpose,
                           uint32_t day);
  // ---- Admission (admission_min_count above 1): see table/admission.h

  // Counts the keys of a whole pass, once, before it is staged. FailedPrecondition where every
  // feasign is admitted at once.
  Status CountKeys(const uint64_t* keys, const uint32_t* counts, size_t n);
  // The filter's counters, empty where there is none; what a commit keeps, and an open gives back.
  std::string AdmissionState() const;
  Status SetAdmissionState(const std::string& state);

  // Gives up a staged pass: its rows go back where they were. OutOfSpace where MEM has no room for
  // rows that are nowhere else: the pass stays staged.
  Status DropStaged(int32_t stamp);

  Status Begin(int32_t stamp);
  // Training pass: freezes it; FailedPrecondition while an earlier one is frozen. Evaluation: drops
  // it. pass_number: of the job, the same in a run that was taken up again: with 16-bit rows the
  // chance in rounding depends on it.
  Status End(uint64_t pass_number = 0);
  // Gives up the pass that trains: what it changed is forgotten, the store is as it was committed.
  // The table takes no further pass afterwards (rows may have moved on with it): reopen it. In
  // memory alone nothing was committed, and the table cannot be read any more.
  Status Abandon();

  // Writes the frozen pass's changed rows as durable segments that nothing names yet. Without an
  // SSD tier, or when nothing changed, there are none.
  Result<WrittenPass> WriteFrozen();
  // After the manifest names them: the segments become readable, the frozen rows go to MEM. In
  // memory alone OutOfSpace where they do not fit: the pass stays frozen. FailedPrecondition when
  // WriteFrozen has not written the pass.
  Status Publish(const std::vector<SegmentDescriptor>& segments);

  // ---- Life of the table

  // Events that happen now: between passes, to every row. seq goes on from those before. In memory
  // alone a shrink drops its rows here: no merge ever comes by.
  // FailedPrecondition while a training pass is open.
  Status AppendEvents(const std::vector<LifeEvent>& events);

  // SsdTier::Merge and Replace, with the life events that have happened. FailedPrecondition without
  // an SSD tier.
  Result<MergeResult> Merge(const std::vector<uint64_t>& inputs, bool urgent);
  Status ReplaceSegments(const std::vector<uint64_t>& removed,
                         const std::vector<SegmentDescriptor>& added);
  void CancelMerges();

  // Which pushes count shows and clicks from now on, by the slot of their row; slots from n on do,
  // and with n = 0 all. The others learn alone. Not while a push is under way.
  Status SetCounted(const uint8_t* slots, size_t n);

  bool training() const;  // a pass (of either purpose) is open
  bool has_frozen() const;
  // Changed rows of the frozen pass that WriteFrozen has not written yet; 0 without one.
  uint64_t unwritten_rows() const;
  int32_t stamp() const override;  // of the open pass, 0 when there is none
  DevicePass* device() const override { return device_.get(); }

  // ---- The open pass, besides what RowAccess has

  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

  // ---- Whole table, as committed. FailedPrecondition while a pass is open or frozen, and without
  // an SSD tier also while one is staged.

  // Canonical digest of all (key, row) pairs: two 64-bit sums, so the order does not matter. 32 hex
  // digits.
  Result<std::string> Digest();
  // Calls visit with each key and its row of floats, in ascending order of key.
  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
    return Visit(0, UINT64_MAX, visit);
  }
  // Of keys in [low, high].
  Status Visit(uint64_t low, uint64_t high,
               const std::function<Status(uint64_t key, const char* row)>& visit);
  // keys: (n) ascending. rows: (n, words), found: (n) 1 where there is a row.
  Status Lookup(const uint64_t* keys, size_t n, float* rows, uint8_t* found);
  size_t pairs_upper_bound() const;

  TableCounters counters() const;

 private:
  explicit Table(TableConfig config);
  Status Idle(const char* what) const;
  Result<std::shared_ptr<PassTable>> OpenPass(const char* what) const;
  Result<OpenRows> Open(const char* what) const override;
  Status ReturnToMem(const PassTable& pass, const std::vector<const PassTable*>& holders);
  void Admit(const PassTable& pass, std::vector<uint8_t>* kept) const;
  Status KeepRows(PassTable* pass, const std::vector<uint8_t>& kept, StagedPass* staged);
  Status CheckStage(const uint64_t* keys, size_t n, Purpose purpose) const;
  void CreateRow(PassTable* pass, size_t id) const;
  Result<Buffer> PackRows(std::vector<const char*>* rows);
  void BringUpToDate(PassTable* pass, uint8_t* found);
  Result<StagedPass> FinishTraining(const std::shared_ptr<PassTable>& pass,
                                    const std::vector<uint8_t>& found);
  Result<StagedPass> FinishEvaluation(const std::shared_ptr<PassTable>& pass,
                                      const std::vector<uint8_t>& found);
  Result<SsdTier*> Ssd() const;

  TableConfig config_;
  std::vector<float> counted_;  // what config_.accessor.counted points to
  RowCodec codec_;
  std::unique_ptr<DevicePass> device_;
  std::unique_ptr<ThreadPool> staging_pool_;  // staging and commit, beside it
  // MEM, under residency_, and what a commit packs: a read of the SSD tier holds the staging pool
  // for seconds.
  std::unique_ptr<ThreadPool> mem_pool_;
  std::unique_ptr<MemTier> mem_;
  std::unique_ptr<SsdTier> ssd_;  // null without a folder

  // Guards which pass holds which row: the pointers below and MEM; and the events.
  mutable std::mutex residency_;
  mutable std::mutex open_mutex_;       // guards training_ alone, for the operators
  std::condition_variable staged_;      // staging_ has become null
  std::shared_ptr<PassTable> staging_;  // for training, while its rows are read from SSD
  std::shared_ptr<PassTable> staged_train_;
  std::vector<std::shared_ptr<PassTable>> staged_evaluate_;
  std::shared_ptr<PassTable> training_;  // either purpose
  std::shared_ptr<PassTable> frozen_;
  int32_t next_stamp_ = 1;
  bool abandoned_ = false;
  std::vector<LifeEvent> events_;  // events_[i] has seq i + 1
  mutable std::mutex admission_mutex_;
  std::unique_ptr<AdmissionFilter> admission_;  // null: every feasign is admitted
  std::atomic<uint64_t> keys_refused_{0};
  std::atomic<uint64_t> dead_staged_{0}, dead_merged_{0}, dead_swept_{0};
};

}  // namespace pbx
