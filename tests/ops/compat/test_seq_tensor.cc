#include "compat/seq_tensor.h"

#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

struct Outputs {
  Floats din, mask, side, session;
};

Outputs Forward(const SeqTensor& seq, size_t instances, const Floats& x, const Floats& ad) {
  CHECK_OK(CheckSeqTensor(seq, static_cast<int64_t>(x.size() / instances),
                          static_cast<int64_t>(ad.size() / instances)));
  const size_t positions = instances * static_cast<size_t>(seq.batches * seq.length);
  const size_t own = static_cast<size_t>(seq.ad_slots * seq.columns);
  const size_t others = static_cast<size_t>((seq.slots - seq.ad_slots) * seq.columns);
  Outputs out{Floats(positions * 4 * own, -1), Floats(positions, -1),
              Floats(positions * others, -1), Floats(positions * own, -1)};
  SeqTensorForward(seq, instances, x.data(), ad.data(),
                   {out.din.data(), out.mask.data(), out.side.data(), out.session.data()});
  return out;
}

SeqTensor TwoSlots(int64_t ad_offset) {
  SeqTensor seq;
  seq.length = 2;
  seq.ad_offset = ad_offset;
  return seq;
}

}  // namespace

TEST(the_ads_slots_are_compared_with_the_ad_and_the_others_are_passed_on) {
  // Slot 0 of two positions is 2, 3; slot 1 is 5, 7; the ad is 10.
  Outputs out = Forward(TwoSlots(0), 1, {2, 3, 5, 7}, {10});
  CHECK(out.din == Floats({2, 10, -8, 20, 3, 10, -7, 30}));
  CHECK(out.session == Floats({2, 3}));
  CHECK(out.side == Floats({5, 7}));
  out = Forward(TwoSlots(1), 1, {2, 3, 5, 7}, {10});
  CHECK(out.din == Floats({5, 10, -5, 50, 7, 10, -3, 70}));
  CHECK(out.session == Floats({5, 7}));
  CHECK(out.side == Floats({2, 3}));
}

TEST(a_position_whose_floats_add_up_to_0_is_masked) {
  CHECK(Forward(TwoSlots(0), 1, {0, 1, 0, -1}, {10}).mask == Floats({0, 0}));
  CHECK(Forward(TwoSlots(0), 1, {0, -1, 2e-8f, 0}, {10}).mask == Floats({1, 1}));
}

TEST(batches_of_sequences_come_first_in_the_outputs) {
  SeqTensor seq;
  seq.batches = 2;
  // Instance 0 has the sequences (1, 2) and (3, 4), instance 1 (5, 6) and (7, 8).
  const Outputs out = Forward(seq, 2, {1, 2, 3, 4, 5, 6, 7, 8}, {10, 20, 30, 40});
  CHECK(out.session == Floats({1, 5, 3, 7}));
  CHECK(out.side == Floats({2, 6, 4, 8}));
  CHECK(out.din == Floats({1, 10, -9, 10, 5, 30, -25, 150, 3, 20, -17, 60, 7, 40, -33, 280}));
}

TEST(the_gradient_is_the_derivative) {
  const SeqTensor seq = TwoSlots(0);
  const Floats x = {2, 3, 5, 7}, ad = {10};
  const Floats din = {1, 2, 4, 8, 16, 32, 64, 128}, side = {3, 5}, session = {7, 9};
  Floats dx(4, -1), dad(1, -1);
  SeqTensorBackward(seq, 1, x.data(), ad.data(), {din.data(), side.data(), session.data()},
                    dx.data(), dad.data());
  CHECK(dx == Floats({1 + 4 + 80 + 7, 16 + 64 + 1280 + 9, 3, 5}));
  CHECK(dad == Floats({2 - 4 + 8 * 2 + 32 - 64 + 128 * 3}));
}

TEST(numbers_that_do_not_fit_are_refused) {
  const SeqTensor good = TwoSlots(0);
  const auto check = [&](auto change, int64_t x_columns = 4, int64_t ad_columns = 1) {
    SeqTensor seq = good;
    change(&seq);
    return CheckSeqTensor(seq, x_columns, ad_columns);
  };
  CHECK_OK(check([](SeqTensor*) {}));
  CHECK_CODE(check([](SeqTensor*) {}, 5), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor*) {}, 4, 2), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor*) {}, 0), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->batches = 0; }), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->length = -2; }), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->columns = 0; }), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->ad_slots = 2; }), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->ad_offset = 2; }), Code::kInvalidArgument);
  CHECK_CODE(check([](SeqTensor* s) { s->length = s->batches = int64_t{1} << 31; }),
             Code::kInvalidArgument);
}
