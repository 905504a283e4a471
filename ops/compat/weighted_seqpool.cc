#include "compat/weighted_seqpool.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/log.h"

namespace pbx {
namespace {

// As in float arithmetic: minus infinity if sum + 1 is 0, NaN if sum + 1 is below 0.
float LogOfCount(double sum) {
  const float x = static_cast<float>(sum) + 1.0f;
  if (x > 0.0f) return Log(x);
  return x == 0.0f ? -std::numeric_limits<float>::infinity()
                   : std::numeric_limits<float>::quiet_NaN();
}

double FactorOf(Pooling pooling, int32_t rows) {
  if (pooling == Pooling::kSum || rows == 0) return 1.0;
  return 1.0 / (pooling == Pooling::kAverage ? rows : std::sqrt(static_cast<double>(rows)));
}

struct Columns {
  explicit Columns(const WeightedSeqpool& config)
      : all(static_cast<size_t>(config.columns)),
        counts(static_cast<size_t>(config.cvm_offset)),
        floats_at(counts + static_cast<size_t>(config.trade_num)),
        weight_at(counts + static_cast<size_t>(std::max<int64_t>(config.trade_id, 0))),
        floats(all - floats_at),
        weighted(config.trade_id >= 0) {}

  size_t all, counts;
  size_t floats_at;  // the first column after the weights
  size_t weight_at;
  size_t floats;
  bool weighted;
};

// Calls visit(b, first, end) for the rows [first, end) of each slot, in the order of out.
template <typename Visit>
void ForEachSlot(const WeightedSeqpool& config, const int32_t* offsets, size_t instances,
                 Visit visit) {
  const size_t slots = static_cast<size_t>(config.slots);
  for (size_t b = 0; b < instances; ++b) {
    for (size_t s = 0; s < slots; ++s) {
      const int32_t* segment = offsets + (config.slot_major ? s * instances + b : b * slots + s);
      visit(b, segment[0], segment[1]);
    }
  }
}

}  // namespace

Result<Pooling> PoolingOf(const std::string& name) {
  const std::string names[] = {"SUM", "AVERAGE", "SQRT"};
  for (int i = 0; i < 3; ++i)
    if (name == names[i]) return Result<Pooling>(static_cast<Pooling>(i));
  return Error(Code::kInvalidArgument, "pool_type is '%s', expected SUM, AVERAGE or SQRT",
               name.c_str());
}

Status CheckWeightedSeqpool(const WeightedSeqpool& config) {
  if (config.slots < 1) {
    return Error(Code::kInvalidArgument, "slots is %lld, expected at least 1",
                 static_cast<long long>(config.slots));
  }
  if (config.cvm_offset < 2 || config.trade_num < 0 ||
      config.columns <= config.cvm_offset + config.trade_num) {
    return Error(Code::kInvalidArgument,
                 "Values of %lld columns with cvm_offset = %lld and trade_num = %lld: expected at "
                 "least 2 counts, 0 weights, and one column after them",
                 static_cast<long long>(config.columns), static_cast<long long>(config.cvm_offset),
                 static_cast<long long>(config.trade_num));
  }
  if (config.trade_id >= config.trade_num) {
    return Error(Code::kInvalidArgument,
                 "trade_id is %lld, expected less than trade_num = %lld, or a negative number for "
                 "no weight",
                 static_cast<long long>(config.trade_id), static_cast<long long>(config.trade_num));
  }
  return Status::Ok();
}

void WeightedSeqpoolForward(const WeightedSeqpool& config, const float* values,
                            const int32_t* offsets, size_t instances, float* out) {
  const Columns at(config);
  std::vector<double> sums(at.counts + at.floats);
  double* const float_sums = sums.data() + at.counts;
  ForEachSlot(config, offsets, instances, [&](size_t /*b*/, int32_t first, int32_t end) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int32_t i = first; i < end; ++i) {
      const float* const row = values + static_cast<size_t>(i) * at.all;
      const double weight = at.weighted ? static_cast<double>(row[at.weight_at]) : 1.0;
      for (size_t c = 0; c < at.counts; ++c) sums[c] += static_cast<double>(row[c]);
      for (size_t c = 0; c < at.floats; ++c)
        float_sums[c] += static_cast<double>(row[at.floats_at + c]) * weight;
    }
    const double factor = FactorOf(config.pooling, end - first);
    for (double& sum : sums) sum = sum * factor + static_cast<double>(config.pad_value);
    if (config.use_cvm) {
      const float show = LogOfCount(sums[0]);
      *out++ = show;
      *out++ = LogOfCount(sums[1]) - show;
    }
    for (size_t c = config.use_cvm ? 2 : at.counts; c < sums.size(); ++c)
      *out++ = static_cast<float>(sums[c]);
  });
}

void WeightedSeqpoolBackward(const WeightedSeqpool& config, const float* values,
                             const int32_t* offsets, size_t instances, const float* cvm,
                             const float* dout, float* dvalues) {
  const Columns at(config);
  const size_t skipped = config.use_cvm ? at.counts : 0;
  ForEachSlot(config, offsets, instances, [&](size_t b, int32_t first, int32_t end) {
    const double factor = FactorOf(config.pooling, end - first);
    const float* const gradient = dout + skipped;
    for (int32_t i = first; i < end; ++i) {
      const float* const row = values + static_cast<size_t>(i) * at.all;
      float* const to = dvalues + static_cast<size_t>(i) * at.all;
      std::fill_n(to, at.floats_at, 0.0f);
      if (!at.weighted) std::copy_n(cvm + b * at.counts, at.counts, to);
      double scale = factor;
      if (at.weighted) {
        scale *= static_cast<double>(row[at.weight_at]);
        double sum = 0.0;
        for (size_t c = 0; c < at.floats; ++c)
          sum += static_cast<double>(gradient[c]) * static_cast<double>(row[at.floats_at + c]);
        to[at.weight_at] = static_cast<float>(sum * factor);
      }
      for (size_t c = 0; c < at.floats; ++c)
        to[at.floats_at + c] = static_cast<float>(static_cast<double>(gradient[c]) * scale);
    }
    dout += config.Width();
  });
}

}  // namespace pbx
