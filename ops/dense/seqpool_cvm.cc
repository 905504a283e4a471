#include "dense/seqpool_cvm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/log.h"

namespace pbx {
namespace {

std::vector<HeadFeature> HeadOf(const SeqpoolCvm& config) {
  std::vector<HeadFeature> head;
  int copied_from = config.cvm_offset;
  switch (config.form) {
    case CvmForm::kShowClick:
      head.push_back({0});
      if (!config.drop_count) head.push_back({1, config.click_not_ctr ? -1 : 0});
      copied_from = 2;
      break;
    case CvmForm::kConv:
      if (!config.drop_count) head.push_back({0});
      head.push_back({1});
      head.push_back({2, 1});
      copied_from = 3;
      break;
    case CvmForm::kCredit:
      for (int c = config.drop_count ? 1 : 0; c < config.cvm_offset; ++c) head.push_back({c});
      break;
    case CvmForm::kPcoc:
      head.push_back({0});
      head.push_back({1, 0});
      for (int from = 2; from < 4; ++from)
        for (int c = 4; c < config.cvm_offset; ++c) head.push_back({c, from});
      break;
  }
  for (int c = copied_from; c < config.cvm_offset; ++c) head.push_back({c, -1, false});
  return head;
}

// As in float arithmetic: minus infinity if sum + 1 is 0, NaN if sum + 1 is below 0.
float LogOfCount(double sum) {
  const float x = static_cast<float>(sum) + 1.0f;
  if (x > 0.0f) return Log(x);
  return x == 0.0f ? -std::numeric_limits<float>::infinity()
                   : std::numeric_limits<float>::quiet_NaN();
}

bool IsLeftOut(const SeqpoolCvm& config, const SeqpoolPlan& plan, size_t slot, const float* row) {
  const float threshold = config.thresholds[config.thresholds.size() == 1 ? 0 : slot];
  const float show = row[0], click = row[1];
  if ((show - click) * config.show_coeff + click * config.click_coeff < threshold) return true;
  if (!(config.embed_threshold > 0.0f)) return false;
  const size_t scored = config.embed_columns > 0 ? static_cast<size_t>(config.embed_columns)
                                                 : plan.columns - plan.counts;
  const float* weights = row + plan.counts;
  float squares = 0.0f;
  for (size_t c = 1; c < scored; ++c) squares += weights[c] * weights[c];
  return std::sqrt(squares) + std::fabs(weights[0]) < config.embed_threshold;
}

// Adds a half and rounds towards zero, as PaddleBox does. From 2^24 on every float is an integer
// already, and a conversion to int would overflow.
float Quantised(float weight, float ratio) {
  const float scaled = weight * ratio;
  if (!(std::fabs(scaled) < 16777216.0f)) return weight;
  const double moved = static_cast<double>(scaled) + 0.5;
  return static_cast<float>(static_cast<int32_t>(moved)) / ratio;
}

void AddRow(const SeqpoolCvm& config, const SeqpoolPlan& plan, const float* row, double* sums) {
  const size_t exact = config.quant_ratio > 0 ? plan.counts : plan.columns;
  for (size_t c = 0; c < exact; ++c) sums[c] += static_cast<double>(row[c]);
  const float ratio = static_cast<float>(config.quant_ratio);
  for (size_t c = exact; c < plan.columns; ++c)
    sums[c] += static_cast<double>(Quantised(row[c], ratio));
}

void WriteFeatures(const SeqpoolPlan& plan, const double* sums, float* logs, float* out) {
  if (!plan.head.empty())
    for (size_t c = 0; c < plan.counts; ++c) logs[c] = LogOfCount(sums[c]);
  for (const HeadFeature& feature : plan.head) {
    *out = feature.logged ? logs[feature.column] : static_cast<float>(sums[feature.column]);
    if (feature.minus >= 0) *out -= logs[feature.minus];
    ++out;
  }
  for (size_t c = plan.counts + plan.skipped; c < plan.columns; ++c)
    *out++ = static_cast<float>(sums[c]);
}

size_t SegmentOf(const SeqpoolCvm& config, size_t instances, size_t b, size_t s) {
  return config.slot_major ? s * instances + b : b * static_cast<size_t>(config.slots) + s;
}

}  // namespace

Result<CvmForm> CvmFormOf(const std::string& name) {
  const std::string names[] = {"show_click", "conv", "credit", "pcoc"};
  for (int i = 0; i < 4; ++i)
    if (name == names[i]) return Result<CvmForm>(static_cast<CvmForm>(i));
  return Error(Code::kInvalidArgument,
               "attribute form is '%s', expected show_click, conv, credit or pcoc", name.c_str());
}

Result<SeqpoolPlan> PlanSeqpool(const SeqpoolCvm& config, int64_t columns) {
  const int at_least[] = {2, 3, 1, 4};
  const int least = at_least[static_cast<int>(config.form)];
  const bool pcoc = config.form == CvmForm::kPcoc;
  const int counts = pcoc ? config.max_cvm_offset : config.cvm_offset;
  if (config.cvm_offset < least || counts < config.cvm_offset || columns <= counts) {
    return Error(Code::kInvalidArgument,
                 "%scvm_offset = %d and Values of %lld columns: expected at least %d counts at the "
                 "front of a row, and one weight after them",
                 pcoc ? "max_cvm_offset, " : "", config.cvm_offset, static_cast<long long>(columns),
                 least);
  }
  if (config.slots < 1 || config.concat < 1 || config.quant_ratio < 0) {
    return Error(
        Code::kInvalidArgument,
        "slots = %d, embedx_concate_size = %d, quant_ratio = %d: expected at least 1, 1, 0",
        config.slots, config.concat, config.quant_ratio);
  }
  if (config.embed_columns < 0 || config.embed_columns > columns - counts ||
      (config.embed_columns > 0 && config.concat > 1)) {
    return Error(Code::kInvalidArgument,
                 "embed_thres_size = %d with embedx_concate_size = %d: expected 0 to %lld, the "
                 "weights of a row, and 0 if rows are concatenated",
                 config.embed_columns, config.concat, static_cast<long long>(columns - counts));
  }
  if (config.thresholds.size() > 1 &&
      config.thresholds.size() != static_cast<size_t>(config.slots)) {
    return Error(Code::kInvalidArgument, "threshold_vec has %zu values, expected one per slot: %d",
                 config.thresholds.size(), config.slots);
  }
  SeqpoolPlan plan;
  plan.columns = static_cast<size_t>(columns);
  plan.counts = static_cast<size_t>(counts);
  if (config.use_cvm) {
    plan.head = HeadOf(config);
  } else {
    plan.skipped = static_cast<size_t>(config.embed_columns);
  }
  plan.block = plan.head.size() + plan.columns - plan.counts - plan.skipped;
  plan.width = plan.block * static_cast<size_t>(config.concat);
  return Result<SeqpoolPlan>(std::move(plan));
}

Status CheckSegments(const int32_t* offsets, size_t segments, size_t nnz) {
  bool ascending = offsets[0] == 0;
  for (size_t i = 0; i < segments; ++i) ascending &= offsets[i] <= offsets[i + 1];
  if (ascending && static_cast<size_t>(offsets[segments]) == nnz) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "Offsets: expected %zu ascending values from 0 to %zu (the rows of Values), found "
               "first %d, last %d%s",
               segments + 1, nnz, offsets[0], offsets[segments],
               ascending ? "" : ", not ascending or not from 0");
}

Status JoinSlots(const int32_t* offsets, size_t slots, size_t instances,
                 std::vector<int32_t>* joined) {
  joined->assign(1, 0);
  joined->reserve(slots * instances + 1);
  for (size_t s = 0; s < slots; ++s) {
    const int32_t* own = offsets + s * (instances + 1);
    const int64_t base = joined->back();
    if (own[0] != 0 || base + own[instances] > std::numeric_limits<int32_t>::max()) {
      return Error(
          Code::kInvalidArgument,
          "Offsets of slot %zu go from %d to %d after %lld rows of earlier slots: expected "
          "from 0, and fewer than 2^31 rows in total",
          s, own[0], own[instances], static_cast<long long>(base));
    }
    for (size_t b = 1; b <= instances; ++b) joined->push_back(static_cast<int32_t>(base + own[b]));
  }
  return Status::Ok();
}

void SeqpoolCvmForward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const float* values,
                       const int32_t* offsets, size_t instances, float* out) {
  const int32_t places = config.concat;
  const bool filters = !config.thresholds.empty() && (places == 1 || config.concat_filter);
  std::vector<double> sums(plan.columns);
  std::vector<float> logs(plan.counts);
  for (size_t b = 0; b < instances; ++b) {
    for (size_t s = 0; s < static_cast<size_t>(config.slots); ++s) {
      const int32_t* segment = offsets + SegmentOf(config, instances, b, s);
      for (int32_t place = 0; place < places; ++place, out += plan.block) {
        const int32_t begin = segment[0] + std::min(place, segment[1] - segment[0]);
        const int32_t end = places == 1 ? segment[1] : std::min(begin + 1, segment[1]);
        std::fill(sums.begin(), sums.end(), static_cast<double>(config.pad_value));
        for (int32_t i = begin; i < end; ++i) {
          const float* row = values + static_cast<size_t>(i) * plan.columns;
          if (filters && IsLeftOut(config, plan, s, row)) continue;
          AddRow(config, plan, row, sums.data());
        }
        WriteFeatures(plan, sums.data(), logs.data(), out);
      }
    }
  }
}

void SeqpoolCvmBackward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const int32_t* offsets,
                        size_t instances, const float* cvm, const int64_t* mask, const float* dout,
                        float* dvalues) {
  const size_t cvm_columns = static_cast<size_t>(config.cvm_offset);
  const size_t weights_at = plan.counts + plan.skipped;
  const size_t weights = plan.columns - weights_at;
  const int32_t last_place = config.concat - 1;
  std::vector<float> front(weights_at);
  for (size_t b = 0; b < instances; ++b) {
    const bool masked = mask != nullptr && mask[b] == 0;
    std::fill(front.begin(), front.end(), 0.0f);
    // As in PaddleBox the counts stay zero too if weights are skipped.
    if (!masked && plan.skipped == 0)
      std::copy(cvm + b * cvm_columns, cvm + (b + 1) * cvm_columns, front.begin());
    for (size_t s = 0; s < static_cast<size_t>(config.slots); ++s, dout += plan.width) {
      const int32_t* segment = offsets + SegmentOf(config, instances, b, s);
      for (int32_t i = segment[0]; i < segment[1]; ++i) {
        float* row = dvalues + static_cast<size_t>(i) * plan.columns;
        std::memcpy(row, front.data(), weights_at * sizeof(float));
        const size_t place = static_cast<size_t>(std::min(i - segment[0], last_place));
        const float* from = dout + place * plan.block + plan.head.size();
        if (masked) {
          std::memset(row + weights_at, 0, weights * sizeof(float));
        } else {
          std::memcpy(row + weights_at, from, weights * sizeof(float));
        }
      }
    }
  }
}

}  // namespace pbx
