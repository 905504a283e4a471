#include "paddle/bindings/table_config.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
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

std::vector<LifeEvent> EventsFrom(const std::vector<py::dict>& records) {
  std::vector<LifeEvent> events;
  for (const py::dict& record : records) {
    LifeEvent event;
    event.seq = record["seq"].cast<uint32_t>();
    const std::string kind = record["kind"].cast<std::string>();
    if (kind == "decay") {
      event.kind = LifeKind::kDecay;
    } else if (kind == "shrink") {
      event.kind = LifeKind::kShrink;
    } else if (kind == "delta_reset") {
      event.kind = LifeKind::kDeltaReset;
    } else if (kind == "reset_rows") {
      event.kind = LifeKind::kResetRows;
    } else if (kind == "weight_decay") {
      event.kind = LifeKind::kWeightDecay;
      event.embed_decay = record["embed_decay"].cast<float>();
      event.embedx_decay = record["embedx_decay"].cast<float>();
    } else {
      ThrowIfError(Error(Code::kInvalidArgument,
                         "life event %u: kind '%s', expected decay, shrink, delta_reset, "
                         "reset_rows or weight_decay",
                         event.seq, kind.c_str()));
    }
    if (event.kind == LifeKind::kWeightDecay) {  // has no other fields
      events.push_back(event);
      continue;
    }
    event.day = record["day"].cast<uint32_t>();
    event.decay = record["decay"].cast<float>();
    event.min_score = record["min_score"].cast<float>();
    event.min_delta_score = record["min_delta_score"].cast<float>();
    event.max_unseen_days = record["max_unseen_days"].cast<uint32_t>();
    events.push_back(event);
  }
  return events;
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
  config.on_bad_grad = OnBadGradFrom(fields["on_bad_grad"].cast<std::string>());
  config.precision = PrecisionFrom(fields["row_precision"].cast<std::string>());
  config.events = EventsFrom(fields["events"].cast<std::vector<py::dict>>());
  return config;
}

}  // namespace pbx
