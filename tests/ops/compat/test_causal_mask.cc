#include "compat/causal_mask.h"

#include "check.h"

using namespace pbx;

namespace {

using Longs = std::vector<int64_t>;

Status Check(const Longs& offsets) {
  return CheckSequences(offsets.data(), offsets.size() - 1).status();
}

}  // namespace

TEST(a_position_sees_itself_and_earlier_ones_of_its_sequence) {
  const Longs offsets = {0, 2, 2, 3};  // the second sequence is empty
  Result<int64_t> total = CheckSequences(offsets.data(), 3);
  CHECK_OK(total.status());
  CHECK_EQ(total.value(), 3);
  Longs mask(9, -1);
  CausalMask(offsets.data(), 3, mask.data());
  CHECK(mask == Longs({1, 0, 0, 1, 1, 0, 0, 0, 1}));
}

TEST(offsets_that_do_not_ascend_from_0_and_huge_masks_are_refused) {
  CHECK_OK(Check({0}));
  CHECK_OK(Check({0, 1 << 20}));
  CHECK_CODE(Check({1, 2}), Code::kInvalidArgument);
  CHECK_CODE(Check({0, 3, 2}), Code::kInvalidArgument);
  CHECK_CODE(Check({0, (1 << 20) + 1}), Code::kInvalidArgument);
  CHECK_CODE(Check({0, int64_t{1} << 62, 5}), Code::kInvalidArgument);
}
