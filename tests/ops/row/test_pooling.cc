// Factors of the ids of a list, and their places in a plan.
#include "row/pooling.h"

#include <cmath>

#include "check.h"
#include "row/compact.h"
#include "row/plan.h"

using namespace pbx;

namespace {

using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

Floats Factors(ListPooling pooling, const Floats& weights) {
  Floats factors = {9};  // appended to
  AppendFactors(pooling, weights.data(), weights.size(), &factors);
  return Floats(factors.begin() + 1, factors.end());
}

// Segments: {5, 2} {} {5, -1, 5} {2}.
const Ints kIds = {5, 2, 5, -1, 5, 2}, kOffsets = {0, 2, 2, 5, 6};
const Floats kFactors = {0.5f, 2, 3, 4, 5, 6};

Ints Planned() {
  Ints plan;
  BuildPlan(kIds.data(), kOffsets.data(), 4, 42, &plan, kFactors.data());
  return plan;
}

}  // namespace

TEST(factors_worked_by_hand) {
  const Floats weights = {3, 4, 0};
  CHECK(Factors(ListPooling::kPlain, weights) == Floats({1, 1, 1}));
  CHECK(Factors(ListPooling::kSum, weights) == weights);
  CHECK(Factors(ListPooling::kMean, weights) == Floats({3.0f / 7, 4.0f / 7, 0}));
  CHECK(Factors(ListPooling::kSqrtN, weights) == Floats({0.6f, 0.8f, 0}));
}

TEST(without_weights_each_is_1) {
  Floats mean, sqrtn, sum;
  AppendFactors(ListPooling::kMean, nullptr, 4, &mean);
  AppendFactors(ListPooling::kSqrtN, nullptr, 4, &sqrtn);
  AppendFactors(ListPooling::kSum, nullptr, 2, &sum);
  CHECK(mean == Floats(4, 0.25f));
  CHECK(sqrtn == Floats(4, 0.5f));
  CHECK(sum == Floats(2, 1));
}

TEST(weights_of_0_and_large_ones_have_finite_factors) {
  CHECK(Factors(ListPooling::kMean, {0, 0}) == Floats({0, 0}));
  CHECK(Factors(ListPooling::kSqrtN, {0}) == Floats({0}));
  CHECK(Factors(ListPooling::kMean, {}).empty());
  const float most = 4294967296.0f;
  CHECK(Factors(ListPooling::kMean, {most, most}) == Floats({0.5f, 0.5f}));
  CHECK(Factors(ListPooling::kSqrtN, {1e-30f}) == Floats({1}));  // its square is no float
}

TEST(a_plan_has_factors_by_id_and_by_occurrence) {
  const Ints plan = Planned();
  const Result<const float*> of_ids = FactorsOf(plan.data(), plan.size(), kIds.size());
  CHECK_OK(of_ids.status());
  CHECK(Floats(of_ids.value(), of_ids.value() + 6) == kFactors);
  const Result<PlanView> view = ViewPlan(plan.data(), plan.size(), 6, 4, kIds.size());
  CHECK_OK(view.status());
  // Occurrences of row 2 in segments 0 and 3, then of row 5 in segments 0, 2 and 2.
  CHECK(Floats(view.value().factors, view.value().factors + 5) == Floats({2, 6, 0.5f, 3, 5}));
}

TEST(a_plan_without_factors_has_none) {
  Ints plan;
  BuildPlan(kIds.data(), kOffsets.data(), 4, 42, &plan);
  CHECK(FactorsOf(plan.data(), plan.size(), kIds.size()).value() == nullptr);
  CHECK(ViewPlan(plan.data(), plan.size(), 6, 4, kIds.size()).value().factors == nullptr);
  CHECK(FactorsOf(plan.data(), plan.size(), 0).value() == nullptr);
}

TEST(a_plan_whose_size_does_not_fit_is_refused) {
  const Ints plan = Planned();
  for (const size_t nnz : {size_t{0}, size_t{5}, size_t{7}}) {
    CHECK_CODE(FactorsOf(plan.data(), plan.size(), nnz).status(), Code::kInvalidArgument);
    CHECK_CODE(ViewPlan(plan.data(), plan.size(), 6, 4, nnz).status(), Code::kInvalidArgument);
  }
  CHECK_CODE(FactorsOf(plan.data(), plan.size() - 1, 6).status(), Code::kInvalidArgument);
  CHECK_CODE(FactorsOf(plan.data(), 3, 6).status(), Code::kInvalidArgument);
}

TEST(rows_numbered_within_a_batch_keep_their_factors) {
  Ints plan = Planned(), ids = kIds, rows;
  CHECK_OK(CompactBatch(ids.data(), ids.size(), plan.data(), plan.size(), 6, &rows));
  CHECK(ids == Ints({1, 0, 1, -1, 1, 0}));
  const PlanView view = ViewPlan(plan.data(), plan.size(), 2, 4, ids.size()).value();
  CHECK(Floats(view.factors, view.factors + 5) == Floats({2, 6, 0.5f, 3, 5}));
}
