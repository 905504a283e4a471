// seq_tensor: takes sequences of a user's behaviour and an ad apart for an attention layer such as
// DIN's. PaddleBox's fused_seq_tensor.
//
// Letters: N = instances, K = batches of sequences in an instance, L = positions of a sequence,
// S = slots of a position, A = slots that the ad has too, E = floats of a slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

struct SeqTensor {
  int64_t batches = 1;    // K
  int64_t length = 1;     // L
  int64_t slots = 2;      // S
  int64_t ad_slots = 1;   // A, below S
  int64_t columns = 1;    // E
  int64_t ad_offset = 0;  // the first of the ad's slots: 0, or S - A
};

// x has x_columns = K * S * L * E columns, and ad has ad_columns = K * A * E.
Status CheckSeqTensor(const SeqTensor& seq, int64_t x_columns, int64_t ad_columns);

struct SeqTensorOutputs {
  float* din;      // (K, N, L, 4, A, E): x, ad, x - ad, x * ad
  float* mask;     // (K, N, L): 1 if the sum of the position's floats is not within 1e-8 of 0
  float* side;     // (K, N, L, S - A, E): the other slots of x
  float* session;  // (K, N, L, A, E): the ad's slots of x
};

// x (N, K, S, L, E), ad (N, K, A, E). REQUIRES: CheckSeqTensor.
void SeqTensorForward(const SeqTensor& seq, size_t instances, const float* x, const float* ad,
                      const SeqTensorOutputs& out);

struct SeqTensorGradients {
  const float* din;
  const float* side;
  const float* session;
};

// The derivatives dx and dad, in the shapes of x and ad. The mask has none.
void SeqTensorBackward(const SeqTensor& seq, size_t instances, const float* x, const float* ad,
                       const SeqTensorGradients& dout, float* dx, float* dad);

}  // namespace pbx
