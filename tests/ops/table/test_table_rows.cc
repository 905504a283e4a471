// Rows end the same whichever way they came: every way of running the same passes has the digest of
// the plain model.
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../store/scratch.h"
#include "check.h"
#include "pass_model.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Batch;
using test::Floats;
using test::Keys;
using test::Model;
using test::Pass;

constexpr uint64_t kPasses = 6;
const std::vector<int> kThreads = test::kSanitized ? std::vector{4} : std::vector{1, 2, 4};

// When pass n + 1 is staged, and when pass n - 1 is published.
enum class Overlap {
  kNone,              // after Publish(n)
  kAfterEnd,          // between End(n) and Publish(n)
  kWhileTraining,     // pass n trains, n - 1 is published
  kBesideTheFrozen,   // pass n trains, n - 1 is frozen and published after it
  kDroppedAndStaged,  // as kBesideTheFrozen, but given up and staged anew, twice
};
constexpr Overlap kOverlaps[] = {Overlap::kNone, Overlap::kAfterEnd, Overlap::kWhileTraining,
                                 Overlap::kBesideTheFrozen, Overlap::kDroppedAndStaged};

struct Workload {
  Workload(uint64_t population, size_t size) : all(population) {
    for (uint64_t n = 0; n < kPasses; ++n) {
      passes.push_back(test::MakePass(n, population, size, 5));
    }
  }
  uint64_t all;
  std::vector<Pass> passes;
};

// What happens at the end of day n: a decay every day, a shrink every other, a delta between. Every
// third day the rows are reset in between.
std::vector<LifeEvent> EndOfDay(uint64_t n, uint32_t first_seq) {
  const auto day = static_cast<uint32_t>(20000 + n);
  LifeEvent decay{first_seq, LifeKind::kDecay, day, 0.75f, 0, 0, 0};
  LifeEvent shrink{first_seq + 1, LifeKind::kShrink, day, 1, 0.3f, 0, 2};
  LifeEvent delta{first_seq + 1, LifeKind::kDeltaReset, day, 1, 0.2f, 0.1f, 5};
  if (n % 3 != 1) return {decay, n % 2 == 1 ? shrink : delta};
  const LifeEvent reset{first_seq + 1, LifeKind::kResetRows, 0, 1, 0, 0, 0};
  ++shrink.seq;
  ++delta.seq;
  return {decay, reset, n % 2 == 1 ? shrink : delta};
}

// What the model has at each look of a job at its rows, in order. It is the same for every way of
// running the job, and the model is slower than a table is.
class Course {
 public:
  Course(const TableConfig& config, const Workload& of, bool life) : work(of) {
    Model model(config);
    for (uint64_t f = 1; f < work.all * 11 / 10; f += 10) evaluated.push_back(f);
    for (const uint64_t f : evaluated) evaluated_keys.push_back(KeyOf(f));
    std::sort(evaluated_keys.begin(), evaluated_keys.end());
    evaluated.push_back(0);
    evaluated.push_back(work.all + 7);  // not among the keys
    for (uint64_t n = 0; n < kPasses; ++n) {
      const Pass& pass = work.passes[n];
      Day day;
      for (const Batch& batch : pass.batches) {
        day.pulled.push_back(test::PulledOf(model, &pass, batch.feasigns));
        model.Push(pass, batch);
      }
      model.EndPass(n);
      day.after_end = test::PulledOf(model, nullptr, evaluated);
      if (life) {
        day.events = EndOfDay(n, static_cast<uint32_t>(model.events().size()) + 1);
        for (const LifeEvent& event : day.events) deleted += model.Happen(event);
      }
      day.after_life = test::PulledOf(model, nullptr, evaluated);
      days.push_back(std::move(day));
    }
    events = model.events();
    digest = model.Digest();
    rows = model.rows();
  }

  struct Day {
    std::vector<Floats> pulled;  // of each batch, before its push
    Floats after_end, after_life;
    std::vector<LifeEvent> events;
  };
  const Workload& work;
  std::vector<Day> days;
  Keys evaluated, evaluated_keys;  // every tenth feasign of the population and beyond it
  std::vector<LifeEvent> events;
  size_t deleted = 0, rows = 0;
  std::string digest;
};

class Job {
 public:
  Job(const TableConfig& config, const Course& course, Overlap overlap)
      : course_(course), overlap_(overlap), table_(test::OpenTable(config)) {}

  void Run() {
    for (uint64_t n = 0; n < kPasses; ++n) {
      const Course::Day& day = course_.days[n];
      if (!next_) Stage(n);
      CHECK_OK(table_->Begin(*next_));
      next_.reset();
      Train(n, 0, 2);
      const bool beside = overlap_ == Overlap::kBesideTheFrozen;
      const bool dropped = overlap_ == Overlap::kDroppedAndStaged;
      if (n + 1 < kPasses && (beside || dropped)) Stage(n + 1);
      if (n + 1 < kPasses && dropped) {
        Drop();
        Stage((n + 3) % kPasses);  // other keys
      }
      if (table_->has_frozen()) Publish();
      if (n + 1 < kPasses && dropped) {
        Drop();
        Stage(n + 1);
      }
      if (n + 1 < kPasses && overlap_ == Overlap::kWhileTraining) Stage(n + 1);
      Train(n, 2, day.pulled.size());
      CHECK_OK(table_->End(n));
      Evaluate(day.after_end);  // with n frozen, and n + 1 staged or not
      if (!day.events.empty()) CHECK_OK(table_->AppendEvents(day.events));
      if (n + 1 < kPasses && overlap_ == Overlap::kAfterEnd) Stage(n + 1);
      Evaluate(day.after_life);
      if (!beside && !dropped) Publish();
    }
    if (table_->has_frozen()) Publish();
    Evaluate(course_.days.back().after_life);
    CHECK_EQ(test::DigestOf(table_.get()), course_.digest);
  }

  Table* table() { return table_.get(); }
  const std::vector<SegmentDescriptor>& segments() const { return segments_; }

  // Merges the segments into as few as there can be.
  uint64_t Merge() {
    std::vector<uint64_t> ids;
    for (const SegmentDescriptor& segment : segments_) ids.push_back(segment.id);
    const auto merged = table_->Merge(ids, false);
    CHECK_OK(merged.status());
    CHECK_OK(table_->ReplaceSegments(ids, merged.value().segments));
    segments_ = merged.value().segments;
    return merged.value().rows_dropped;
  }

 private:
  void Stage(uint64_t n) { next_ = test::StageTrain(table_.get(), course_.work.passes[n]).stamp; }
  void Drop() {
    CHECK_OK(table_->DropStaged(*next_));
    next_.reset();
  }
  void Train(uint64_t n, size_t begin, size_t end) {
    const Pass& pass = course_.work.passes[n];
    for (size_t b = begin; b < end; ++b) {
      test::CheckPull(table_.get(), course_.days[n].pulled[b], pass.batches[b].feasigns);
      test::PushBatch(table_.get(), pass.batches[b]);
    }
  }
  void Evaluate(const Floats& expected) {
    const Keys& keys = course_.evaluated_keys;
    const auto staged = table_->Stage(keys.data(), nullptr, keys.size(), Purpose::kEvaluate, 0);
    CHECK_OK(staged.status());
    CHECK(staged.value().rows < keys.size());
    CHECK_OK(table_->Begin(staged.value().stamp));
    test::CheckPull(table_.get(), expected, course_.evaluated);
    CHECK_OK(table_->End());
  }
  void Publish() {
    const auto written = test::Commit(table_.get());
    table_->NoteDurableEvents();
    segments_.insert(segments_.end(), written.begin(), written.end());
  }

  const Course& course_;
  const Overlap overlap_;
  std::unique_ptr<Table> table_;
  std::optional<int32_t> next_;
  std::vector<SegmentDescriptor> segments_;
};

TEST(rows_end_the_same_through_ssd_for_every_budget_thread_count_and_overlap) {
  const Workload work(40000, 5000);  // some 14,000 rows: more than the least budget holds
  const Course course(test::SmallConfig(), work, false);
  for (const Overlap overlap : kOverlaps) {
    for (const int threads : kThreads) {
      for (const uint64_t budget : {MemTier::kMinBudgetBytes, uint64_t{64} << 20}) {
        const test::Scratch scratch;
        TableConfig config = test::SmallConfig();
        config.threads = threads;
        config.mem_budget_bytes = budget;
        config.ssd_folder = scratch.path();
        config.max_segment_bytes = 200000;
        Job job(config, course, overlap);
        job.Run();
        const TableCounters counters = job.table()->counters();
        CHECK(counters.mem_bytes <= budget);
        CHECK_EQ(counters.mem_evicted > 0, budget == MemTier::kMinBudgetBytes);
        CHECK(counters.ssd.rows_found > 0 || budget > MemTier::kMinBudgetBytes);
        CHECK_EQ(test::DigestOf(test::OpenTable(config, job.segments()).get()), course.digest);
      }
    }
  }
}

TEST(rows_end_the_same_in_memory_alone_for_every_budget_thread_count_and_overlap) {
  const Workload small(6000, 1500), large(40000, 5000);
  const Course of_small(test::SmallConfig(), small, false);
  const Course of_large(test::SmallConfig(), large, false);
  for (const Overlap overlap : kOverlaps) {
    for (const int threads : kThreads) {
      for (const uint64_t budget : {MemTier::kMinBudgetBytes, uint64_t{64} << 20}) {
        TableConfig config = test::SmallConfig();
        config.threads = threads;
        config.mem_budget_bytes = budget;
        const Course& course = budget == MemTier::kMinBudgetBytes ? of_small : of_large;
        Job job(config, course, overlap);
        job.Run();
        CHECK(job.segments().empty());
        CHECK_EQ(job.table()->counters().mem_rows, course.rows);
      }
    }
  }
}

TEST(life_events_and_16_bit_rows_end_the_same_whichever_way_a_row_came) {
  const Workload work(40000, 5000);
  for (const Precision precision :
       {Precision::kFloat32, Precision::kFloat16, Precision::kBfloat16}) {
    if (test::kSanitized && precision != Precision::kFloat16) continue;
    TableConfig config = test::SmallConfig();
    config.threads = 2;
    config.precision = precision;
    const Course course(config, work, true);
    CHECK(course.deleted > 1000);
    for (const Overlap overlap : kOverlaps) {
      for (const uint64_t budget : {MemTier::kMinBudgetBytes, uint64_t{64} << 20}) {
        const test::Scratch scratch;
        config.mem_budget_bytes = budget;
        config.ssd_folder = scratch.path();
        config.events.clear();
        Job job(config, course, overlap);
        job.Run();
        config.events = course.events;
        CHECK_EQ(test::DigestOf(test::OpenTable(config, job.segments()).get()), course.digest);
        // A merge applies the events, drops what is dead, and changes nothing that can be seen.
        CHECK(job.Merge() > 0);
        CHECK_EQ(test::DigestOf(job.table()), course.digest);
        CHECK_EQ(job.table()->counters().ssd_rows, course.rows);
        CHECK_EQ(test::DigestOf(test::OpenTable(config, job.segments()).get()), course.digest);
      }
    }
  }
}

TEST(weight_decay_ends_the_same_whichever_way_a_row_came) {
  const Workload work(40000, 5000);
  TableConfig config = test::SmallConfig();
  config.threads = 2;
  config.accessor.weight_decay = 0.05f;
  const Course course(config, work, true);
  for (const Overlap overlap : kOverlaps) {
    for (const bool ssd : {true, false}) {
      const test::Scratch scratch;
      config.mem_budget_bytes = ssd ? MemTier::kMinBudgetBytes : uint64_t{64} << 20;
      config.ssd_folder = ssd ? scratch.path() : "";
      config.events.clear();
      Job job(config, course, overlap);
      job.Run();
      CHECK_EQ(job.table()->counters().life_events, course.events.size());
      if (!ssd) continue;
      config.events = course.events;
      CHECK_EQ(test::DigestOf(test::OpenTable(config, job.segments()).get()), course.digest);
      job.Merge();
      CHECK_EQ(test::DigestOf(test::OpenTable(config, job.segments()).get()), course.digest);
    }
  }
}

TEST(life_events_end_the_same_in_memory_alone) {
  const Workload work(40000, 5000);
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    TableConfig config = test::SmallConfig();
    config.mem_budget_bytes = 64 << 20;
    config.precision = precision;
    const Course course(config, work, true);
    Job(config, course, Overlap::kWhileTraining).Run();
    CHECK(course.deleted > 1000);
  }
}

TEST(a_shrink_in_memory_alone_drops_its_rows_at_once) {
  const Workload work(20000, 3000);
  TableConfig config = test::SmallConfig();
  config.mem_budget_bytes = 64 << 20;
  const auto table = test::OpenTable(config);
  Model model(config);
  uint64_t deleted = 0;
  for (uint64_t n = 0; n < kPasses; ++n) {
    CHECK_OK(table->Begin(test::StageTrain(table.get(), work.passes[n]).stamp));
    for (const Batch& batch : work.passes[n].batches) test::PushBatch(table.get(), batch);
    model.Train(work.passes[n]);
    CHECK_OK(table->End());
    test::Commit(table.get());
    const auto events = EndOfDay(n, static_cast<uint32_t>(model.events().size()) + 1);
    CHECK_OK(table->AppendEvents(events));
    for (const LifeEvent& event : events) deleted += model.Happen(event);
    CHECK_EQ(table->counters().mem_rows, model.rows());
    CHECK_EQ(table->counters().life_dead_swept, deleted);
  }
  CHECK(deleted > 1000);
  CHECK_EQ(table->counters().life_dead_staged, 0u);  // none was left to be met
  CHECK_EQ(test::DigestOf(table.get()), model.Digest());
}

TEST(new_rows_are_counted_once) {
  const Workload work(40000, 5000);
  const test::Scratch scratch;
  TableConfig config = test::SmallConfig();
  config.ssd_folder = scratch.path();
  config.mem_budget_bytes = MemTier::kMinBudgetBytes;
  const auto table = test::OpenTable(config);
  Model model(config);
  uint64_t rows = 0;
  for (uint64_t n = 0; n < kPasses; ++n) {
    CHECK_OK(table->Begin(test::StageTrain(table.get(), work.passes[n]).stamp));
    for (const Batch& batch : work.passes[n].batches) test::PushBatch(table.get(), batch);
    model.Train(work.passes[n]);
    CHECK_OK(table->End());
    const auto written = table->WriteFrozen();
    CHECK_OK(written.status());
    CHECK_OK(table->Publish(written.value().segments));
    rows += written.value().new_rows;
    CHECK_EQ(rows, model.rows());
  }
}

TEST(events_are_refused_while_a_pass_trains_and_out_of_order) {
  const Workload work(1000, 100);
  const auto table = test::OpenTable(test::SmallConfig());
  CHECK_OK(table->Begin(test::StageTrain(table.get(), work.passes[0]).stamp));
  CHECK_CODE(table->AppendEvents(EndOfDay(0, 1)), Code::kFailedPrecondition);
  CHECK_OK(table->End());
  CHECK_OK(table->AppendEvents(EndOfDay(0, 1)));
  const uint32_t last = EndOfDay(0, 1).back().seq;
  CHECK_CODE(table->AppendEvents(EndOfDay(1, 1)), Code::kInvalidArgument);
  CHECK_CODE(table->AppendEvents(EndOfDay(1, last + 2)), Code::kInvalidArgument);
  CHECK_OK(table->AppendEvents(EndOfDay(1, last + 1)));
  CHECK_CODE(table->Merge({1}, false).status(), Code::kFailedPrecondition);  // no SSD tier
}

TEST(an_abandoned_pass_leaves_the_store_as_it_was_committed) {
  const Workload work(20000, 3000);
  for (const bool frozen : {false, true}) {
    for (const bool staged : {false, true}) {
      const test::Scratch scratch;
      TableConfig config = test::SmallConfig();
      config.mem_budget_bytes = MemTier::kMinBudgetBytes;
      config.ssd_folder = scratch.path();
      const auto table = test::OpenTable(config);
      Model model(config);
      std::vector<SegmentDescriptor> segments;
      const auto commit = [&] {
        const auto written = test::Commit(table.get());
        segments.insert(segments.end(), written.begin(), written.end());
      };
      CHECK_OK(table->Begin(test::StageTrain(table.get(), work.passes[0]).stamp));
      for (const Batch& batch : work.passes[0].batches) test::PushBatch(table.get(), batch);
      model.Train(work.passes[0]);
      CHECK_OK(table->End());
      if (!frozen) commit();
      CHECK_OK(table->Begin(test::StageTrain(table.get(), work.passes[1]).stamp));
      for (const Batch& batch : work.passes[1].batches) test::PushBatch(table.get(), batch);
      if (staged) test::StageTrain(table.get(), work.passes[2]);
      CHECK_OK(table->Abandon());
      if (frozen) commit();
      CHECK_EQ(test::DigestOf(table.get()), model.Digest());
      const Pass& next = work.passes[1];
      CHECK_CODE(table
                     ->Stage(next.keys.data(), next.slots.data(), next.keys.size(), Purpose::kTrain,
                             next.day)
                     .status(),
                 Code::kFailedPrecondition);

      const auto again = test::OpenTable(config, segments);
      CHECK_EQ(test::DigestOf(again.get()), model.Digest());
      CHECK_OK(again->Begin(test::StageTrain(again.get(), next).stamp));
      for (const Batch& batch : next.batches) test::PushBatch(again.get(), batch);
      model.Train(next);
      CHECK_OK(again->End());
      test::Commit(again.get());
      CHECK_EQ(test::DigestOf(again.get()), model.Digest());
    }
  }
}

// The pipeline as it runs: while one thread trains pass n, another stages n + 1, a third commits
// n - 1, and a fourth looks at the counters.
TEST(training_staging_and_committing_side_by_side_end_as_the_model_does) {
  const Workload work(20000, 3000);
  for (const auto& [ssd, precision] : {std::pair{true, Precision::kFloat32},
                                       {true, Precision::kBfloat16},
                                       {false, Precision::kFloat32}}) {
    const test::Scratch scratch;
    TableConfig config = test::SmallConfig();
    config.threads = 2;
    config.precision = precision;
    config.mem_budget_bytes = ssd ? MemTier::kMinBudgetBytes : uint64_t{16} << 20;
    if (ssd) config.ssd_folder = scratch.path();
    const auto table = test::OpenTable(config);
    Model model(config);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> looks{0};
    std::thread watcher([&] {
      while (!stop) {
        looks += table->counters().mem_bytes > 0;
        looks += table->training() || table->has_frozen() || table->stamp() != 0;
        looks += table->unwritten_rows() > 0;
      }
    });
    int32_t next = test::StageTrain(table.get(), work.passes[0]).stamp;
    for (uint64_t n = 0; n < kPasses; ++n) {
      CHECK_OK(table->Begin(next));
      std::optional<Result<StagedPass>> staged;
      Status committed;
      std::thread stager([&] {
        if (n + 1 == kPasses) return;
        const Pass& pass = work.passes[n + 1];
        staged.emplace(table->Stage(pass.keys.data(), pass.slots.data(), pass.keys.size(),
                                    Purpose::kTrain, pass.day));
      });
      std::thread committer([&] {
        if (n == 0) return;
        const auto written = table->WriteFrozen();
        committed = written.ok() ? table->Publish(written.value().segments) : written.status();
      });
      for (const Batch& batch : work.passes[n].batches) {
        test::CheckPull(table.get(), model, &work.passes[n], batch.feasigns);
        test::PushBatch(table.get(), batch);
        model.Push(work.passes[n], batch);
      }
      committer.join();
      CHECK_OK(committed);
      if (n % 2 == 0) stager.join();  // in the other passes staging may meet the end of the pass
      CHECK_OK(table->End(n));
      model.EndPass(n);
      if (stager.joinable()) stager.join();
      if (!staged) continue;
      CHECK_OK(staged->status());
      next = staged->value().stamp;
    }
    stop = true;
    watcher.join();
    CHECK(looks > 0);
    test::Commit(table.get());
    CHECK_EQ(test::DigestOf(table.get()), model.Digest());
  }
}

}  // namespace
}  // namespace pbx
