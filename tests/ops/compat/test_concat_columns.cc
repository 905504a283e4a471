#include "compat/concat_columns.h"

#include "check.h"

using namespace pbx;

namespace {

using Ints = std::vector<int32_t>;

Result<ConcatColumns> Plan(std::vector<ColumnPart> parts, int64_t groups) {
  return PlanConcat(std::move(parts), groups);
}

}  // namespace

TEST(columns_stand_side_by_side_and_their_gradient_goes_back) {
  Result<ConcatColumns> plan = Plan({{3, 1, 2}, {2, 0, 1}}, 1);
  CHECK_OK(plan.status());
  const Ints a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10};
  Ints out(6), da(6, -1), db(4, -1);
  const auto bytes = [](auto& of) { return reinterpret_cast<char*>(of.data()); };
  ConcatColumnsForward(
      plan.value(),
      {reinterpret_cast<const char*>(a.data()), reinterpret_cast<const char*>(b.data())}, 2,
      sizeof(int32_t), bytes(out));
  CHECK(out == Ints({2, 3, 7, 5, 6, 9}));
  ConcatColumnsBackward(plan.value(), reinterpret_cast<const char*>(out.data()), 2, sizeof(int32_t),
                        {bytes(da), bytes(db)});
  CHECK(da == Ints({0, 2, 3, 0, 5, 6}));
  CHECK(db == Ints({7, 0, 9, 0}));
}

TEST(the_rows_of_a_group_follow_those_of_the_one_before) {
  Result<ConcatColumns> plan = Plan({{1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}}, 2);
  CHECK_OK(plan.status());
  const Ints in[] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  std::vector<const char*> inputs;
  for (const Ints& one : in) inputs.push_back(reinterpret_cast<const char*>(one.data()));
  Ints out(8);
  ConcatColumnsForward(plan.value(), inputs, 2, sizeof(int32_t),
                       reinterpret_cast<char*>(out.data()));
  CHECK(out == Ints({1, 3, 2, 4, 5, 7, 6, 8}));
}

TEST(parts_outside_of_their_matrix_and_unequal_groups_are_refused) {
  CHECK_OK(Plan({{3, 0, 3}}, 1).status());
  CHECK_CODE(Plan({}, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, 0, 3}}, 0).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, 0, 3}}, 2).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, -1, 2}}, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, 0, 0}}, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, 1, 3}}, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(Plan({{3, 0, 3}, {3, 0, 2}}, 2).status(), Code::kInvalidArgument);
}
