#include "cuda/dense.h"

#include <cmath>
#include <limits>

#include "cuda/call.h"
#include "cuda/for_all.h"

namespace pbx::hbm {
namespace {

constexpr int64_t kPart = 64;  // rows that a thread adds up
constexpr int kStrip = 8;      // columns of a product that a thread computes

int64_t PartsOf(int64_t rows) { return (rows + kPart - 1) / kPart; }

PBX_HOST_DEVICE inline float Nan() { return NAN; }

// ---- data_norm

// Whether the slot of element i is without shows.
PBX_HOST_DEVICE bool IsEmpty(const pbx_hbm_norm& norm, const float* x, int64_t i) {
  if (norm.slot_dim == 0) return false;
  const int64_t column = i % norm.columns;
  return std::fabs(x[i - column % norm.slot_dim]) < 1e-7f;
}

struct NormStatistics {
  pbx_hbm_norm norm;
  float* means;
  float* scales;
  PBX_HOST_DEVICE void operator()(int64_t c) const {
    means[c] = norm.sum[c] / norm.size[c];
    scales[c] = std::sqrt(norm.size[c] / norm.square_sum[c]);
  }
};

struct Normalized {
  pbx_hbm_norm norm;
  const float* x;
  const float* means;
  const float* scales;
  float* y;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % norm.columns;
    const float value = (x[i] - means[c]) * scales[c] * norm.scale_w[c] + norm.bias[c];
    y[i] = IsEmpty(norm, x, i) ? 0.0f : value;
  }
};

struct NormalizedGrad {
  pbx_hbm_norm norm;
  const float* x;
  const float* scales;
  const float* dy;
  float* dx;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % norm.columns;
    dx[i] = IsEmpty(norm, x, i) ? 0.0f : dy[i] * scales[c] * norm.scale_w[c];
  }
};

// Sums over the rows of a part, out (kSums, parts, C). Terms: add(element, column, sums).
template <int kSums, class Terms>
struct PartialSums {
  pbx_hbm_norm norm;
  const float* x;
  Terms terms;
  int64_t parts;
  double* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % norm.columns, part = i / norm.columns;
    const int64_t end = (part + 1) * kPart < norm.instances ? (part + 1) * kPart : norm.instances;
    double sums[kSums] = {};
    for (int64_t row = part * kPart; row < end; ++row) {
      const int64_t at = row * norm.columns + c;
      if (!IsEmpty(norm, x, at)) terms.Add(at, c, sums);
    }
    for (int k = 0; k < kSums; ++k) out[(k * parts + part) * norm.columns + c] = sums[k];
  }
};

PBX_HOST_DEVICE double Total(const double* partial, int64_t parts, int64_t columns, int k,
                             int64_t c) {
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += partial[(k * parts + part) * columns + c];
  return sum;
}

struct GradTerms {
  const float* x;
  const float* means;
  const float* scales;
  const float* dy;
  PBX_HOST_DEVICE void Add(int64_t at, int64_t c, double* sums) const {
    sums[0] += (x[at] - means[c]) * scales[c] * dy[at];
    sums[1] += dy[at];
  }
};

struct GradSums {
  const double* partial;
  int64_t parts, columns;
  float* dscale_w;
  float* dbias;
  PBX_HOST_DEVICE void operator()(int64_t c) const {
    dscale_w[c] = static_cast<float>(Total(partial, parts, columns, 0, c));
    dbias[c] = static_cast<float>(Total(partial, parts, columns, 1, c));
  }
};

struct BatchTerms {
  pbx_hbm_norm norm;
  const float* x;
  PBX_HOST_DEVICE void Add(int64_t at, int64_t c, double* sums) const {
    const double mean = norm.sum[c] / norm.size[c], value = x[at], distance = value - mean;
    sums[0] += 1.0;
    sums[1] += value;
    sums[2] += distance * distance;
  }
};

struct NewSums {
  pbx_hbm_norm norm;
  const double* partial;
  int64_t parts;
  float* size;
  float* sum;
  float* square_sum;
  PBX_HOST_DEVICE void operator()(int64_t c) const {
    const double count = Total(partial, parts, norm.columns, 0, c);
    const bool any = count > 0.0;
    const double n = any ? count : 1.0, decay = norm.decay;
    const double total = Total(partial, parts, norm.columns, 1, c);
    const double squares = Total(partial, parts, norm.columns, 2, c);
    const double mean_square = any ? squares / n + static_cast<double>(norm.epsilon) : 0.0;
    size[c] = static_cast<float>(norm.size[c] * decay + (any ? 1.0 : 0.0));
    sum[c] = static_cast<float>(norm.sum[c] * decay + total / n);
    square_sum[c] = static_cast<float>(norm.square_sum[c] * decay + mean_square);
  }
};

template <int kSums, class Terms>
Status AddUp(const char* what, const pbx_hbm_norm& norm, const float* x, const Terms& terms,
             double* room, Stream stream) {
  const int64_t parts = PartsOf(norm.instances);
  return LaunchForAll(what, parts * norm.columns,
                      PartialSums<kSums, Terms>{norm, x, terms, parts, room}, stream);
}

Status Normalize(const pbx_hbm_norm& norm, const float* x, float* y, float* means, float* scales,
                 Stream stream) {
  PBX_RETURN_IF_ERROR(
      LaunchForAll("data_norm", norm.columns, NormStatistics{norm, means, scales}, stream));
  return LaunchForAll("data_norm", norm.instances * norm.columns,
                      Normalized{norm, x, means, scales, y}, stream);
}

Status NormalizeBackward(const pbx_hbm_norm& norm, const float* x, const float* means,
                         const float* scales, const float* dy, double* room, float* dx,
                         float* dscale_w, float* dbias, Stream stream) {
  PBX_RETURN_IF_ERROR(
      AddUp<2>("data_norm_grad", norm, x, GradTerms{x, means, scales, dy}, room, stream));
  PBX_RETURN_IF_ERROR(
      LaunchForAll("data_norm_grad", norm.columns,
                   GradSums{room, PartsOf(norm.instances), norm.columns, dscale_w, dbias}, stream));
  return LaunchForAll("data_norm_grad", norm.instances * norm.columns,
                      NormalizedGrad{norm, x, scales, dy, dx}, stream);
}

Status UpdateNorm(const pbx_hbm_norm& norm, const float* x, double* room, float* size, float* sum,
                  float* square_sum, Stream stream) {
  PBX_RETURN_IF_ERROR(AddUp<3>("data_norm_update", norm, x, BatchTerms{norm, x}, room, stream));
  return LaunchForAll("data_norm_update", norm.columns,
                      NewSums{norm, room, PartsOf(norm.instances), size, sum, square_sum}, stream);
}

// ---- Products

struct GroupProducts {
  pbx_hbm_product of;
  const float* x;
  const float* y;
  const float* bias;
  float* out;
  int64_t strips;  // of a row
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t strip = i % strips, row = i / strips % of.rows, group = i / strips / of.rows;
    const int64_t first = strip * kStrip;
    const int count = static_cast<int>(of.columns - first < kStrip ? of.columns - first : kStrip);
    const float* const left = x == nullptr ? x : x + group * of.x_group + row * of.x_row;
    const float* const right = y + group * of.y_group + first * of.y_column;
    float sums[kStrip] = {};
    for (int j = 0; bias != nullptr && j < count; ++j) {
      sums[j] = bias[group * of.columns + first + j];
    }
    for (int64_t k = 0; k < of.summed; ++k) {
      const float value = x == nullptr ? 1.0f : left[k * of.x_column];
      for (int j = 0; j < count; ++j) sums[j] += value * right[k * of.y_row + j * of.y_column];
    }
    float* const to = out + group * of.out_group + row * of.out_row + first;
    for (int j = 0; j < count; ++j) to[j] = sums[j];
  }
};

Status MultiplyGroups(const pbx_hbm_product& product, const float* x, const float* y,
                      const float* bias, float* out, Stream stream) {
  const int64_t strips = (product.columns + kStrip - 1) / kStrip;
  return LaunchForAll("batch_fc", product.groups * product.rows * strips,
                      GroupProducts{product, x, y, bias, out, strips}, stream);
}

// ---- rank_attention

// Calls f(block, row) for the pairs of instance i that count, in order. False if one is wrong.
template <class F>
PBX_HOST_DEVICE bool ForPairs(const pbx_hbm_ranks& ranks, int64_t i, const F& f) {
  const int64_t highest = ranks.max_rank, stride = 2 * highest + 1;
  const int32_t* const line = ranks.ranks + i * stride;
  if (line[0] < 1) return true;
  for (int64_t at = 1; at < stride; at += 2) {
    if (line[at] < 1) continue;
    const int64_t row = line[at + 1];
    if (line[0] > highest || line[at] > highest || row < 0 || row >= ranks.instances) return false;
    f((line[0] - 1) * highest + line[at] - 1, row);
  }
  return true;
}

struct Attended {
  pbx_hbm_ranks ranks;
  const float* x;
  const float* param;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const int64_t o = at % ranks.outputs, i = at / ranks.outputs;
    float sum = 0;
    const bool right = ForPairs(ranks, i, [&](int64_t block, int64_t row) {
      const float* const matrix = param + block * ranks.inputs * ranks.outputs + o;
      for (int64_t a = 0; a < ranks.inputs; ++a) {
        sum += x[row * ranks.inputs + a] * matrix[a * ranks.outputs];
      }
    });
    out[at] = right ? sum : Nan();
  }
};

struct PairGrad {
  pbx_hbm_ranks ranks;
  const float* x;
  const float* dout;
  float* dparam;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const int64_t o = at % ranks.outputs, a = at / ranks.outputs % ranks.inputs;
    const int64_t own = at / ranks.outputs / ranks.inputs;
    float sum = 0;
    for (int64_t i = 0; i < ranks.instances; ++i) {
      ForPairs(ranks, i, [&](int64_t block, int64_t row) {
        if (block == own) sum += x[row * ranks.inputs + a] * dout[i * ranks.outputs + o];
      });
    }
    dparam[at] = sum;
  }
};

struct AttendedGrad {
  pbx_hbm_ranks ranks;
  const float* param;
  const float* dout;
  float* dx;
  PBX_HOST_DEVICE void operator()(int64_t at) const {
    const int64_t a = at % ranks.inputs, own = at / ranks.inputs;
    float sum = 0;
    for (int64_t i = 0; i < ranks.instances; ++i) {
      ForPairs(ranks, i, [&](int64_t block, int64_t row) {
        if (row != own) return;
        const float* const line = param + (block * ranks.inputs + a) * ranks.outputs;
        for (int64_t o = 0; o < ranks.outputs; ++o) sum += dout[i * ranks.outputs + o] * line[o];
      });
    }
    dx[at] = sum;
  }
};

Status AttendBackward(const pbx_hbm_ranks& ranks, const float* x, const float* param,
                      const float* dout, float* dx, float* dparam, Stream stream) {
  const int64_t blocks = ranks.max_rank * ranks.max_rank;
  PBX_RETURN_IF_ERROR(LaunchForAll("rank_attention_grad", blocks * ranks.inputs * ranks.outputs,
                                   PairGrad{ranks, x, dout, dparam}, stream));
  if (dx == nullptr) return Status::Ok();
  return LaunchForAll("rank_attention_grad", ranks.instances * ranks.inputs,
                      AttendedGrad{ranks, param, dout, dx}, stream);
}

Stream As(void* stream) { return static_cast<Stream>(stream); }

}  // namespace
}  // namespace pbx::hbm

using pbx::hbm::As;
using pbx::hbm::Told;

uint64_t pbx_hbm_norm_room(int64_t instances, int64_t columns) {
  return static_cast<uint64_t>(3 * pbx::hbm::PartsOf(instances) * columns);
}
int pbx_hbm_norm_forward(const pbx_hbm_norm* norm, const float* x, float* y, float* means,
                         float* scales, void* stream) {
  return Told(pbx::hbm::Normalize(*norm, x, y, means, scales, As(stream)));
}
int pbx_hbm_norm_backward(const pbx_hbm_norm* norm, const float* x, const float* means,
                          const float* scales, const float* dy, double* room, float* dx,
                          float* dscale_w, float* dbias, void* stream) {
  return Told(pbx::hbm::NormalizeBackward(*norm, x, means, scales, dy, room, dx, dscale_w, dbias,
                                          As(stream)));
}
int pbx_hbm_norm_update(const pbx_hbm_norm* norm, const float* x, double* room, float* size,
                        float* sum, float* square_sum, void* stream) {
  return Told(pbx::hbm::UpdateNorm(*norm, x, room, size, sum, square_sum, As(stream)));
}
int pbx_hbm_multiply(const pbx_hbm_product* product, const float* x, const float* y,
                     const float* bias, float* out, void* stream) {
  return Told(pbx::hbm::MultiplyGroups(*product, x, y, bias, out, As(stream)));
}
int pbx_hbm_ranks_forward(const pbx_hbm_ranks* ranks, const float* x, const float* param,
                          float* out, void* stream) {
  return Told(pbx::hbm::LaunchForAll("rank_attention", ranks->instances * ranks->outputs,
                                     pbx::hbm::Attended{*ranks, x, param, out}, As(stream)));
}
int pbx_hbm_ranks_backward(const pbx_hbm_ranks* ranks, const float* x, const float* param,
                           const float* dout, float* dx, float* dparam, void* stream) {
  return Told(pbx::hbm::AttendBackward(*ranks, x, param, dout, dx, dparam, As(stream)));
}
