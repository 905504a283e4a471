#include "dense/jagged_attention.h"

#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

Floats Random(size_t n, uint64_t seed) {
  Floats values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>(Mix(seed * 1000003 + i) >> 40) / 8388608.0f - 1.0f;
  return values;
}

float Silu(float x) { return x / (1 + std::exp(-x)); }

// Causal sequences of 70, 0, 1 and 33 events, each event also a target.
struct Case {
  std::vector<int32_t> offsets{0, 70, 70, 71, 104};
  std::vector<int32_t> seen;
  std::vector<int64_t> times;
  Floats time_bias = Random(2 * 9, 1), position_bias = Random(2 * 40, 2);
  JaggedAttention attention;
  Floats q, k, v;

  Case() {
    for (size_t u = 0; u + 1 < offsets.size(); ++u)
      for (int32_t i = 0; i < offsets[u + 1] - offsets[u]; ++i) seen.push_back(i);
    seen.insert(seen.end(), seen.begin(), seen.end());
    for (size_t i = 0; i < seen.size(); ++i) times.push_back(static_cast<int64_t>(i * i));
    attention.heads = 2;
    attention.key_width = 5;
    attention.value_width = 16;
    attention.divisor = 70;
    attention.sequences = 4;
    attention.offsets = attention.target_offsets = offsets.data();
    attention.seen = seen.data();
    attention.times = times.data();
    attention.buckets = 9;
    attention.positions = 40;
    attention.time_bias = time_bias.data();
    attention.position_bias = position_bias.data();
    q = Random(208 * 10, 3);
    k = Random(208 * 10, 4);
    v = Random(208 * 32, 5);
  }
};

}  // namespace

TEST(worked_by_hand) {
  // One event and one target that sees it. The biases of distances 0 and 1 are 10 and 20.
  const int32_t offsets[] = {0, 1}, seen[] = {0, 1};
  const float position_bias[] = {10, 20}, none[] = {0};
  const float q[] = {1, 2}, k[] = {3, 4}, v[] = {1, 100};
  JaggedAttention attention;
  attention.key_width = attention.value_width = attention.sequences = 1;
  attention.offsets = attention.target_offsets = offsets;
  attention.seen = seen;
  attention.positions = 2;
  attention.position_bias = position_bias;
  attention.time_bias = none;
  attention.divisor = 2;
  CHECK_OK(CheckJaggedAttention(attention, 2));
  ThreadPool pool(1);
  float out[2];
  JaggedAttentionForward(attention, q, k, v, out, &pool);
  CHECK_NEAR(out[0], Silu(1 * 3 + 10) / 2 * 1, 1e-5);
  CHECK_NEAR(out[1], Silu(2 * 3 + 20) / 2 * 1 + Silu(2 * 4 + 10) / 2 * 100, 1e-4);
}

TEST(bits_are_the_same_for_any_number_of_threads) {
  Case of;
  for (const AttentionForm form : {AttentionForm::kPointwise, AttentionForm::kSoftmax}) {
    of.attention.form = form;
    Floats first;
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads);
      Floats made(208 * 32 + 2 * 208 * 10 + 208 * 32 + 2 * 9 + 2 * 40);
      float* at = made.data();
      JaggedAttentionForward(of.attention, of.q.data(), of.k.data(), of.v.data(), at, &pool);
      JaggedGradients to{};
      to.q = at + 208 * 32;
      to.k = to.q + 208 * 10;
      to.v = to.k + 208 * 10;
      to.time_bias = to.v + 208 * 32;
      to.position_bias = to.time_bias + 18;
      const Floats dout = Random(208 * 32, 6);
      JaggedAttentionBackward(of.attention, of.q.data(), of.k.data(), of.v.data(), dout.data(), to,
                              &pool);
      if (first.empty()) first = made;
      CHECK_EQ(std::memcmp(first.data(), made.data(), made.size() * sizeof(float)), 0);
    }
  }
}

TEST(what_a_token_does_not_see_changes_no_bit_of_it) {
  Case of;
  ThreadPool pool(1);
  Floats before(208 * 32), after(208 * 32);
  JaggedAttentionForward(of.attention, of.q.data(), of.k.data(), of.v.data(), before.data(), &pool);
  // The events from place 50 on of the first sequence.
  for (size_t i = 50 * 10; i < 70 * 10; ++i) of.k[i] += 1;
  for (size_t i = 50 * 32; i < 70 * 32; ++i) of.v[i] += 1;
  JaggedAttentionForward(of.attention, of.q.data(), of.k.data(), of.v.data(), after.data(), &pool);
  const auto same = [&](size_t begin, size_t end) {
    return std::memcmp(before.data() + begin * 32, after.data() + begin * 32,
                       (end - begin) * 32 * sizeof(float)) == 0;
  };
  CHECK(same(0, 50));
  CHECK(!same(50, 51));
  CHECK(same(70, 104 + 51));  // a target sees the events before its own place
  CHECK(!same(104 + 51, 104 + 52));
  CHECK(same(104 + 70, 208));
}

TEST(mistakes_are_named) {
  Case of;
  CHECK_OK(CheckJaggedAttention(of.attention, 208));
  CHECK_CODE(CheckJaggedAttention(of.attention, 207), Code::kInvalidArgument);
  of.seen[207] = 34;
  CHECK_CODE(CheckJaggedAttention(of.attention, 208), Code::kInvalidArgument);
  of.seen[207] = -1;
  CHECK_CODE(CheckJaggedAttention(of.attention, 208), Code::kInvalidArgument);
  of.seen[207] = 0;
  of.offsets[2] = 60;
  CHECK_CODE(CheckJaggedAttention(of.attention, 208), Code::kInvalidArgument);
  CHECK_CODE(AttentionFormOf("mean").status(), Code::kInvalidArgument);
}
