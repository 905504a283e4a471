// Table: the rows of one table on this rank, in three tiers, and the states of its passes.
//
//   Stage(keys) ---> Begin ---> Pull / Push ... ---> End ---> WriteFrozen ---> Publish
//    n+2             n+1         n+1                  n+1      n (background)   n
//
// At most one pass is staged for training, one trains, one is frozen (being committed). The current
// version of a row is in the newest pass table that holds it, otherwise in MEM, otherwise in the
// newest segment. Staging moves rows out of MEM; rows that the training pass holds are copied when
// that pass ends. Publish returns the rows of the frozen pass to MEM, except those that a newer
// pass holds.
//
// The bits of a row do not depend on timing, on the order of threads, or on the tiers that it went
// through. Tests check this.
//
// Thread safety: Stage, End, WriteFrozen, Publish and DropStaged may be called from different
// threads. Pulls and pushes are made between Begin and End (for their threads see RowAccess). One
// thread calls WriteFrozen and Publish of a pass.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
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
  std::vector<float> slot_rates;           // factors of the learning rates of slots 0, 1, ...
  uint64_t hbm_budget_bytes = 2ull << 30;  // for three pass tables: staged, training, frozen
  uint64_t mem_budget_bytes = 1ull << 30;
  std::string ssd_folder;  // empty: no SSD tier, all rows stay in memory
  uint64_t max_segment_bytes = 256ull << 20;
  int threads = 1;                            // for staging, pull and push
  bool read_only = false;                     // only passes for evaluation; writes nothing to disk
  Precision precision = Precision::kFloat32;  // of embedx in MEM and on SSD
  uint32_t admission_min_count = 1;           // a feasign gets a row after so many occurrences
  uint64_t admission_filter_bytes = 64ull << 20;
  double admission_probability = 1.0;  // that a pass gives an admitted feasign a row
  OnBadGrad on_bad_grad = OnBadGrad::kError;
  float bad_grad_bound = 10.0f;   // of kClip
  std::vector<LifeEvent> events;  // the events so far, without superfluous ones; all are durable
};

struct StagedPass {
  int32_t stamp = 0;
  size_t rows = 0;
  std::array<uint64_t, 5> rows_by_origin{};  // indexed by Origin
  size_t refused = 0;                        // keys not admitted, which have no row
  std::vector<int32_t> row_of_key;           // (n) row id of each staged key, -1: none
};

// The result of WriteFrozen.
struct WrittenPass {
  std::vector<SegmentDescriptor> segments;
  uint64_t rows = 0;
  uint64_t new_rows = 0;  // rows whose keys no segment held before
};

// Sums since the table was opened.
struct TableCounters : AccessCounters {
  uint64_t bytes_pulled = 0, bytes_pushed = 0;  // bytes of rows read; of rows read and written
  uint64_t keys_refused = 0;                    // not admitted, summed over passes
  uint64_t life_events = 0;                     // all, including those before the table was opened
  uint64_t life_dead_staged = 0;                // rows deleted by events, found by staging
  uint64_t life_dead_merged = 0;                // rows deleted by events, dropped by merges
  uint64_t life_dead_swept = 0;  // rows deleted by events, dropped by a shrink without an SSD tier
  uint64_t mem_rows = 0, mem_bytes = 0, mem_evicted = 0;
  uint64_t ssd_rows = 0, ssd_bytes = 0, ssd_segments = 0, ssd_memory_bytes = 0;
  SsdCounters ssd;
};

class Table : public RowAccess {
 public:
  // segments: the committed segments, from the manifest. device: holds the rows of an open pass;
  // null: the host holds them.
  static Result<std::unique_ptr<Table>> Open(const TableConfig& config,
                                             const std::vector<SegmentDescriptor>& segments,
                                             std::unique_ptr<DevicePass> device = nullptr);
  ~Table() override;

  const TableConfig& config() const { return config_; }
  const std::string& name() const override { return config_.name; }
  const RowLayout& layout() const override { return config_.accessor.layout; }
  uint32_t row_bytes() const { return config_.accessor.layout.bytes(); }
  uint32_t stored_row_bytes() const { return codec_.bytes(); }  // per row in MEM and on SSD
  const RowCodec& codec() const { return codec_; }
  // The most rows that a pass may have under hbm_budget_bytes.
  uint64_t max_pass_rows() const;

  // Makes the table of a pass from the rows of the tiers. keys: (n) strictly ascending, without
  // Mix(0) = 0; slots: (n) for new rows (null: slot 0). OutOfSpace, with the bytes needed, if the
  // pass exceeds the HBM budget.
  Result<StagedPass> Stage(const uint64_t* keys, const uint16_t* slots, size_t n, Purpose purpose,
                           uint32_t day);
  // ---- Admission (admission_min_count above 1: see table/admission.h; admission_probability)

  // Counts the keys of a whole pass, once, before it is staged. pass_number: as for End; chance
  // depends on it. FailedPrecondition if every feasign is admitted.
  Status CountKeys(const uint64_t* keys, const uint32_t* counts, size_t n, uint64_t pass_number);
  // The counters of the filter, empty if there is none. A commit stores them, and opening the table
  // restores them.
  std::string AdmissionState() const;
  Status SetAdmissionState(const std::string& state);

  // Drops a staged pass: its rows go back to MEM. OutOfSpace if there is no SSD tier and MEM has no
  // room for the rows; then the pass stays staged.
  Status DropStaged(int32_t stamp);

  Status Begin(int32_t stamp);
  // Freezes an open training pass; FailedPrecondition while an earlier pass is frozen. Drops an
  // open evaluation pass. pass_number: counted over the whole job, so it is the same in a resumed
  // run; the random rounding of 16-bit rows depends on it. With weight decay, a training pass ends
  // with an event, which TakePassEvents returns.
  Status End(uint64_t pass_number = 0);
  // The events that ends of passes have added since the last call. The version that names the rows
  // of the passes must have them too. Until NoteDurableEvents, merges do not apply them: otherwise
  // a pass that is trained again after a crash could find rows to which its event was applied.
  std::vector<LifeEvent> TakePassEvents();
  // All events are in a version. Drops those that later ones make superfluous.
  void NoteDurableEvents();
  // Abandons the open training pass: its changes are dropped, and the store is as at the last
  // commit. Afterwards the table accepts no pass and must be reopened. A table without an SSD tier
  // has no commit, and cannot be read any more.
  Status Abandon();

  // Writes the changed rows of the frozen pass as durable segments that no manifest names yet.
  // There are no segments if there is no SSD tier or if no row changed.
  Result<WrittenPass> WriteFrozen();
  // Called after the manifest names the segments: they become readable, and the frozen rows go to
  // MEM. OutOfSpace if there is no SSD tier and the rows do not fit into MEM; then the pass stays
  // frozen. FailedPrecondition if WriteFrozen has not written the pass.
  Status Publish(const std::vector<SegmentDescriptor>& segments);

  // ---- Life of the table

  // Adds events, between passes; they apply to every row. seq continues from the last event; the
  // first events may have gaps. Without an SSD tier deleted rows are removed here, because there
  // are no merges. FailedPrecondition while a training pass is open.
  Status AppendEvents(const std::vector<LifeEvent>& events);

  // ---- Eviction of rows, after End and before WriteFrozen. FailedPrecondition at other times.

  // The bits of a rank, as day (20) | score (32) | key (64), that one CountRanks looks at.
  static constexpr int kRankDigitBits = 20;
  // Counts the live rows of the table, with the changes of the ended pass, by kRankDigitBits bits
  // of their ranks from bit `shift` on. Only rows whose bits above them are those of `prefix`
  // count. Reads every row.
  Result<std::vector<uint64_t>> CountRanks(bool by_day, const EvictionRank& prefix,
                                           int shift) const;
  // Rows that the ended pass has added to the live ones.
  uint64_t ended_new_rows() const;
  // Deletes the live rows of a rank below `lowest` by an event, which TakePassEvents returns.
  Status Evict(bool by_day, const EvictionRank& lowest);

  // SsdTier::Merge and Replace; the merge applies the life events so far. FailedPrecondition
  // without an SSD tier.
  Result<MergeResult> Merge(const std::vector<uint64_t>& inputs, bool urgent);
  Status ReplaceSegments(const std::vector<uint64_t>& removed,
                         const std::vector<SegmentDescriptor>& added);
  // Adds segments whose rows are newer than those of MEM, which drops all of its rows.
  // FailedPrecondition while a pass is staged, open or being committed, or without an SSD tier.
  Status AddSegments(const std::vector<SegmentDescriptor>& added);
  // SsdTier::DeadShares for the durable life events; empty without an SSD tier, or an event
  // that deletes rows.
  std::vector<DeadShare> DeadShares();
  void CancelMerges();

  // Sets which pushes count shows and clicks from now on. slots: (n) indexed by the slot of the
  // row, 1: counts, 0: does not. Slots from n on count; with n = 0 all slots count. Pushes that do
  // not count only train weights. Must not run during a push.
  Status SetCounted(const uint8_t* slots, size_t n);

  // Multiplies the learning rates from now on. FailedPrecondition if rows of open passes are on a
  // device. Must not run during a push.
  Status SetRate(float rate);

  bool training() const;  // a pass is open, of either purpose
  bool has_frozen() const;
  // Changed rows of the frozen pass that WriteFrozen has not written yet. 0 if no pass is frozen.
  uint64_t unwritten_rows() const;
  int32_t stamp() const override;  // of the open pass, 0: none
  DevicePass* device() const override { return device_.get(); }

  // ---- The open pass, besides what RowAccess has

  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

  // ---- Whole table, as committed. FailedPrecondition while a pass is open or frozen, and without
  // an SSD tier also while one is staged.

  // Digest of all (key, row) pairs, 32 hex digits: two 64-bit sums, so the order does not matter.
  Result<std::string> Digest();
  // Calls visit with each key and its row of floats, in ascending order of key.
  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
    return Visit(0, UINT64_MAX, visit);
  }
  // The same for keys in [low, high].
  Status Visit(uint64_t low, uint64_t high,
               const std::function<Status(uint64_t key, const char* row)>& visit);
  // keys: (n) ascending. rows: (n, words), found: (n), 1 if there is a row.
  Status Lookup(const uint64_t* keys, size_t n, float* rows, uint8_t* found);
  size_t pairs_upper_bound() const;

  TableCounters counters() const;

 private:
  explicit Table(TableConfig config);
  Status Idle(const char* what) const;
  Result<std::shared_ptr<PassTable>> OpenPass(const char* what) const;
  Result<OpenRows> OpenHost(const char* what) const;
  Result<OpenRows> Open(const char* what) const override;
  Result<OpenRows> OpenToHold() const override;
  Status PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                  const std::vector<float>& values, bool late) override;
  Status ReturnToMem(const PassTable& pass, const std::vector<const PassTable*>& holders);
  void Admit(const PassTable& pass, std::vector<uint8_t>* kept) const;
  bool AdmitsAll() const { return admission_ == nullptr && config_.admission_probability >= 1; }
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
  std::vector<LifeEvent> DurableEvents();
  void FoldDurable();
  uint32_t LastSeq() const { return life::LastSeq(events_.data(), events_.size()); }
  void EndClock(PassTable* ended);
  Status VisitEnded(const PassTable* frozen, uint64_t low, uint64_t high,
                    const std::function<void(uint64_t key, const char* row)>& visit) const;
  void CountInMemory(const PassTable* frozen,
                     const std::function<void(uint64_t key, const char* row)>& visit) const;
  void SweepMem();
  void BringStagedUpToDate();

  TableConfig config_;
  std::vector<float> counted_;  // config_.accessor.counted points to it
  RowCodec codec_;
  std::unique_ptr<DevicePass> device_;
  std::unique_ptr<ThreadPool> staging_pool_;  // for staging and commits, in addition to pool_
  // For MEM, while residency_ is held, and for packing in a commit. It is not staging_pool_,
  // because a read of the SSD tier occupies staging_pool_ for seconds.
  std::unique_ptr<ThreadPool> mem_pool_;
  std::unique_ptr<MemTier> mem_;
  std::unique_ptr<SsdTier> ssd_;  // null: there is no folder

  // Guards which pass holds which row (the pointers below and MEM), and the events.
  mutable std::mutex residency_;
  mutable std::mutex open_mutex_;  // guards only training_, for the operators
  // Held while Stage copies rows to the device: these rows must not change. Taken after residency_.
  std::mutex to_device_;
  mutable std::condition_variable staged_;  // staging_ has become null
  std::shared_ptr<PassTable> staging_;      // training pass whose rows are being read from SSD
  std::shared_ptr<PassTable> staged_train_;
  std::vector<std::shared_ptr<PassTable>> staged_evaluate_;
  std::shared_ptr<PassTable> training_;  // either purpose
  std::shared_ptr<PassTable> frozen_;
  int32_t next_stamp_ = 1;
  bool abandoned_ = false;
  std::vector<LifeEvent> events_;       // seq ascends
  size_t durable_events_ = 0;           // of events_, from the first on
  std::vector<LifeEvent> pass_events_;  // see TakePassEvents
  mutable std::mutex admission_mutex_;
  std::unique_ptr<AdmissionFilter> admission_;  // null: feasigns are not counted
  uint64_t counted_pass_ = 0;                   // number of the last pass that was counted
  std::atomic<uint64_t> keys_refused_{0};
  std::atomic<uint64_t> dead_staged_{0}, dead_merged_{0}, dead_swept_{0};
};

}  // namespace pbx
