#include <pybind11/stl.h>

#include <cstring>

#include "paddle/arrays.h"
#include "paddle/bindings.h"
#include "paddle/registry.h"
#include "paddle/segment_dicts.h"
#include "row/feasign.h"
#include "table/table.h"

namespace pbx {
namespace {

RuleConfig RuleFrom(const py::dict& fields) {
  RuleConfig rule;
  const std::string kind = fields["rule"].cast<std::string>();
  if (kind == "naive") {
    rule.kind = RuleKind::kNaive;
  } else if (kind == "adagrad") {
    rule.kind = RuleKind::kAdaGrad;
  } else if (kind == "adam") {
    rule.kind = RuleKind::kAdam;
  } else {
    ThrowIfError(
        Error(Code::kInvalidArgument, "rule '%s': expected naive, adagrad or adam", kind.c_str()));
  }
  rule.learning_rate = fields["learning_rate"].cast<float>();
  rule.initial_range = fields["initial_range"].cast<float>();
  rule.initial_g2sum = fields["initial_g2sum"].cast<float>();
  rule.beta1 = fields["beta1"].cast<float>();
  rule.beta2 = fields["beta2"].cast<float>();
  rule.epsilon = fields["epsilon"].cast<float>();
  rule.min_bound = fields["min_bound"].cast<float>();
  rule.max_bound = fields["max_bound"].cast<float>();
  return rule;
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
  config.accessor.layout.embedx_dim = fields["embedx_dim"].cast<int>();
  config.hbm_budget_bytes = fields["hbm_budget_bytes"].cast<uint64_t>();
  config.mem_budget_bytes = fields["mem_budget_bytes"].cast<uint64_t>();
  config.ssd_folder = fields["ssd_folder"].cast<std::string>();
  config.max_segment_bytes = fields["max_segment_bytes"].cast<uint64_t>();
  config.threads = fields["threads"].cast<int>();
  config.read_only = fields["read_only"].cast<bool>();
  return config;
}

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
  const auto& counts = staged.rows_by_origin;
  out["new"] = counts[static_cast<size_t>(Origin::kNew)];
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

py::dict Counters(const Table& table) {
  const TableCounters c = table.counters();
  py::dict out;
  out["rows_pulled"] = c.rows_pulled;
  out["rows_pushed"] = c.rows_pushed;
  out["mem_rows"] = c.mem_rows;
  out["mem_bytes"] = c.mem_bytes;
  out["mem_evicted"] = c.mem_evicted;
  out["ssd_rows"] = c.ssd_rows;
  out["ssd_bytes"] = c.ssd_bytes;
  out["ssd_segments"] = c.ssd_segments;
  out["ssd_memory_bytes"] = c.ssd_memory_bytes;
  out["ssd_blocks_read"] = c.ssd.blocks_read;
  out["ssd_bytes_read"] = c.ssd.bytes_read;
  out["ssd_bytes_written"] = c.ssd.bytes_written;
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
      .def_property_readonly(
          "layout_fingerprint",
          [](const Table& t) { return t.config().accessor.layout.Fingerprint(); })
      .def_property_readonly("training", &Table::training)
      .def_property_readonly("has_frozen", &Table::has_frozen)
      .def("unregister", [](const Table& t) { UnregisterTable(t.config().name); })
      .def("stage", &Stage, py::arg("keys"), py::arg("slots"), py::arg("train"), py::arg("day"))
      .def(
          "drop_staged", [](Table& t, int32_t stamp) { ThrowIfError(t.DropStaged(stamp)); },
          release)
      .def(
          "begin", [](Table& t, int32_t stamp) { ThrowIfError(t.Begin(stamp)); }, release)
      .def(
          "end", [](Table& t) { ThrowIfError(t.End()); }, release)
      .def(
          "abandon", [](Table& t) { ThrowIfError(t.Abandon()); }, release)
      .def("write_frozen",
           [](Table& t) {
             std::vector<SegmentDescriptor> segments;
             {
               const py::gil_scoped_release released;
               segments = ValueOrThrow(t.WriteFrozen());
             }
             return ToDicts(segments);
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
      .def("counters", &Counters);
}

}  // namespace pbx
