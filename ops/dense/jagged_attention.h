// Attention within sequences that lie one after another, without padding.
//
//   s_ij = scale q_i . k_j + time_bias[h, bucket(t_i - t_j)] + position_bias[h, min(p, P - 1)]
//   out_i = sum over the tokens j that i sees of w(s_ij) v_j
//
// w(s) is silu(s) / divisor (pointwise), or a softmax over the tokens that i sees. attention_rows.h
// has the buckets of time.
//
// Letters: U = sequences, E = events, G = targets, T = E + G tokens, H = heads, A, V = widths of a
// head's keys and values, N = buckets of time, P = positions.
//
// The tokens are the events of all sequences, followed by the targets of all sequences. A token
// sees the first seen[i] events of its sequence, and itself. So no token sees a target but itself.
//
//     events   a a a b b    offsets         0 3 5      causal: seen[i] is the place of event i
//     targets  a a b        target_offsets  0 2 3      seen of a target: the length of its history
//
// p is the distance seen[i] - j to the j-th event, and 0 to the token itself, unless it is one of
// the events that it sees.
//
// Sequences are computed one by one, and a token's sums run over the events in ascending order. So
// bits depend neither on the number of threads nor on the processor's vector width. The result of a
// token does not depend on tokens that it does not see, if those are finite: a NaN or infinity
// spreads to neighbours that do not see it, because it is multiplied by their weight 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/threads.h"
#include "dense/gemm.h"

namespace pbx {

enum class AttentionForm { kPointwise, kSoftmax };

// "pointwise" or "softmax".
Result<AttentionForm> AttentionFormOf(const std::string& name);

struct JaggedAttention {
  AttentionForm form = AttentionForm::kPointwise;
  // With kBfloat16, the factors of each product are rounded to bfloat16; sums are float32.
  GemmType type = GemmType::kFloat32;
  size_t heads = 1, key_width = 0, value_width = 0;
  float scale = 1.0f;
  float divisor = 1.0f;                     // of the pointwise form
  size_t sequences = 0;                     // U
  const int32_t* offsets = nullptr;         // (U + 1), of the events
  const int32_t* target_offsets = nullptr;  // (U + 1), of the targets
  const int32_t* seen = nullptr;            // (T)
  size_t buckets = 1, positions = 1;        // N, P
  const float* time_bias = nullptr;         // (H, N)
  const float* position_bias = nullptr;     // (H, P)
  const int64_t* times = nullptr;           // (T); not read if N is 1

  size_t events() const { return static_cast<size_t>(offsets[sequences]); }
  size_t tokens() const { return events() + static_cast<size_t>(target_offsets[sequences]); }
};

// Both offsets ascend from 0, and there are `tokens` tokens.
Status CheckTokens(const JaggedAttention& attention, size_t tokens);

// CheckTokens, and no token sees more events than its sequence has.
Status CheckJaggedAttention(const JaggedAttention& attention, size_t tokens);

// q, k (T, H * A), v (T, H * V) -> out (T, H * V). REQUIRES: CheckJaggedAttention.
void JaggedAttentionForward(const JaggedAttention& attention, const float* q, const float* k,
                            const float* v, float* out, ThreadPool* pool);

// Outputs, each in the shape of its input.
struct JaggedGradients {
  float *q, *k, *v, *time_bias, *position_bias;
};

// dout (T, H * V). The weights are computed again, so that nothing grows with the square of a
// sequence's length.
void JaggedAttentionBackward(const JaggedAttention& attention, const float* q, const float* k,
                             const float* v, const float* dout, const JaggedGradients& gradients,
                             ThreadPool* pool);

}  // namespace pbx
