#include "paddle/bindings/table_config.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "paddle/bindings/arrays.h"

namespace pbx {
namespace {

RuleConfig RuleFrom(const py::dict& fields) {
  RuleConfig rule;
  const std::string kind = fields["rule"].cast<std::string>();
  static constexpr std::pair<const char*, RuleKind> kKinds[] = {
      {"naive", RuleKind::kNaive},
      {"adagrad", RuleKind::kAdaGrad},
      {"std_adagrad", RuleKind::kStdAdaGrad},
      {"adagrad_v2", RuleKind::kAdaGradV2},
      {"adam", RuleKind::kAdam},
      {"shared_adam", RuleKind::kSharedAdam},
      {"ftrl", RuleKind::kFtrl}};
  const auto* const found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&](const auto& known) { return kind == known.first; });
  if (found == std::end(kKinds)) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "rule '%s': expected naive, adagrad, std_adagrad, adagrad_v2, adam, "
                       "shared_adam or ftrl",
                       kind.c_str()));
  }
  rule.kind = found->second;
  rule.learning_rate = fields["learning_rate"].cast<float>();
  rule.initial_range = fields["initial_range"].cast<float>();
  rule.initial_g2sum = fields["initial_g2sum"].cast<float>();
  rule.beta1 = fields["beta1"].cast<float>();
  rule.beta2 = fields["beta2"].cast<float>();
  rule.epsilon = fields["epsilon"].cast<float>();
  rule.l1 = fields["l1"].cast<float>();
  rule.l2 = fields["l2"].cast<float>();
  rule.min_bound = fields["min_bound"].cast<float>();
  rule.max_bound = fields["max_bound"].cast<float>();
  return rule;
}

Precision PrecisionFrom(const std::string& name) {
  if (name == "float16") return Precision::kFloat16;
  if (name == "bfloat16") return Precision::kBfloat16;
  if (name != "float32") {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "row_precision '%s': expected float32, float16 or bfloat16", name.c_str()));
  }
  return Precision::kFloat32;
}

}  // namespace

OnBadGrad OnBadGradFrom(const std::string& name) {
  if (name == "skip") return OnBadGrad::kSkip;
  if (name == "clip") return OnBadGrad::kClip;
  if (name != "error") {
    ThrowIfError(Error(Code::kInvalidArgument, "on_bad_grad '%s': expected error, skip or clip",
                       name.c_str()));
  }
  return OnBadGrad::kError;
}

static LifeEvent EventFrom(const py::dict& record) {
  LifeEvent event;
  event.seq = record["seq"].cast<uint32_t>();
  const std::string kind = record["kind"].cast<std::string>();
  static constexpr std::pair<const char*, LifeKind> kKinds[] = {
      {"decay", LifeKind::kDecay},
      {"shrink", LifeKind::kShrink},
      {"delta_reset", LifeKind::kDeltaReset},
      {"reset_rows", LifeKind::kResetRows},
      {"weight_decay", LifeKind::kWeightDecay},
      {"erase", LifeKind::kErase},
      {"evict", LifeKind::kEvict}};
  const auto* const found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&](const auto& known) { return kind == known.first; });
  if (found == std::end(kKinds)) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "life event %u: kind '%s', expected decay, shrink, delta_reset, "
                       "reset_rows, weight_decay, erase or evict",
                       event.seq, kind.c_str()));
  }
  event.kind = found->second;
  switch (event.kind) {
    case LifeKind::kWeightDecay:
      event.embed_decay = record["embed_decay"].cast<float>();
      event.embedx_decay = record["embedx_decay"].cast<float>();
      break;
    case LifeKind::kErase:
      event.keys = std::make_shared<const std::vector<uint64_t>>(
          record["keys"].cast<std::vector<uint64_t>>());
      event.slot = record["slot"].cast<int32_t>();
      break;
    case LifeKind::kEvict: {
      const float score = record["min_score"].cast<float>();
      event.by_day = record["by_day"].cast<bool>();
      event.lowest.day = record["day"].cast<uint32_t>();
      std::memcpy(&event.lowest.score, &score, sizeof(score));
      event.lowest.key = record["min_key"].cast<uint64_t>();
      break;
    }
    default:
      event.day = record["day"].cast<uint32_t>();
      event.decay = record["decay"].cast<float>();
      event.min_score = record["min_score"].cast<float>();
      event.min_delta_score = record["min_delta_score"].cast<float>();
      event.max_unseen_days = record["max_unseen_days"].cast<uint32_t>();
  }
  return event;
}

std::vector<LifeEvent> EventsFrom(const std::vector<py::dict>& records) {
  std::vector<LifeEvent> events;
  events.reserve(records.size());
  for (const py::dict& record : records) events.push_back(EventFrom(record));
  return events;
}

py::dict ToDict(const LifeEvent& event) {
  py::dict out;
  out["seq"] = event.seq;
  if (event.kind == LifeKind::kWeightDecay) {
    out["kind"] = "weight_decay";
    out["embed_decay"] = event.embed_decay;
    out["embedx_decay"] = event.embedx_decay;
    return out;
  }
  float score;
  std::memcpy(&score, &event.lowest.score, sizeof(score));
  out["kind"] = "evict";
  out["by_day"] = event.by_day;
  out["day"] = event.lowest.day;
  out["min_score"] = score;
  out["min_key"] = event.lowest.key;
  return out;
}

TableConfig ConfigFrom(const py::dict& fields) {
  TableConfig config;
  config.name = fields["name"].cast<std::string>();
  config.accessor.seed = fields["seed"].cast<uint64_t>();
  config.accessor.nonclk_coeff = fields["nonclk_coeff"].cast<float>();
  config.accessor.click_coeff = fields["click_coeff"].cast<float>();
  config.accessor.embedx_threshold = fields["embedx_threshold"].cast<float>();
  config.accessor.show_scale = fields["show_scale"].cast<bool>();
  config.accessor.weight_decay = fields["weight_decay"].cast<float>();
  config.accessor.embed = RuleFrom(fields["embed"].cast<py::dict>());
  config.accessor.embedx = RuleFrom(fields["embedx"].cast<py::dict>());
  config.accessor.expand = RuleFrom(fields["expand"].cast<py::dict>());
  config.accessor.layout.embedx_dim = fields["embedx_dim"].cast<int>();
  config.accessor.layout.expand_dim = fields["expand_dim"].cast<int>();
  config.accessor.layout.counts = static_cast<int>(py::len(fields["counts"]));
  config.slot_rates = fields["slot_rates"].cast<std::vector<float>>();
  config.hbm_budget_bytes = fields["hbm_budget_bytes"].cast<uint64_t>();
  config.mem_budget_bytes = fields["mem_budget_bytes"].cast<uint64_t>();
  config.ssd_folder = fields["ssd_folder"].cast<std::string>();
  config.max_segment_bytes = fields["max_segment_bytes"].cast<uint64_t>();
  config.threads = fields["threads"].cast<int>();
  config.read_only = fields["read_only"].cast<bool>();
  const py::dict admission = fields["admission"].cast<py::dict>();
  config.admission_min_count = admission["min_count"].cast<uint32_t>();
  config.admission_filter_bytes = admission["filter_bytes"].cast<uint64_t>();
  config.admission_probability = admission["probability"].cast<double>();
  config.on_bad_grad = OnBadGradFrom(fields["on_bad_grad"].cast<std::string>());
  config.precision = PrecisionFrom(fields["row_precision"].cast<std::string>());
  config.events = EventsFrom(fields["events"].cast<std::vector<py::dict>>());
  return config;
}

}  // namespace pbx
