#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <utility>

#include "device/hbm_device.h"
#include "device/hbm_library.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/segment_dicts.h"
#include "paddle/bindings/table_config.h"
#include "paddle/bindings/table_pooled.h"
#include "paddle/bindings/table_rows.h"
#include "table/registry.h"
#include "table/table.h"

namespace pbx {
namespace {

std::shared_ptr<Table> OpenTable(const py::dict& fields, const std::vector<py::dict>& records) {
  const TableConfig config = ConfigFrom(fields);
  const bool registered = fields["registered"].cast<bool>();  // whether operators can find it
  const std::vector<SegmentDescriptor> segments = SegmentsFrom(records);
  const std::string place =
      fields["hbm_place"].cast<std::string>();  // "host", "gpu", "host_as_gpu"
  const HbmDeviceConfig device{fields["gpu"].cast<int>(), place == "host_as_gpu"};
  const py::gil_scoped_release release;
  std::shared_ptr<Table> table = ValueOrThrow(
      Table::Open(config, segments, place == "host" ? nullptr : NewHbmDevice(config, device)));
  if (registered) ThrowIfError(RegisterTable(table));
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

using RankTuple = std::tuple<uint32_t, uint32_t, uint64_t>;  // day, bits of the score, key

EvictionRank RankFrom(const RankTuple& rank) {
  return {std::get<0>(rank), std::get<1>(rank), std::get<2>(rank)};
}

// The digits that live rows have, ascending, and the number of rows of each.
py::tuple CountRanks(const Table& table, bool by_day, const RankTuple& prefix, int shift) {
  std::vector<uint32_t> digits;
  std::vector<uint64_t> rows;
  {
    const py::gil_scoped_release released;
    const std::vector<uint64_t> counts =
        ValueOrThrow(table.CountRanks(by_day, RankFrom(prefix), shift));
    for (size_t digit = 0; digit < counts.size(); ++digit) {
      if (counts[digit] == 0) continue;
      digits.push_back(static_cast<uint32_t>(digit));
      rows.push_back(counts[digit]);
    }
  }
  return py::make_tuple(ToArray(std::move(digits)), ToArray(std::move(rows)));
}

py::dict Layout(const Table& table) {
  const RowLayout& layout = table.config().accessor.layout;
  py::dict out;
  out["embedx_dim"] = layout.embedx_dim;
  out["embed_state"] = layout.embed_state;
  out["embedx_state"] = layout.embedx_state;
  out["expand_dim"] = layout.expand_dim;
  out["expand_state"] = layout.expand_state;
  out["counts"] = layout.counts;
  out["fingerprint"] = layout.Fingerprint();  // of the layout in docs/formats/row.md
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
  // The numbers of the events that no later one makes superfluous.
  module.def("folded_events", [](const std::vector<py::dict>& records) {
    std::vector<LifeEvent> events = EventsFrom(records);
    life::Fold(&events);
    std::vector<uint32_t> kept;
    kept.reserve(events.size());
    for (const LifeEvent& event : events) kept.push_back(event.seq);
    return kept;
  });
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("hbm_backend", &HbmBackend);
  module.def("plug_in", [](const std::string& path, const std::string& sources) {
    ThrowIfError(PlugIn(path, sources));
  });
  py::class_<Table, std::shared_ptr<Table>>(module, "Table")
      .def(py::init(&OpenTable), py::arg("config"), py::arg("segments"))
      .def_property_readonly("name", [](const Table& t) { return t.config().name; })
      .def_property_readonly("row_bytes", &Table::row_bytes)
      .def_property_readonly("max_pass_rows", &Table::max_pass_rows)
      .def_property_readonly("pass_bytes_per_row",
                             [](const Table& t) { return PassTable::BytesPerRow(t.row_bytes()); })
      .def_property_readonly("stored_row_bytes", &Table::stored_row_bytes)
      .def_property_readonly("training", &Table::training)
      .def_property_readonly("has_frozen", &Table::has_frozen)
      .def_property_readonly("unwritten_rows", &Table::unwritten_rows)
      .def_property_readonly("pairs_upper_bound", &Table::pairs_upper_bound)
      .def("unregister", [](const Table& t) { UnregisterTable(t.config().name); })
      .def("stage", &Stage, py::arg("keys"), py::arg("slots"), py::arg("train"), py::arg("day"))
      .def("count_keys",
           [](Table& t, const Array<uint64_t>& keys, const Array<uint32_t>& counts,
              uint64_t pass_number) {
             if (counts.size() != keys.size()) {
               ThrowIfError(Error(Code::kInvalidArgument, "%zu keys and %zu counts", SizeOf(keys),
                                  SizeOf(counts)));
             }
             const uint64_t* key_data = keys.data();
             const uint32_t* count_data = counts.data();
             const size_t n = SizeOf(keys);
             const py::gil_scoped_release released;
             ThrowIfError(t.CountKeys(key_data, count_data, n, pass_number));
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
      .def("dead_shares",
           [](Table& t) {
             std::vector<DeadShare> shares;
             {
               const py::gil_scoped_release released;
               shares = t.DeadShares();
             }
             py::dict out;
             for (const DeadShare& one : shares) {
               out[py::int_(one.id)] = py::make_tuple(one.droppable, one.keys_gone);
             }
             return out;
           })
      .def("replace_segments",
           [](Table& t, const std::vector<uint64_t>& removed, const std::vector<py::dict>& added) {
             const std::vector<SegmentDescriptor> segments = SegmentsFrom(added);
             const py::gil_scoped_release released;
             ThrowIfError(t.ReplaceSegments(removed, segments));
           })
      .def("add_segments",
           [](Table& t, const std::vector<py::dict>& added) {
             const std::vector<SegmentDescriptor> segments = SegmentsFrom(added);
             const py::gil_scoped_release released;
             ThrowIfError(t.AddSegments(segments));
           })
      .def("set_counted",
           [](Table& t, const std::vector<uint8_t>& slots) {
             const py::gil_scoped_release released;
             ThrowIfError(t.SetCounted(slots.data(), slots.size()));
           })
      .def("take_pass_events",
           [](Table& t) {
             std::vector<py::dict> events;
             for (const LifeEvent& event : t.TakePassEvents()) events.push_back(ToDict(event));
             return events;
           })
      .def("count_ranks", &CountRanks, py::arg("by_day"), py::arg("prefix"), py::arg("shift"))
      .def_property_readonly("ended_new_rows", &Table::ended_new_rows)
      .def("evict",
           [](Table& t, bool by_day, const RankTuple& lowest) {
             const EvictionRank rank = RankFrom(lowest);
             const py::gil_scoped_release released;
             ThrowIfError(t.Evict(by_day, rank));
           })
      .def("note_durable_events", &Table::NoteDurableEvents)
      .def("set_rate", [](Table& t, float rate) { ThrowIfError(t.SetRate(rate)); })
      .def("show_clicks",
           [](Table& t) {
             std::vector<float> counts;
             {
               const py::gil_scoped_release released;
               ThrowIfError(t.EndStep());
               counts = ValueOrThrow(t.ShowClicks());
             }
             const auto rows = static_cast<py::ssize_t>(counts.size() / 2);
             return ToArray(std::move(counts), {rows, 2});
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
      .def("read_all", &ReadAll, py::arg("low") = 0, py::arg("high") = UINT64_MAX)
      .def("visit_chunks", &VisitChunks, py::arg("most"), py::arg("callback"),
           py::arg("filter") = py::none())
      .def("lookup", &Lookup, py::arg("feasigns"), py::arg("filter") = py::none())
      .def("pull_pooled", &PullPooled, py::arg("ids").noconvert(), py::arg("offsets").noconvert(),
           py::arg("slots"), py::arg("use_cvm"), py::arg("out").noconvert())
      .def("push_pooled", &PushPooled, py::arg("ids").noconvert(), py::arg("offsets").noconvert(),
           py::arg("slots"), py::arg("use_cvm"), py::arg("show_click").noconvert(),
           py::arg("plan").noconvert(), py::arg("grad").noconvert())
      .def_static("build_plan", &MakePlan, py::arg("ids").noconvert(),
                  py::arg("offsets").noconvert(), py::arg("stamp"), py::arg("factors") = py::none())
      .def_static("expand_lists", &ExpandedLists, py::arg("ids").noconvert(),
                  py::arg("offsets").noconvert(), py::arg("cells"))
      .def_static("share_ids", &WithSharedIds, py::arg("ids").noconvert(),
                  py::arg("offsets").noconvert(), py::arg("stamp"), py::arg("sequence").noconvert(),
                  py::arg("repeats").noconvert() = py::none())
      .def_property_readonly("layout", &Layout)
      .def("counters", &Counters);
}

}  // namespace pbx
