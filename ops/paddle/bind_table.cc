#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "paddle/arrays.h"
#include "paddle/bindings.h"
#include "paddle/registry.h"
#include "paddle/segment_dicts.h"
#include "row/feasign.h"
#include "row/lists.h"
#include "row/plan.h"
#include "table/table.h"

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
  rule.beta = fields["beta"].cast<float>();
  rule.l1 = fields["l1"].cast<float>();
  rule.l2 = fields["l2"].cast<float>();
  rule.min_bound = fields["min_bound"].cast<float>();
  rule.max_bound = fields["max_bound"].cast<float>();
  return rule;
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
    } else {
      ThrowIfError(Error(Code::kInvalidArgument,
                         "life event %u: kind '%s', expected decay, shrink or delta_reset",
                         event.seq, kind.c_str()));
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

Precision PrecisionFrom(const std::string& name) {
  if (name == "float16") return Precision::kFloat16;
  if (name == "bfloat16") return Precision::kBfloat16;
  if (name != "float32") {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "row_precision '%s': expected float32, float16 or bfloat16", name.c_str()));
  }
  return Precision::kFloat32;
}

TableConfig ConfigFrom(const py::dict& fields) {
  TableConfig config;
  config.name = fields["name"].cast<std::string>();
  config.accessor.seed = fields["seed"].cast<uint64_t>();
  config.accessor.nonclk_coeff = fields["nonclk_coeff"].cast<float>();
  config.accessor.click_coeff = fields["click_coeff"].cast<float>();
  config.accessor.embedx_threshold = fields["embedx_threshold"].cast<float>();
  config.accessor.show_scale = fields["show_scale"].cast<bool>();
  config.accessor.embed = RuleFrom(fields["embed"].cast<py::dict>());
  config.accessor.embedx = RuleFrom(fields["embedx"].cast<py::dict>());
  config.accessor.expand = RuleFrom(fields["expand"].cast<py::dict>());
  config.accessor.layout.embedx_dim = fields["embedx_dim"].cast<int>();
  config.accessor.layout.expand_dim = fields["expand_dim"].cast<int>();
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
  config.bad_grad_bound = fields["bad_grad_bound"].cast<float>();
  config.on_bad_grad = OnBadGradFrom(fields["on_bad_grad"].cast<std::string>());
  config.precision = PrecisionFrom(fields["row_precision"].cast<std::string>());
  config.events = EventsFrom(fields["events"].cast<std::vector<py::dict>>());
  return config;
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

namespace {

std::shared_ptr<Table> OpenTable(const py::dict& fields, const std::vector<py::dict>& records) {
  const TableConfig config = ConfigFrom(fields);
  const std::vector<SegmentDescriptor> segments = SegmentsFrom(records);
  const py::gil_scoped_release release;
  std::shared_ptr<Table> table = ValueOrThrow(Table::Open(config, segments));
  ThrowIfError(RegisterTable(table));
  return table;
}

py::dict Stage(Table& table, const Array<uint64_t>& keys, const Array<uint16_t>& slots, bool train,
               uint32_t day) {
  if (slots.size() != 0 && slots.size() != keys.size()) {
    ThrowIfError(Error(Code::kInvalidArgument, "%zd keys and %zd slots",
                       static_cast<ssize_t>(keys.size()), static_cast<ssize_t>(slots.size())));
  }
  StagedPass staged;
  {
    const uint64_t* key_data = keys.data();
    const uint16_t* slot_data = slots.size() == 0 ? nullptr : slots.data();
    const size_t n = SizeOf(keys);
    const py::gil_scoped_release release;
    staged = ValueOrThrow(
        table.Stage(key_data, slot_data, n, train ? Purpose::kTrain : Purpose::kEvaluate, day));
  }
  py::dict out;
  out["stamp"] = staged.stamp;
  out["rows"] = staged.rows;
  out["refused"] = staged.refused;
  const auto& counts = staged.rows_by_origin;
  out["new"] =
      counts[static_cast<size_t>(Origin::kNew)] + counts[static_cast<size_t>(Origin::kDead)];
  out["mem"] = counts[static_cast<size_t>(Origin::kMem)];
  out["ssd"] = counts[static_cast<size_t>(Origin::kSsd)];
  out["hbm"] = counts[static_cast<size_t>(Origin::kHbm)];
  out["row_of_key"] = ToArray(std::move(staged.row_of_key));
  return out;
}

// All pairs, in key order: (n) feasigns and (n, words) rows. For tools and tests: everything in
// memory.
py::tuple ReadAll(Table& table) {
  std::vector<uint64_t> feasigns;
  std::vector<float> rows;
  const size_t words = table.row_bytes() / 4;
  {
    const py::gil_scoped_release release;
    ThrowIfError(table.Visit([&](uint64_t key, const char* row) {
      feasigns.push_back(FeasignOf(key));
      rows.resize(rows.size() + words);
      std::memcpy(rows.data() + rows.size() - words, row, words * 4);
      return Status::Ok();
    }));
  }
  const auto n = static_cast<py::ssize_t>(feasigns.size());
  return py::make_tuple(ToArray(std::move(feasigns)),
                        ToArray(std::move(rows), {n, static_cast<py::ssize_t>(words)}));
}

SaveFilter FilterFrom(const py::dict& fields) {
  SaveFilter filter;
  filter.day = fields["day"].cast<uint32_t>();
  filter.min_score = fields["min_score"].cast<float>();
  filter.min_delta_score = fields["min_delta_score"].cast<float>();
  filter.max_unseen_days = fields["max_unseen_days"].cast<uint32_t>();
  return filter;
}

// All pairs, or those that pass the filter, at most `most` at a time: callback(feasigns (n), rows
// (n, words)).
void VisitChunks(Table& table, size_t most, const py::function& callback,
                 const std::optional<py::dict>& fields) {
  const bool all = !fields.has_value();
  const SaveFilter filter = all ? SaveFilter() : FilterFrom(*fields);
  std::vector<uint64_t> feasigns;
  std::vector<float> rows;
  const size_t words = table.row_bytes() / 4;
  const auto flush = [&] {
    const py::gil_scoped_acquire acquire;
    const auto n = static_cast<py::ssize_t>(feasigns.size());
    callback(ToArray(std::move(feasigns)),
             ToArray(std::move(rows), {n, static_cast<py::ssize_t>(words)}));
    feasigns = {};
    rows = {};
  };
  const py::gil_scoped_release release;
  ThrowIfError(table.Visit([&](uint64_t key, const char* row) {
    if (!all &&
        !life::Saved(table.config().accessor, filter, reinterpret_cast<const float*>(row))) {
      return Status::Ok();
    }
    feasigns.push_back(FeasignOf(key));
    rows.resize(rows.size() + words);
    std::memcpy(rows.data() + rows.size() - words, row, words * 4);
    if (feasigns.size() == most) flush();
    return Status::Ok();
  }));
  if (!feasigns.empty()) flush();
}

// feasigns: (n), ascending by key. (n) uint8 found (and passed by the filter), (n, words) rows.
py::tuple Lookup(Table& table, const Array<uint64_t>& feasigns,
                 const std::optional<py::dict>& fields) {
  const bool all = !fields.has_value();
  const SaveFilter filter = all ? SaveFilter() : FilterFrom(*fields);
  const size_t n = SizeOf(feasigns);
  const size_t words = table.row_bytes() / 4;
  std::vector<uint64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(feasigns.data()[i]);
  std::vector<uint8_t> found(n);
  std::vector<float> rows(n * words);
  {
    const py::gil_scoped_release release;
    ThrowIfError(table.Lookup(keys.data(), n, rows.data(), found.data()));
    for (size_t i = 0; i < n && !all; ++i) {
      const float* row = rows.data() + i * words;
      if (found[i] != 0 && !life::Saved(table.config().accessor, filter, row)) found[i] = 0;
    }
  }
  return py::make_tuple(
      ToArray(std::move(found)),
      ToArray(std::move(rows), {static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(words)}));
}

// ---- The open pass, past Paddle: what an operator costs beside its kernel is 40 us a call. Inputs
// are arrays of these very dtypes (a copy would be pulled into, and thrown away).

void CheckCount(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  ThrowIfError(
      Error(Code::kInvalidArgument, "%s: found %zu values, expected %zu", what, found, expected));
}

size_t PooledWidth(const Table& table, bool use_cvm) {
  return static_cast<size_t>(table.config().accessor.layout.embedx_dim) + (use_cvm ? 3 : 1);
}

// out: (B, slots * width), written in place. offsets: as row/lists.h has them.
void PullPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, Array<float>& out) {
  const size_t width = std::max<size_t>(1, slots) * PooledWidth(table, use_cvm);
  const size_t instances = SizeOf(out) / width;
  if (SizeOf(out) != instances * width) {
    ThrowIfError(Error(Code::kInvalidArgument, "out: found %zu values, expected B * %zu",
                       SizeOf(out), width));
  }
  const SharedCells shared =
      ValueOrThrow(FindShared(instances * slots, offsets.data(), SizeOf(offsets)));
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  float* out_data = out.mutable_data();
  const size_t nnz = SizeOf(ids);
  const py::gil_scoped_release release;
  ThrowIfError(table.PullPooled(id_data, nnz, offset_data, instances, slots, use_cvm, out_data,
                                nullptr, 0, shared));
}

// show_click: (B, 2). plan: as build_plan gives it, or empty: made here. grad: as out of the pull.
void PushPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, const Array<float>& show_click,
                const Array<int32_t>& plan, const Array<float>& grad) {
  const size_t instances = SizeOf(show_click) / 2;
  CheckCount("show_click", SizeOf(show_click), instances * 2);
  const SharedCells shared =
      ValueOrThrow(FindShared(instances * slots, offsets.data(), SizeOf(offsets)));
  CheckCount("grad", SizeOf(grad), instances * slots * PooledWidth(table, use_cvm));
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  const float* show_click_data = show_click.data();
  const int32_t* plan_data = plan.data();
  const float* grad_data = grad.data();
  const size_t nnz = SizeOf(ids);
  const size_t plan_size = SizeOf(plan);
  const py::gil_scoped_release release;
  ThrowIfError(table.PushPooled(id_data, nnz, offset_data, instances, slots, use_cvm,
                                show_click_data, plan_data, plan_size, grad_data, 0, shared));
}

// The dedup plan (row/plan.h) of a batch, as the feeder makes it.
py::array_t<int32_t> MakePlan(const Array<int32_t>& ids, const Array<int32_t>& offsets,
                              int32_t stamp) {
  const size_t nnz = SizeOf(ids);
  const size_t segments = SizeOf(offsets) - 1;
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  std::vector<int32_t> plan;
  {
    const py::gil_scoped_release release;
    bool valid = SizeOf(offsets) != 0 && offset_data[0] == 0 &&
                 static_cast<size_t>(offset_data[segments]) == nnz;
    for (size_t i = 0; valid && i < segments; ++i) valid = offset_data[i] <= offset_data[i + 1];
    if (!valid) {
      ThrowIfError(Error(Code::kInvalidArgument,
                         "offsets: expected ascending values from 0 to %zu, the number of ids",
                         nnz));
    }
    BuildPlan(id_data, offset_data, segments, stamp, &plan);
  }
  return ToArray(std::move(plan));
}

py::dict Layout(const Table& table) {
  const RowLayout& layout = table.config().accessor.layout;
  py::dict out;
  out["embedx_dim"] = layout.embedx_dim;
  out["embed_state"] = layout.embed_state;
  out["embedx_state"] = layout.embedx_state;
  out["expand_dim"] = layout.expand_dim;
  out["expand_state"] = layout.expand_state;
  out["fingerprint"] = layout.Fingerprint();  // of rows as docs/formats/row.md has them
  return out;
}

py::dict Counters(const Table& table) {
  const TableCounters c = table.counters();
  py::dict out;
  out["rows_pulled"] = c.rows_pulled;
  out["rows_pushed"] = c.rows_pushed;
  out["ids_pushed"] = c.ids_pushed;
  out["pull_ns"] = c.pull_ns;
  out["push_ns"] = c.push_ns;
  out["plan_ns"] = c.plan_ns;
  out["bytes_pulled"] = c.bytes_pulled;
  out["bytes_pushed"] = c.bytes_pushed;
  out["keys_refused"] = c.keys_refused;
  out["bad_grads"] = c.bad_grads;
  out["life_events"] = c.life_events;
  out["life_dead_staged"] = c.life_dead_staged;
  out["life_dead_merged"] = c.life_dead_merged;
  out["life_dead_swept"] = c.life_dead_swept;
  out["mem_rows"] = c.mem_rows;
  out["mem_bytes"] = c.mem_bytes;
  out["mem_evicted"] = c.mem_evicted;
  out["ssd_rows"] = c.ssd_rows;
  out["ssd_bytes"] = c.ssd_bytes;
  out["ssd_segments"] = c.ssd_segments;
  out["ssd_memory_bytes"] = c.ssd_memory_bytes;
  out["ssd_keys_asked"] = c.ssd.keys_asked;
  out["ssd_rows_found"] = c.ssd.rows_found;
  out["ssd_absent_read"] = c.ssd.absent_read;
  out["ssd_read_requests"] = c.ssd.read_requests;
  out["ssd_blocks_read"] = c.ssd.blocks_read;
  out["ssd_bytes_read"] = c.ssd.bytes_read;
  out["ssd_bytes_written"] = c.ssd.bytes_written;
  out["ssd_merge_bytes_read"] = c.ssd.merge_bytes_read;
  out["ssd_merge_bytes_written"] = c.ssd.merge_bytes_written;
  return out;
}

}  // namespace

void BindTable(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<Table, std::shared_ptr<Table>>(module, "Table")
      .def(py::init(&OpenTable), py::arg("config"), py::arg("segments"))
      .def_property_readonly("name", [](const Table& t) { return t.config().name; })
      .def_property_readonly("row_bytes", &Table::row_bytes)
      .def_property_readonly("max_pass_rows", &Table::max_pass_rows)
      .def_property_readonly("pass_bytes_per_row",
                             [](const Table& t) { return PassTable::BytesPerRow(t.row_bytes()); })
      .def_property_readonly("stored_row_bytes", &Table::stored_row_bytes)
      .def_property_readonly("layout_fingerprint",
                             [](const Table& t) { return t.codec().Fingerprint(); })
      .def_property_readonly("training", &Table::training)
      .def_property_readonly("has_frozen", &Table::has_frozen)
      .def("unregister", [](const Table& t) { UnregisterTable(t.config().name); })
      .def("stage", &Stage, py::arg("keys"), py::arg("slots"), py::arg("train"), py::arg("day"))
      .def("count_keys",
           [](Table& t, const Array<uint64_t>& keys, const Array<uint32_t>& counts) {
             if (counts.size() != keys.size()) {
               ThrowIfError(Error(Code::kInvalidArgument, "%zu keys and %zu counts", SizeOf(keys),
                                  SizeOf(counts)));
             }
             const uint64_t* key_data = keys.data();
             const uint32_t* count_data = counts.data();
             const size_t n = SizeOf(keys);
             const py::gil_scoped_release released;
             ThrowIfError(t.CountKeys(key_data, count_data, n));
           })
      .def("admission_state",
           [](const Table& t) {
             std::string state;
             {
               const py::gil_scoped_release released;
               state = t.AdmissionState();
             }
             return py::bytes(state);
           })
      .def("set_admission_state",
           [](Table& t, const std::string& state) { ThrowIfError(t.SetAdmissionState(state)); })
      .def(
          "drop_staged", [](Table& t, int32_t stamp) { ThrowIfError(t.DropStaged(stamp)); },
          release)
      .def(
          "begin", [](Table& t, int32_t stamp) { ThrowIfError(t.Begin(stamp)); }, release)
      .def(
          "end", [](Table& t, uint64_t pass_number) { ThrowIfError(t.End(pass_number)); },
          py::arg("pass_number") = 0, release)
      .def(
          "abandon", [](Table& t) { ThrowIfError(t.Abandon()); }, release)
      .def("write_frozen",
           [](Table& t) {
             WrittenPass written;
             {
               const py::gil_scoped_release released;
               written = ValueOrThrow(t.WriteFrozen());
             }
             py::dict out;
             out["segments"] = ToDicts(written.segments);
             out["rows"] = written.rows;
             out["new_rows"] = written.new_rows;
             return out;
           })
      .def("merge",
           [](Table& t, const std::vector<uint64_t>& inputs, bool urgent) {
             MergeResult result;
             {
               const py::gil_scoped_release released;
               result = ValueOrThrow(t.Merge(inputs, urgent));
             }
             return ToDict(result);
           })
      .def("replace_segments",
           [](Table& t, const std::vector<uint64_t>& removed, const std::vector<py::dict>& added) {
             const std::vector<SegmentDescriptor> segments = SegmentsFrom(added);
             const py::gil_scoped_release released;
             ThrowIfError(t.ReplaceSegments(removed, segments));
           })
      .def("cancel_merges", &Table::CancelMerges, release)
      .def("append_events",
           [](Table& t, const std::vector<py::dict>& records) {
             const std::vector<LifeEvent> events = EventsFrom(records);
             const py::gil_scoped_release released;
             ThrowIfError(t.AppendEvents(events));
           })
      .def("publish",
           [](Table& t, const std::vector<py::dict>& records) {
             const std::vector<SegmentDescriptor> segments = SegmentsFrom(records);
             const py::gil_scoped_release released;
             ThrowIfError(t.Publish(segments));
           })
      .def(
          "digest", [](Table& t) { return ValueOrThrow(t.Digest()); }, release)
      .def("read_all", &ReadAll)
      .def("visit_chunks", &VisitChunks, py::arg("most"), py::arg("callback"),
           py::arg("filter") = py::none())
      .def("lookup", &Lookup, py::arg("feasigns"), py::arg("filter") = py::none())
      .def("pull_pooled", &PullPooled, py::arg("ids").noconvert(), py::arg("offsets").noconvert(),
           py::arg("slots"), py::arg("use_cvm"), py::arg("out").noconvert())
      .def("push_pooled", &PushPooled, py::arg("ids").noconvert(), py::arg("offsets").noconvert(),
           py::arg("slots"), py::arg("use_cvm"), py::arg("show_click").noconvert(),
           py::arg("plan").noconvert(), py::arg("grad").noconvert())
      .def_static("build_plan", &MakePlan, py::arg("ids").noconvert(),
                  py::arg("offsets").noconvert(), py::arg("stamp"))
      .def_property_readonly("layout", &Layout)
      .def("counters", &Counters);
}

}  // namespace pbx
