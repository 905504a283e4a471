#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "cuda/call.h"
#include "cuda/dense.h"
#include "cuda/for_all.h"
#include "cuda/memory.h"

namespace pbx::hbm {
namespace {

// The sequence of row `row`: the last one that begins at it or before. REQUIRES: row < T.
PBX_HOST_DEVICE int64_t SequenceOf(const int32_t* offsets, int64_t sequences, int64_t row) {
  int64_t low = 0, high = sequences - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (offsets[middle] <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// ---- Rows

struct Offsets {
  const float* lengths;
  int64_t sequences;
  float places;
  int32_t* offsets;
  PBX_HOST_DEVICE void operator()(int64_t) const {
    int64_t at = 0;
    bool right = true;
    offsets[0] = 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const float length = lengths[b];
      right = right && length >= 0 && length <= places && length == std::floor(length);
      at += right ? static_cast<int64_t>(length) : 0;
      right = right && at <= INT32_MAX;
      offsets[b + 1] = static_cast<int32_t>(at);
    }
    if (!right) offsets[sequences] = -1;
  }
};

struct Counted {
  const int32_t* offsets;
  int64_t sequences;
  int32_t* to;
  PBX_HOST_DEVICE void operator()(int64_t) const {
    int32_t most = 0;
    bool ascending = offsets[0] == 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const int32_t length = offsets[b + 1] - offsets[b];
      ascending = ascending && length >= 0;
      most = length > most ? length : most;
    }
    to[0] = offsets[sequences];
    to[1] = ascending ? most : -1;
  }
};

struct Places {
  pbx_hbm_jagged rows;
  int32_t* to;
  PBX_HOST_DEVICE void operator()(int64_t row) const {
    const bool spare = row >= rows.offsets[rows.sequences];
    const int64_t b = spare ? 0 : SequenceOf(rows.offsets, rows.sequences, row);
    to[row] = spare ? 0 : static_cast<int32_t>(row - rows.offsets[b]);
  }
};

struct Packed {
  pbx_hbm_jagged rows;
  int64_t places;
  bool reversed;
  const float* padded;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % rows.columns, row = i / rows.columns;
    to[i] = 0;
    if (row >= rows.offsets[rows.sequences]) return;
    const int64_t b = SequenceOf(rows.offsets, rows.sequences, row);
    const int64_t place = reversed ? rows.offsets[b + 1] - 1 - row : row - rows.offsets[b];
    to[i] = padded[(b * places + place) * rows.columns + c];
  }
};

struct Unpacked {
  pbx_hbm_jagged rows;
  int64_t places;
  bool reversed;
  const float* from;
  float* padded;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % rows.columns, place = i / rows.columns % places;
    const int64_t b = i / rows.columns / places;
    const int64_t begin = rows.offsets[b], end = rows.offsets[b + 1];
    const int64_t row = reversed ? end - 1 - place : begin + place;
    padded[i] = place < end - begin ? from[row * rows.columns + c] : 0.0f;
  }
};

struct Repeated {
  pbx_hbm_jagged rows;
  const float* x;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % rows.columns, row = i / rows.columns;
    const bool spare = row >= rows.offsets[rows.sequences];
    to[i] = spare ? 0.0f : x[SequenceOf(rows.offsets, rows.sequences, row) * rows.columns + c];
  }
};

struct Summed {
  pbx_hbm_jagged rows;
  const float* from;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % rows.columns, b = i / rows.columns;
    float sum = 0;
    for (int64_t row = rows.offsets[b]; row < rows.offsets[b + 1]; ++row) {
      sum += from[row * rows.columns + c];
    }
    to[i] = sum;
  }
};

// A column of sequence i / C. A sequence after the last one has the spare rows.
struct ColumnOf {
  int64_t c, begin, end;
  bool spare;
  PBX_HOST_DEVICE ColumnOf(const pbx_hbm_jagged& rows, int64_t i) : c(i % rows.columns) {
    const int64_t b = i / rows.columns;
    spare = b == rows.sequences;
    begin = rows.offsets[b];
    end = spare ? rows.rows : rows.offsets[b + 1];
  }
};

struct SoftmaxOfRows {
  pbx_hbm_jagged rows;
  const float* x;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const auto [c, begin, end, spare] = ColumnOf(rows, i);
    float most = -INFINITY, sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      const float value = x[row * rows.columns + c];
      most = value > most ? value : most;
    }
    for (int64_t row = begin; row < end; ++row) {
      const float value = spare ? 0.0f : std::exp(x[row * rows.columns + c] - most);
      to[row * rows.columns + c] = value;
      sum += value;
    }
    if (spare) return;
    for (int64_t row = begin; row < end; ++row) to[row * rows.columns + c] /= sum;
  }
};

struct SoftmaxOfRowsGrad {
  pbx_hbm_jagged rows;
  const float* weights;
  const float* dweights;
  float* dx;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const auto [c, begin, end, spare] = ColumnOf(rows, i);
    float mean = 0;
    for (int64_t row = begin; !spare && row < end; ++row) {
      mean += weights[row * rows.columns + c] * dweights[row * rows.columns + c];
    }
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * rows.columns + c;
      dx[at] = spare ? 0.0f : weights[at] * (dweights[at] - mean);
    }
  }
};

Status CountRows(const int32_t* offsets, int64_t sequences, int32_t* room, int32_t* rows,
                 int32_t* most, Stream stream) {
  int32_t found[2];
  PBX_RETURN_IF_ERROR(LaunchForAll("jagged_count", 1, Counted{offsets, sequences, room}, stream));
  PBX_RETURN_IF_ERROR(ToHost(found, room, sizeof(found), stream));
  PBX_RETURN_IF_ERROR(Synchronize(stream));
  *rows = found[0];
  *most = found[1];
  return Status::Ok();
}

// ---- Attention. Letters as in dense/jagged_attention.h.

PBX_HOST_DEVICE float SigmoidOf(float x) { return 1.0f / (1.0f + std::exp(-x)); }

PBX_HOST_DEVICE int64_t BucketOf(int64_t from, int64_t to, int64_t buckets) {
  if (buckets == 1 || from <= to) return 0;
  const auto difference =
      static_cast<float>(static_cast<uint64_t>(from) - static_cast<uint64_t>(to));
  uint32_t bits;
  memcpy(&bits, &difference, sizeof(bits));
  const int64_t bucket = (bits >> 22) - (0x3f800000u >> 22) + 1;
  return bucket < buckets ? bucket : buckets - 1;
}

struct Attention {
  pbx_hbm_attention of;
  const float* q;
  const float* k;
  const float* v;

  // What a query sees: events [first, first + seen), and itself unless it is one of them.
  struct Seen {
    int64_t first = 0, seen = 0;
    bool apart = false, right = true;
  };
  PBX_HOST_DEVICE Seen SeenBy(int64_t token) const {
    Seen seen;
    const int64_t events = of.offsets[of.sequences];
    const bool target = token >= events;
    const int32_t* const own = target ? of.target_offsets : of.offsets;
    const int64_t place = target ? token - events : token;
    const int64_t u = SequenceOf(own, of.sequences, place);
    seen.first = of.offsets[u];
    seen.seen = of.seen[token];
    seen.right =
        place < own[u + 1] && seen.seen >= 0 && seen.seen <= of.offsets[u + 1] - seen.first;
    seen.apart = target || token - seen.first >= seen.seen;
    return seen;
  }

  // As a factor of a product.
  PBX_HOST_DEVICE float Factor(float value) const {
    return of.bfloat16 != 0 ? FromBfloat16(ToBfloat16(value)) : value;
  }
  PBX_HOST_DEVICE float Dot(const float* x, int64_t i, const float* y, int64_t j, int64_t head,
                            int64_t width) const {
    const float* const left = x + (i * of.heads + head) * width;
    const float* const right = y + (j * of.heads + head) * width;
    float sum = 0;
    for (int64_t a = 0; a < width; ++a) sum += Factor(left[a]) * Factor(right[a]);
    return sum;
  }
  PBX_HOST_DEVICE int64_t Position(int64_t distance) const {
    return distance < of.positions ? distance : of.positions - 1;
  }
  PBX_HOST_DEVICE int64_t Bucket(int64_t i, int64_t j) const {
    return of.times == nullptr || i == j ? 0 : BucketOf(of.times[i], of.times[j], of.buckets);
  }
  // The score of query i and token j at this distance.
  PBX_HOST_DEVICE float Score(int64_t i, int64_t j, int64_t distance, int64_t head) const {
    return of.scale * Dot(q, i, k, j, head, of.key_width) +
           of.position_bias[head * of.positions + Position(distance)] +
           of.time_bias[head * of.buckets + Bucket(i, j)];
  }
  // Calls f(token, distance) for all that query i sees.
  template <class F>
  PBX_HOST_DEVICE void ForSeen(int64_t i, const Seen& seen, const F& f) const {
    for (int64_t j = 0; j < seen.seen; ++j) f(seen.first + j, seen.seen - j);
    if (seen.apart) f(i, 0);
  }
  PBX_HOST_DEVICE float HighestScore(int64_t i, const Seen& seen, int64_t head) const {
    float most = -INFINITY;
    ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      const float score = Score(i, j, distance, head);
      most = score > most ? score : most;
    });
    return most;
  }
  PBX_HOST_DEVICE float SumOfWeights(int64_t i, const Seen& seen, int64_t head, float most) const {
    float sum = 0;
    ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      sum += std::exp(Score(i, j, distance, head) - most);
    });
    return sum;
  }
  // Calls f(query) for all queries of sequence u.
  template <class F>
  PBX_HOST_DEVICE void ForQueries(int64_t u, const F& f) const {
    for (int64_t i = of.offsets[u]; i < of.offsets[u + 1]; ++i) f(i);
    const int64_t events = of.offsets[of.sequences];
    for (int64_t i = of.target_offsets[u]; i < of.target_offsets[u + 1]; ++i) f(events + i);
  }
};

struct AttentionOut {
  Attention attention;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const pbx_hbm_attention& of = attention.of;
    const int64_t head = at % of.heads, i = at / of.heads, width = of.value_width;
    const Attention::Seen seen = attention.SeenBy(i);
    float* const to = out + at * width;
    for (int64_t b = 0; b < width; ++b) to[b] = seen.right ? 0.0f : NAN;
    if (!seen.right) return;
    const float most = of.softmax != 0 ? attention.HighestScore(i, seen, head) : 0.0f;
    // Weights that are rounded are divided by their sum before, others after.
    const bool before = of.softmax != 0 && of.bfloat16 != 0;
    const float divisor = before ? attention.SumOfWeights(i, seen, head, most) : 1.0f;
    float sum = 0;
    attention.ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      const float score = attention.Score(i, j, distance, head);
      const float weight = of.softmax != 0 ? std::exp(score - most) / divisor
                                           : score * SigmoidOf(score) / of.divisor;
      sum += weight;
      const float* const value = attention.v + (j * of.heads + head) * width;
      for (int64_t b = 0; b < width; ++b) {
        to[b] += attention.Factor(weight) * attention.Factor(value[b]);
      }
    });
    for (int64_t b = 0; of.softmax != 0 && !before && b < width; ++b) to[b] /= sum;
  }
};

// The gradients of a score and of a weight. statistics: (T, H, 3) of a softmax: the highest score,
// the sum of exponentials, and the mean of the weights' gradients.
struct ScoreGrad {
  Attention attention;
  const float* dout;
  float* statistics;

  PBX_HOST_DEVICE void Of(int64_t i, int64_t j, int64_t distance, int64_t head, float* weight,
                          float* gradient) const {
    const pbx_hbm_attention& of = attention.of;
    const float score = attention.Score(i, j, distance, head);
    const float dweight = attention.Dot(dout, i, attention.v, j, head, of.value_width);
    if (of.softmax != 0) {
      const float* const held = statistics + (i * of.heads + head) * 3;
      *weight = std::exp(score - held[0]) / held[1];
      *gradient = *weight * (dweight - held[2]);
      return;
    }
    const float sigmoid = SigmoidOf(score);
    *weight = score * sigmoid / of.divisor;
    *gradient = dweight / of.divisor * (sigmoid * (1.0f + score * (1.0f - sigmoid)));
  }
};

// The statistics, and the gradients of the queries.
struct QueryGrad {
  ScoreGrad grad;
  float* dq;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const Attention& attention = grad.attention;
    const pbx_hbm_attention& of = attention.of;
    const int64_t head = at % of.heads, i = at / of.heads, width = of.key_width;
    const Attention::Seen seen = attention.SeenBy(i);
    float* const to = dq + at * width;
    for (int64_t a = 0; a < width; ++a) to[a] = seen.right ? 0.0f : NAN;
    if (!seen.right) return;
    if (of.softmax != 0) FindStatistics(i, head, seen);
    attention.ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      float weight, gradient;
      grad.Of(i, j, distance, head, &weight, &gradient);
      const float* const key = attention.k + (j * of.heads + head) * width;
      for (int64_t a = 0; a < width; ++a)
        to[a] += attention.Factor(of.scale * gradient) * attention.Factor(key[a]);
    });
  }
  PBX_HOST_DEVICE void FindStatistics(int64_t i, int64_t head, const Attention::Seen& seen) const {
    const Attention& attention = grad.attention;
    float* const held = grad.statistics + (i * attention.of.heads + head) * 3;
    const float most = attention.HighestScore(i, seen, head);
    float sum = 0, mean = 0;
    attention.ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      const float weight = std::exp(attention.Score(i, j, distance, head) - most);
      sum += weight;
      mean += weight * attention.Dot(grad.dout, i, attention.v, j, head, attention.of.value_width);
    });
    held[0] = most;
    held[1] = sum;
    held[2] = mean / sum;
  }
};

// The gradients of the keys and values, from all queries that see them.
struct KeyGrad {
  ScoreGrad grad;
  float* dk;
  float* dv;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const pbx_hbm_attention& of = grad.attention.of;
    const int64_t head = at % of.heads, j = at / of.heads;
    for (int64_t a = 0; a < of.key_width; ++a) dk[at * of.key_width + a] = 0;
    for (int64_t b = 0; b < of.value_width; ++b) dv[at * of.value_width + b] = 0;
    const Attention::Seen own = grad.attention.SeenBy(j);
    if (!own.right) return;
    if (j < of.offsets[of.sequences]) {
      const int64_t u = SequenceOf(of.offsets, of.sequences, j), place = j - own.first;
      grad.attention.ForQueries(u, [&](int64_t i) { AddIfSeen(i, j, place, head, at); });
    }
    if (own.apart) Add(j, j, 0, head, at);
  }
  PBX_HOST_DEVICE void AddIfSeen(int64_t i, int64_t j, int64_t place, int64_t head,
                                 int64_t at) const {
    const int64_t seen = grad.attention.of.seen[i];
    if (place < seen) Add(i, j, seen - place, head, at);
  }
  PBX_HOST_DEVICE void Add(int64_t i, int64_t j, int64_t distance, int64_t head, int64_t at) const {
    const pbx_hbm_attention& of = grad.attention.of;
    float weight, gradient;
    grad.Of(i, j, distance, head, &weight, &gradient);
    const float* const query = grad.attention.q + (i * of.heads + head) * of.key_width;
    const float* const from = grad.dout + (i * of.heads + head) * of.value_width;
    const Attention& attention = grad.attention;
    for (int64_t a = 0; a < of.key_width; ++a) {
      dk[at * of.key_width + a] +=
          attention.Factor(of.scale * gradient) * attention.Factor(query[a]);
    }
    for (int64_t b = 0; b < of.value_width; ++b) {
      dv[at * of.value_width + b] += attention.Factor(weight) * attention.Factor(from[b]);
    }
  }
};

// The gradients of the biases from one sequence and head: sums (U, H, N + P).
struct BiasGrad {
  ScoreGrad grad;
  float* sums;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const pbx_hbm_attention& of = grad.attention.of;
    const int64_t head = at % of.heads, u = at / of.heads;
    float* const to = sums + at * (of.buckets + of.positions);
    for (int64_t n = 0; n < of.buckets + of.positions; ++n) to[n] = 0;
    grad.attention.ForQueries(u, [&](int64_t i) { Add(i, head, to); });
  }
  PBX_HOST_DEVICE void Add(int64_t i, int64_t head, float* to) const {
    const Attention& attention = grad.attention;
    const Attention::Seen seen = attention.SeenBy(i);
    if (!seen.right) return;
    attention.ForSeen(i, seen, [&](int64_t j, int64_t distance) {
      float weight, gradient;
      grad.Of(i, j, distance, head, &weight, &gradient);
      to[attention.Bucket(i, j)] += gradient;
      to[attention.of.buckets + attention.Position(distance)] += gradient;
    });
  }
};

// Element i of the biases of times and then of positions, (H, N + P).
struct BiasSums {
  const float* sums;
  int64_t sequences, heads, buckets, positions;
  float* dtimes;
  float* dpositions;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t width = buckets + positions, n = i % width, head = i / width;
    float sum = 0;
    for (int64_t u = 0; u < sequences; ++u) sum += sums[(u * heads + head) * width + n];
    if (n < buckets) {
      dtimes[head * buckets + n] = sum;
    } else {
      dpositions[head * positions + n - buckets] = sum;
    }
  }
};

uint64_t StatisticsRoom(const pbx_hbm_attention& of) {
  return of.softmax != 0 ? static_cast<uint64_t>(of.tokens * of.heads * 3) : 0;
}

Status AttendBack(const pbx_hbm_attention& of, const float* q, const float* k, const float* v,
                  const float* dout, float* room, float* dq, float* dk, float* dv, float* dtimes,
                  float* dpositions, Stream stream) {
  const ScoreGrad grad{{of, q, k, v}, dout, room};
  float* const sums = room + StatisticsRoom(of);
  const char* const what = "jagged_attention_grad";
  PBX_RETURN_IF_ERROR(LaunchForAll(what, of.tokens * of.heads, QueryGrad{grad, dq}, stream));
  PBX_RETURN_IF_ERROR(LaunchForAll(what, of.tokens * of.heads, KeyGrad{grad, dk, dv}, stream));
  PBX_RETURN_IF_ERROR(LaunchForAll(what, of.sequences * of.heads, BiasGrad{grad, sums}, stream));
  return LaunchForAll(
      what, of.heads * (of.buckets + of.positions),
      BiasSums{sums, of.sequences, of.heads, of.buckets, of.positions, dtimes, dpositions}, stream);
}

Stream As(void* stream) { return static_cast<Stream>(stream); }

}  // namespace
}  // namespace pbx::hbm

using pbx::hbm::As;
using pbx::hbm::LaunchForAll;
using pbx::hbm::Told;

int pbx_hbm_jagged_offsets(const float* lengths, int64_t sequences, int64_t places,
                           int32_t* offsets, void* stream) {
  const pbx::hbm::Offsets made{lengths, sequences, static_cast<float>(places), offsets};
  return Told(LaunchForAll("jagged_offsets", 1, made, As(stream)));
}
int pbx_hbm_jagged_count(const int32_t* offsets, int64_t sequences, int32_t* room, int32_t* rows,
                         int32_t* most, void* stream) {
  return Told(pbx::hbm::CountRows(offsets, sequences, room, rows, most, As(stream)));
}
int pbx_hbm_jagged_places(const pbx_hbm_jagged* rows, int32_t* to, void* stream) {
  return Told(LaunchForAll("jagged_places", rows->rows, pbx::hbm::Places{*rows, to}, As(stream)));
}
int pbx_hbm_jagged_pack(const pbx_hbm_jagged* rows, int64_t places, int32_t reversed,
                        const float* padded, float* to, void* stream) {
  return Told(LaunchForAll("jagged_pack", rows->rows * rows->columns,
                           pbx::hbm::Packed{*rows, places, reversed != 0, padded, to}, As(stream)));
}
int pbx_hbm_jagged_unpack(const pbx_hbm_jagged* rows, int64_t places, int32_t reversed,
                          const float* from, float* padded, void* stream) {
  return Told(LaunchForAll("jagged_unpack", rows->sequences * places * rows->columns,
                           pbx::hbm::Unpacked{*rows, places, reversed != 0, from, padded},
                           As(stream)));
}
int pbx_hbm_jagged_repeat(const pbx_hbm_jagged* rows, const float* x, float* to, void* stream) {
  return Told(LaunchForAll("jagged_repeat", rows->rows * rows->columns,
                           pbx::hbm::Repeated{*rows, x, to}, As(stream)));
}
int pbx_hbm_jagged_sum(const pbx_hbm_jagged* rows, const float* from, float* to, void* stream) {
  return Told(LaunchForAll("jagged_sum", rows->sequences * rows->columns,
                           pbx::hbm::Summed{*rows, from, to}, As(stream)));
}
int pbx_hbm_jagged_softmax(const pbx_hbm_jagged* rows, const float* x, float* to, void* stream) {
  return Told(LaunchForAll("jagged_softmax", (rows->sequences + 1) * rows->columns,
                           pbx::hbm::SoftmaxOfRows{*rows, x, to}, As(stream)));
}
int pbx_hbm_jagged_softmax_backward(const pbx_hbm_jagged* rows, const float* weights,
                                    const float* dweights, float* dx, void* stream) {
  return Told(LaunchForAll("jagged_softmax_grad", (rows->sequences + 1) * rows->columns,
                           pbx::hbm::SoftmaxOfRowsGrad{*rows, weights, dweights, dx}, As(stream)));
}

int pbx_hbm_attention_forward(const pbx_hbm_attention* attention, const float* q, const float* k,
                              const float* v, float* out, void* stream) {
  return Told(LaunchForAll("jagged_attention", attention->tokens * attention->heads,
                           pbx::hbm::AttentionOut{{*attention, q, k, v}, out}, As(stream)));
}
uint64_t pbx_hbm_attention_room(const pbx_hbm_attention* attention) {
  const int64_t of_biases =
      attention->sequences * attention->heads * (attention->buckets + attention->positions);
  return pbx::hbm::StatisticsRoom(*attention) + static_cast<uint64_t>(of_biases);
}
int pbx_hbm_attention_backward(const pbx_hbm_attention* attention, const float* q, const float* k,
                               const float* v, const float* dout, float* room, float* dq, float* dk,
                               float* dv, float* dtime_bias, float* dposition_bias, void* stream) {
  return Told(pbx::hbm::AttendBack(*attention, q, k, v, dout, room, dq, dk, dv, dtime_bias,
                                   dposition_bias, As(stream)));
}
