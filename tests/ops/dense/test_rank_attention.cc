#include "dense/rank_attention.h"

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;
using Ranks = std::vector<int32_t>;

// One input and output a rank, R = 2: param is w11, w12, w21, w22.
RankAttention Of(const Ranks& ranks) { return {ranks.size() / 5, 1, 1, 2, ranks.data()}; }
}  // namespace

// Rows 0 and 1 are ranks 1 and 2 of one page; row 2 has no rank.
const Ranks kPage = {1, 1, 0, 2, 1, 2, 1, 0, 2, 1, -1, -1, -1, -1, -1};

TEST(each_pair_of_ranks_has_its_block) {
  const Floats x = {3, 5, 7}, param = {1, 10, 100, 1000};
  Floats y(3, -1.0f);
  CHECK_OK(CheckRanks(Of(kPage)));
  RankAttentionForward(Of(kPage), x.data(), param.data(), y.data());
  CHECK(y == Floats({3 * 1 + 5 * 10, 3 * 100 + 5 * 1000, 0}));
}

TEST(gradients_go_to_the_blocks_and_rows_that_were_read) {
  const Floats x = {3, 5, 7}, param = {1, 10, 100, 1000}, dy = {1, 2, 9};
  Floats dx(3, -1.0f), dparam(4, -1.0f);
  RankAttentionBackward(Of(kPage), x.data(), param.data(), dy.data(), dx.data(), dparam.data());
  CHECK(dparam == Floats({3, 5, 6, 10}));
  CHECK(dx == Floats({1 + 200, 10 + 2000, 0}));
}

// The block follows the rank that a pair names, not the place of the pair in the line.
TEST(a_pair_out_of_place_is_used_by_its_rank) {
  const Ranks ranks = {1, 2, 1, -1, -1, -1, -1, -1, -1, -1};
  const Floats x = {3, 5}, param = {1, 10, 100, 1000}, dy = {1, 1};
  Floats y(2), dparam(4);
  RankAttentionForward(Of(ranks), x.data(), param.data(), y.data());
  CHECK_EQ(y[0], 50.0f);
  RankAttentionBackward(Of(ranks), x.data(), param.data(), dy.data(), nullptr, dparam.data());
  CHECK(dparam == Floats({0, 5, 0, 0}));
}

TEST(ranks_and_rows_out_of_range_are_refused) {
  CHECK_CODE(CheckRanks(Of({3, -1, -1, -1, -1})), Code::kInvalidArgument);
  CHECK_CODE(CheckRanks(Of({1, 3, 0, -1, -1})), Code::kInvalidArgument);
  CHECK_CODE(CheckRanks(Of({1, 1, 1, -1, -1})), Code::kInvalidArgument);
  CHECK_CODE(CheckRanks(Of({1, -1, -1, 2, -1})), Code::kInvalidArgument);
  CHECK_OK(CheckRanks(Of({-1, -1, 77, 0, 77})));
}
