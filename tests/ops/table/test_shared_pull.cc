// Batches whose instances share lists: the bits of pulls and rows are those of the same batch with
// a list for each instance.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "every_path.h"
#include "pass_model.h"
#include "row/lists.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;
using test::Random;

constexpr size_t kInstances = 900, kSlots = 3, kCells = kInstances * kSlots, kDense = 2;

struct SharedBatch {
  Ints ids, offsets = {0}, list_of;  // shared
  Ints all_ids, all_offsets;         // the same, a list a cell
  Floats show_click, dense;
  SharedCells shared() const { return {list_of.data(), offsets.size() - 1}; }
};

// Lists of 0 to 4 ids, one of them -1 now and then; a cell has that of any cell of its slot before.
SharedBatch Made() {
  SharedBatch made;
  Random random(3);
  for (size_t cell = 0; cell < kCells; ++cell) {
    if (cell >= kSlots && random.Below(3) != 0) {
      const size_t back = 1 + random.Below(cell / kSlots);
      made.list_of.push_back(made.list_of[cell - back * kSlots]);
      continue;
    }
    made.list_of.push_back(static_cast<int32_t>(made.offsets.size() - 1));
    // Runs of lists of one id, which the kernels copy: a pull before any push reads embed_w of -0.
    for (uint64_t n = cell < kCells / 2 ? 1 : random.Below(5); n > 0; --n) {
      made.ids.push_back(static_cast<int32_t>(random.Below(401)) - 1);
    }
    made.offsets.push_back(static_cast<int32_t>(made.ids.size()));
  }
  CHECK_OK(ExpandLists(made.shared(), kCells, made.ids.data(), made.offsets.data(), &made.all_ids,
                       &made.all_offsets));
  for (size_t i = 0; i < kInstances; ++i) {
    made.show_click.insert(made.show_click.end(), {1.0f, static_cast<float>(random.Below(2))});
    for (size_t c = 0; c < kDense; ++c) made.dense.push_back(random.Uniform());
  }
  return made;
}

struct Outcome {
  Floats fresh, pooled;  // before any push, and after two
  std::string digest;
};

// Two steps: pull, and push of what was pulled as its gradient. No plan is fed.
Outcome Trained(const SharedBatch& batch, bool shared, int threads, int dim, bool use_cvm) {
  TableConfig config = test::SmallConfig();
  config.threads = threads;
  config.accessor.layout.embedx_dim = dim;
  const auto table = test::OpenTable(config);
  Keys keys;
  for (uint64_t i = 1; i <= 400; ++i) keys.push_back(KeyOf(i));
  std::sort(keys.begin(), keys.end());
  const auto staged = table->Stage(keys.data(), nullptr, keys.size(), Purpose::kTrain, 1);
  CHECK_OK(table->Begin(staged.value().stamp));
  const Ints& ids = shared ? batch.ids : batch.all_ids;
  const Ints& offsets = shared ? batch.offsets : batch.all_offsets;
  const SharedCells cells = shared ? batch.shared() : SharedCells{};
  const size_t width = static_cast<size_t>(dim) + (use_cvm ? 3 : 1);
  Outcome outcome;
  outcome.pooled.resize(kInstances * (kSlots * width + kDense));
  for (int step = 0; step < 2; ++step) {
    CHECK_OK(table->PullPooled(ids.data(), ids.size(), offsets.data(), kInstances, kSlots, use_cvm,
                               outcome.pooled.data(), batch.dense.data(), kDense, cells));
    if (step == 0) outcome.fresh = outcome.pooled;
    Floats grad = outcome.pooled;
    for (size_t i = 0; i < grad.size(); ++i) grad[i] += static_cast<float>(i % 7) * 1e-3f;
    CHECK_OK(table->PushPooled(ids.data(), ids.size(), offsets.data(), kInstances, kSlots, use_cvm,
                               batch.show_click.data(), nullptr, 0, grad.data(), kDense, cells));
  }
  CHECK_OK(table->PullPooled(ids.data(), ids.size(), offsets.data(), kInstances, kSlots, use_cvm,
                             outcome.pooled.data(), batch.dense.data(), kDense, cells));
  CHECK_OK(table->End());
  test::Commit(table.get());
  outcome.digest = test::DigestOf(table.get());
  return outcome;
}

TEST(shared_lists_change_no_bit_on_any_path_thread_count_or_width) {
  const SharedBatch batch = Made();
  CHECK(batch.ids.size() * 2 < batch.all_ids.size());
  for (const int dim : {5, 8}) {
    for (const bool use_cvm : {false, true}) {
      CHECK_OK(SelectKernels("plain"));
      const Outcome expected = Trained(batch, false, 1, dim, use_cvm);
      for (const Kernels* path : test::Paths()) {
        CHECK_OK(SelectKernels(path->name));
        for (const int threads : {1, 3}) {
          const Outcome found = Trained(batch, true, threads, dim, use_cvm);
          CHECK(test::SameBits(found.fresh, expected.fresh));
          CHECK(test::SameBits(found.pooled, expected.pooled));
          CHECK_EQ(found.digest, expected.digest);
        }
      }
    }
  }
  CHECK_OK(SelectKernels("auto"));
}

TEST(lists_without_a_segment_or_out_of_order_are_refused_and_nothing_is_written) {
  const auto table = test::OpenTable(test::SmallConfig());
  const Keys keys = {KeyOf(1)};
  const auto staged = table->Stage(keys.data(), nullptr, 1, Purpose::kTrain, 1);
  CHECK_OK(table->Begin(staged.value().stamp));
  const Ints ids = {0, 0}, offsets = {0, 1, 2};
  Floats out(3 * 8, 7.0f), counts(6, 1.0f);
  for (const Ints& bad : {Ints{0, 0, 0}, Ints{1, 0, 1}, Ints{0, 1, 2}, Ints{0, 1, -1}}) {
    const SharedCells cells{bad.data(), 2};
    CHECK_CODE(
        table->PullPooled(ids.data(), 2, offsets.data(), 3, 1, true, out.data(), nullptr, 0, cells),
        Code::kInvalidArgument);
    CHECK_CODE(table->PushPooled(ids.data(), 2, offsets.data(), 3, 1, true, counts.data(), nullptr,
                                 0, out.data(), 0, cells),
               Code::kInvalidArgument);
  }
  CHECK(out == Floats(3 * 8, 7.0f));
  CHECK_OK(table->End());
}

}  // namespace
}  // namespace pbx
