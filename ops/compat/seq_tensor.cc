#include "compat/seq_tensor.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pbx {
namespace {

// Whether a * b * c * d is `product`, computed without overflow. REQUIRES: all factors above 0.
bool IsProduct(int64_t product, int64_t a, int64_t b, int64_t c, int64_t d) {
  for (const int64_t factor : {a, b, c, d}) {
    if (product % factor != 0) return false;
    product /= factor;
  }
  return product == 1;
}

// SeqTensor in elements, and the order of loops that both directions have.
struct Sizes {
  explicit Sizes(const SeqTensor& seq)
      : batches(static_cast<size_t>(seq.batches)),
        length(static_cast<size_t>(seq.length)),
        slots(static_cast<size_t>(seq.slots)),
        ad_first(static_cast<size_t>(seq.ad_offset)),
        ad_end(ad_first + static_cast<size_t>(seq.ad_slots)),
        columns(static_cast<size_t>(seq.columns)),
        ad(static_cast<size_t>(seq.ad_slots) * columns),
        side(slots * columns - ad),
        slot(length * columns) {}

  bool IsAd(size_t s) const { return s >= ad_first && s < ad_end; }

  size_t batches, length, slots;
  size_t ad_first, ad_end;  // the ad's slots
  size_t columns;
  size_t ad, side;  // floats of a position: those of the ad's slots, the others
  size_t slot;      // floats of a slot of x
};

}  // namespace

Status CheckSeqTensor(const SeqTensor& seq, int64_t x_columns, int64_t ad_columns) {
  if (seq.batches < 1 || seq.length < 1 || seq.columns < 1 || seq.ad_slots < 1 ||
      seq.slots <= seq.ad_slots) {
    return Error(Code::kInvalidArgument,
                 "batch_count = %lld, max_length = %lld, fea_emb_dim = %lld, ad_slot_num = %lld, "
                 "slot_num = %lld: expected at least 1, and more slots than those of the ad",
                 static_cast<long long>(seq.batches), static_cast<long long>(seq.length),
                 static_cast<long long>(seq.columns), static_cast<long long>(seq.ad_slots),
                 static_cast<long long>(seq.slots));
  }
  if (seq.ad_offset != 0 && seq.ad_offset != seq.slots - seq.ad_slots) {
    return Error(Code::kInvalidArgument,
                 "ad_slot_offset is %lld, expected 0 or slot_num - ad_slot_num = %lld: the ad's "
                 "slots are the first or the last",
                 static_cast<long long>(seq.ad_offset),
                 static_cast<long long>(seq.slots - seq.ad_slots));
  }
  if (!IsProduct(x_columns, seq.batches, seq.slots, seq.length, seq.columns) ||
      !IsProduct(ad_columns, seq.batches, seq.ad_slots, seq.columns, 1)) {
    return Error(Code::kInvalidArgument,
                 "Input has %lld columns and ADInput %lld, expected batch_count * slot_num * "
                 "max_length * fea_emb_dim = %lld * %lld * %lld * %lld and batch_count * "
                 "ad_slot_num * fea_emb_dim = %lld * %lld * %lld",
                 static_cast<long long>(x_columns), static_cast<long long>(ad_columns),
                 static_cast<long long>(seq.batches), static_cast<long long>(seq.slots),
                 static_cast<long long>(seq.length), static_cast<long long>(seq.columns),
                 static_cast<long long>(seq.batches), static_cast<long long>(seq.ad_slots),
                 static_cast<long long>(seq.columns));
  }
  return Status::Ok();
}

void SeqTensorForward(const SeqTensor& seq, size_t instances, const float* x, const float* ad,
                      const SeqTensorOutputs& out) {
  const Sizes n(seq);
  float *din = out.din, *mask = out.mask, *side = out.side, *session = out.session;
  for (size_t k = 0; k < n.batches; ++k) {
    for (size_t i = 0; i < instances; ++i) {
      const float* const sequence = x + (i * n.batches + k) * n.slots * n.slot;
      const float* const own_ad = ad + (i * n.batches + k) * n.ad;
      for (size_t l = 0; l < n.length; ++l) {
        double sum = 0.0;
        for (size_t s = 0; s < n.slots; ++s) {
          const float* const from = sequence + s * n.slot + l * n.columns;
          for (size_t c = 0; c < n.columns; ++c) sum += static_cast<double>(from[c]);
          float** const to = n.IsAd(s) ? &session : &side;
          *to = std::copy(from, from + n.columns, *to);
        }
        *mask++ = std::fabs(sum) > 1e-8 ? 1.0f : 0.0f;
        const float* const own = session - n.ad;
        din = std::copy(own, own + n.ad, din);
        din = std::copy(own_ad, own_ad + n.ad, din);
        for (size_t c = 0; c < n.ad; ++c) *din++ = own[c] - own_ad[c];
        for (size_t c = 0; c < n.ad; ++c) *din++ = own[c] * own_ad[c];
      }
    }
  }
}

void SeqTensorBackward(const SeqTensor& seq, size_t instances, const float* x, const float* ad,
                       const SeqTensorGradients& dout, float* dx, float* dad) {
  const Sizes n(seq);
  const float *din = dout.din, *side = dout.side, *session = dout.session;
  std::vector<double> ad_sums(n.ad);
  for (size_t k = 0; k < n.batches; ++k) {
    for (size_t i = 0; i < instances; ++i) {
      const size_t at = (i * n.batches + k) * n.slots * n.slot;
      const float* const own_ad = ad + (i * n.batches + k) * n.ad;
      std::fill(ad_sums.begin(), ad_sums.end(), 0.0);
      for (size_t l = 0; l < n.length; ++l) {
        const float *d_x = din, *d_ad = din + n.ad, *d_difference = din + 2 * n.ad,
                    *d_product = din + 3 * n.ad;
        size_t a = 0;
        for (size_t s = 0; s < n.slots; ++s) {
          const size_t from = at + s * n.slot + l * n.columns;
          float* to = dx + from;
          if (!n.IsAd(s)) {
            std::copy(side, side + n.columns, to);
            side += n.columns;
            continue;
          }
          for (size_t c = 0; c < n.columns; ++c, ++a) {
            *to++ = d_x[a] + d_difference[a] + d_product[a] * own_ad[a] + *session++;
            ad_sums[a] += static_cast<double>(d_ad[a] - d_difference[a]) +
                          static_cast<double>(d_product[a]) * static_cast<double>(x[from + c]);
          }
        }
        din += 4 * n.ad;
      }
      float* const to = dad + (i * n.batches + k) * n.ad;
      for (size_t c = 0; c < n.ad; ++c) to[c] = static_cast<float>(ad_sums[c]);
    }
  }
}

}  // namespace pbx
