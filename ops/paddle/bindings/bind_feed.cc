#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "feed/columns/columns.h"
#include "feed/instances/instances.h"
#include "feed/instances/negatives.h"
#include "feed/text/line_plugin.h"
#include "feed/text/parser.h"
#include "feed/text/schema_json.h"
#include "feed/text/tokens.h"
#include "feed/text/transform.h"
#include "library/model_inputs.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "row/feasign.h"

namespace pbx {
namespace {

// slots: a list of dicts, which become the JSON of SetSlots. csv: the delimiter and the list
// separator. tags: the tags to read (ins_id, content, logkey, time) with their columns. plugin: the
// path of a shared library, for the format "plugin". csv_columns, csv_nulls: as in FeedSchema.
FeedSchema SchemaFrom(const std::string& format, const py::object& slots, bool per_slot_keys,
                      size_t max_line_bytes, const std::string& csv,
                      const std::map<std::string, std::string>& tags, const std::string& plugin,
                      const std::vector<std::string>& csv_columns,
                      const std::vector<std::string>& csv_nulls) {
  if (csv.size() != 2) {
    ThrowIfError(Error(Code::kInvalidArgument, "csv: '%s', expected two characters", csv.c_str()));
  }
  FeedSchema schema;
  schema.format = ValueOrThrow(FormatOf(format));
  schema.per_slot_keys = per_slot_keys;
  schema.max_line_bytes = max_line_bytes;
  schema.csv_delimiter = csv[0];
  schema.csv_list_separator = csv[1];
  schema.csv_columns = csv_columns;
  schema.csv_nulls = csv_nulls;
  const auto take = [&tags](const char* name, std::string* column) {
    const auto found = tags.find(name);
    if (found != tags.end()) *column = found->second;
    return found != tags.end();
  };
  schema.tags.ins_id = take("ins_id", &schema.ins_id_column);
  schema.tags.content = take("content", &schema.content_column);
  schema.tags.log_key = take("logkey", &schema.log_key_column);
  schema.tags.time = take("time", &schema.time_column);
  if (!plugin.empty()) schema.plugin = ValueOrThrow(feed::Plugin::Load(plugin));
  const py::object text = py::module_::import("json").attr("dumps")(slots);
  ThrowIfError(SetSlots(ValueOrThrow(Json::Parse(text.cast<std::string>())), &schema));
  return schema;
}

FeedSchema WithCsvHeader(const FeedSchema& schema, const std::string& line) {
  FeedSchema with = schema;
  ThrowIfError(SetCsvHeader(line.data(), line.size(), &with));
  return with;
}

// The content of a capsule of the Arrow PyCapsule interface.
template <typename T>
const T* FromCapsule(const py::handle& capsule, const char* name) {
  const void* held = PyCapsule_GetPointer(capsule.ptr(), name);
  if (held == nullptr) throw py::error_already_set();
  return static_cast<const T*>(held);
}

void CheckColumnsOf(const FeedSchema& schema, const py::object& type) {
  const py::object capsule = type.attr("__arrow_c_schema__")();
  ThrowIfError(CheckColumns(schema, *FromCapsule<ArrowSchema>(capsule, "arrow_schema")));
}

std::unique_ptr<ParsedChunk> ParseBatches(const FeedSchema& schema,
                                          const std::vector<py::object>& batches) {
  std::vector<py::tuple> capsules;  // own the memory of the pointers
  std::vector<ColumnBatch> columns;
  for (const py::object& batch : batches) {
    capsules.push_back(batch.attr("__arrow_c_array__")());
    columns.push_back({FromCapsule<ArrowSchema>(capsules.back()[0], "arrow_schema"),
                       FromCapsule<ArrowArray>(capsules.back()[1], "arrow_array")});
  }
  auto chunk = std::make_unique<ParsedChunk>();
  const py::gil_scoped_release release;
  ThrowIfError(ParseColumns(schema, columns, chunk.get()));
  return chunk;
}

std::unique_ptr<ParsedChunk> Parse(const FeedSchema& schema, const py::buffer& buffer) {
  const py::buffer_info bytes = buffer.request();
  const char* data = static_cast<const char*>(bytes.ptr);
  const size_t size = static_cast<size_t>(bytes.size * bytes.itemsize);
  auto chunk = std::make_unique<ParsedChunk>();
  const py::gil_scoped_release release;
  ThrowIfError(ParseChunk(schema, data, size, chunk.get()));
  return chunk;
}

std::vector<py::tuple> FirstBad(const ParsedChunk& chunk) {
  std::vector<py::tuple> bad;
  bad.reserve(chunk.first_bad.size());
  for (const BadLine& line : chunk.first_bad) {
    bad.push_back(py::make_tuple(line.line, line.reason, line.excerpt));
  }
  return bad;
}

std::vector<py::tuple> Large(const ParsedChunk& chunk) {
  std::vector<py::tuple> large;
  large.reserve(chunk.large.size());
  for (const LargeValue& one : chunk.large) {
    large.push_back(py::make_tuple(one.slot, one.line, one.value));
  }
  return large;
}

std::vector<py::tuple> Rounded(const ParsedChunk& chunk) {
  std::vector<py::tuple> rounded;
  rounded.reserve(chunk.rounded.size());
  for (const RoundedValue& one : chunk.rounded) {
    rounded.push_back(py::make_tuple(one.slot, one.line, one.value));
  }
  return rounded;
}

// (column, use, whether as a list) of each column that an expression reads: "text", "number", "id"
// or "stamp".
std::vector<std::tuple<std::string, std::string, bool>> ExpressionColumns(
    const FeedSchema& schema) {
  std::vector<std::tuple<std::string, std::string, bool>> columns;
  if (schema.program == nullptr) return columns;
  for (const expr::Load& load : schema.program->loads) {
    const expr::Kind kind = load.type.kind;
    columns.emplace_back(load.column,
                         kind == expr::Kind::kFloat  ? "number"
                         : kind == expr::Kind::kInt  ? "id"
                         : kind == expr::Kind::kTime ? "stamp"
                                                     : "text",
                         load.type.list);
  }
  return columns;
}

// (column, use) of what slots and expressions read: "text" if it is hashed, "number" if it is
// floats, or "id".
std::vector<std::pair<std::string, std::string>> ColumnUses(const FeedSchema& schema) {
  std::vector<std::pair<std::string, std::string>> uses;
  for (const SlotSpec& slot : schema.WithoutMade().slots) {
    if (slot.output >= 0) continue;
    const bool sparse = slot.kind == SlotKind::kSparse;
    uses.emplace_back(slot.column_name(), slot.transform.hash ? "text" : sparse ? "id" : "number");
    if (slot.weighted) uses.emplace_back(slot.weight_column, "number");
  }
  for (const auto& [column, use, list] : ExpressionColumns(schema)) uses.emplace_back(column, use);
  return uses;
}

// The first rows of a chunk: lengths (rows * S) and feasigns.
py::tuple Sample(const ParsedChunk& chunk, size_t most_rows) {
  const size_t slots = chunk.instances == 0 ? 0 : chunk.lengths.size() / chunk.instances;
  const size_t lengths = std::min(most_rows, chunk.instances) * slots;
  size_t values = 0;
  for (size_t i = 0; i < lengths; ++i) values += chunk.lengths[i];
  values = std::min(values, chunk.feasigns.size());
  const auto first = [](const auto& from, size_t n) {
    return ToArray(
        std::decay_t<decltype(from)>(from.begin(), from.begin() + static_cast<ptrdiff_t>(n)));
  };
  return py::make_tuple(first(chunk.lengths, lengths), first(chunk.feasigns, values));
}

std::vector<ListPooling> PoolingsFrom(const std::vector<std::string>& names) {
  std::vector<ListPooling> poolings;
  poolings.reserve(names.size());
  for (const std::string& name : names) poolings.push_back(ValueOrThrow(ListPoolingOf(name)));
  return poolings;
}

Order OrderFrom(const std::string& name) {
  if (name == "file") return Order::kFile;
  if (name == "instance") return Order::kShuffled;
  if (name == "ins_id") return Order::kInsId;
  if (name == "search_id") return Order::kSearchId;
  if (name == "slot") return Order::kSlot;
  if (name == "page_views") return Order::kPageViews;
  throw StatusError(Error(Code::kInvalidArgument,
                          "order '%s': expected file, instance, ins_id, search_id, slot or "
                          "page_views",
                          name.c_str()));
}

void CheckTagged(const Instances& instances, size_t begin, size_t end, bool there,
                 const char* tag) {
  if (begin <= end && end <= instances.size() && (there || begin == end)) return;
  ThrowIfError(Error(Code::kInvalidArgument, "%s of instances [%zu, %zu): there are %zu %s", tag,
                     begin, end, instances.size(), there ? "instances" : "without it"));
}

// The texts of the file, with bytes that are not UTF-8 as \xNN.
template <typename Get>
py::list Texts(size_t begin, size_t end, Get get) {
  py::list texts;
  for (size_t i = begin; i < end; ++i) {
    const std::string_view text = get(i);
    texts.append(py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
        text.data(), static_cast<py::ssize_t>(text.size()), "backslashreplace")));
  }
  return texts;
}

py::list InsIds(const Instances& instances, size_t begin, size_t end) {
  CheckTagged(instances, begin, end, instances.tags().ins_id, "ins_id");
  return Texts(begin, end, [&](size_t i) { return instances.ins_id(i); });
}

py::list Contents(const Instances& instances, size_t begin, size_t end) {
  CheckTagged(instances, begin, end, instances.tags().content, "content");
  return Texts(begin, end, [&](size_t i) { return instances.content(i); });
}

// Search ids (B) uint64, and cmatch << 32 | rank (B) int64, for the metrics by cmatch and rank.
py::tuple LogKeys(const Instances& instances, size_t begin, size_t end) {
  CheckTagged(instances, begin, end, instances.tags().log_key, "logkey");
  std::vector<uint64_t> search_ids;
  std::vector<int64_t> cmatch_ranks;
  for (size_t i = begin; i < end; ++i) {
    const LogKey& key = instances.log_key(i);
    search_ids.push_back(key.search_id);
    cmatch_ranks.push_back(static_cast<int64_t>(key.cmatch) << 32 | key.rank);
  }
  return py::make_tuple(ToArray(std::move(search_ids)), ToArray(std::move(cmatch_ranks)));
}

py::array RankOffsets(const Instances& instances, size_t begin, size_t end, size_t max_rank) {
  std::vector<int32_t> offsets;
  ThrowIfError(instances.RankOffsets(begin, end, max_rank, &offsets));
  return ToArray(std::move(offsets), {static_cast<py::ssize_t>(end - begin),
                                      static_cast<py::ssize_t>(2 * max_rank + 1)});
}

// Sampling, merging and order of instances.
void BindArrange(py::class_<Instances>* instances) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  instances
      ->def("set_sampling", [](Instances& self, double rate,
                               uint64_t seed) { ThrowIfError(self.SetSampling(rate, seed)); })
      .def(
          "merge_by_ins_id",
          [](Instances& self, size_t merge_size, const std::vector<size_t>& dense_dims) {
            return ValueOrThrow(self.MergeByInsId(merge_size, dense_dims));
          },
          release)
      .def(
          "arrange_by",
          [](Instances& self, const std::string& order, uint64_t seed, size_t slot) {
            ThrowIfError(self.ArrangeBy(OrderFrom(order), seed, slot));
          },
          py::arg("order"), py::arg("seed"), py::arg("slot") = 0, release)
      .def(
          "replace_slots",
          [](Instances& self, const std::vector<size_t>& slots, size_t pool_size, uint64_t seed) {
            ThrowIfError(self.ReplaceSlots(slots, pool_size, seed));
          },
          release)
      .def("numbers", [](const Instances& self) { return ToArray(self.Numbers()); })
      .def("feed_from",
           [](Instances& self, const std::vector<size_t>& slots, const Array<uint32_t>& donors) {
             ThrowIfError(self.FeedFrom(slots, donors.data(), SizeOf(donors)));
           })
      .def(
          "page_view_starts",
          [](const Instances& self) { return ValueOrThrow(self.PageViewStarts()); }, release)
      .def("rank_offsets", &RankOffsets, py::arg("begin"), py::arg("end"), py::arg("max_rank") = 3)
      .def("ins_ids", &InsIds)
      .def("contents", &Contents)
      .def("log_keys", &LogKeys);
}

void CheckRowOfEach(const Instances& instances, const Array<int32_t>& row_of_position) {
  if (SizeOf(row_of_position) == instances.unique_keys()) return;
  ThrowIfError(Error(Code::kInvalidArgument, "row_of_position has %zu entries, expected %zu",
                     SizeOf(row_of_position), instances.unique_keys()));
}

void PutSparse(SparseBatch* batch, py::dict* out) {
  (*out)["ids"] = ToArray(std::move(batch->ids));
  (*out)["offsets"] = ToArray(std::move(batch->offsets));
  (*out)["plan"] = ToArray(std::move(batch->plan));
}

// The rows and folds of counts (rows, F, 2).
Folds FoldsOf(const Array<float>& counts, uint64_t seed) {
  if (counts.ndim() != 3 || counts.shape(1) < 1 || counts.shape(2) != 2) {
    ThrowIfError(Error(Code::kInvalidArgument, "counts: expected shape (rows, folds, 2)"));
  }
  return {seed, static_cast<size_t>(counts.shape(1))};
}

NumberedRange RangeFrom(size_t begin, size_t end, size_t first) {
  NumberedRange range;
  range.begin = begin;
  range.end = end;
  range.first = first;
  return range;
}

// counts: (rows, F, 2), an array of the caller to add to.
void AddClickCounts(const Instances& instances, size_t begin, size_t end, size_t first,
                    const Array<int32_t>& row_of_position, uint64_t seed,
                    const std::vector<uint16_t>& slots,
                    py::array_t<float, py::array::c_style>& counts) {
  CheckRowOfEach(instances, row_of_position);
  const Folds folds = FoldsOf(counts, seed);
  const auto rows = static_cast<size_t>(counts.shape(0));
  float* const to = counts.mutable_data();
  const int32_t* const of_position = row_of_position.data();
  const py::gil_scoped_release release;
  ThrowIfError(
      instances.AddClickCounts(RangeFrom(begin, end, first), of_position, folds, slots, rows, to));
}

py::array PackClickCounts(const Instances& instances, size_t begin, size_t end, size_t first,
                          const Array<int32_t>& row_of_position, uint64_t seed,
                          const std::vector<uint16_t>& slots, const Array<float>& counts) {
  CheckRowOfEach(instances, row_of_position);
  const Folds folds = FoldsOf(counts, seed);
  const auto rows = static_cast<size_t>(counts.shape(0));
  std::vector<float> out(end < begin ? 0 : (end - begin) * 2 * slots.size());
  {
    const int32_t* const of_position = row_of_position.data();
    const float* const from = counts.data();
    const py::gil_scoped_release release;
    ThrowIfError(instances.PackClickCounts(RangeFrom(begin, end, first), of_position, folds, slots,
                                           from, rows, out.data()));
  }
  return ToArray(std::move(out), {static_cast<py::ssize_t>(end - begin),
                                  static_cast<py::ssize_t>(2 * slots.size())});
}

py::dict PackTable(const Instances& instances, size_t table, size_t begin, size_t end,
                   const Array<int32_t>& row_of_position, int32_t stamp) {
  CheckRowOfEach(instances, row_of_position);
  SparseBatch batch;
  {
    const int32_t* rows = row_of_position.data();
    const py::gil_scoped_release release;
    ThrowIfError(instances.PackTable(table, begin, end, rows, stamp, &batch));
  }
  py::dict out;
  PutSparse(&batch, &out);
  return out;
}

py::dict PackBatch(const Instances& instances, size_t begin, size_t end,
                   const Array<int32_t>& row_of_position, int32_t stamp, size_t dense_width) {
  CheckRowOfEach(instances, row_of_position);
  Batch batch;
  {
    const int32_t* rows = row_of_position.data();
    const py::gil_scoped_release release;
    ThrowIfError(instances.PackBatch(begin, end, rows, stamp, &batch));
  }
  const auto size = static_cast<py::ssize_t>(batch.size);
  py::dict out;
  PutSparse(&batch, &out);
  out["dense"] = ToArray(std::move(batch.dense), {size, static_cast<py::ssize_t>(dense_width)});
  out["label"] = ToArray(std::move(batch.labels), {size, 1});
  out["show_click"] = ToArray(std::move(batch.show_click), {size, 2});
  return out;
}

}  // namespace

void BindFeed(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.attr("EXACT_FLOATS") = kExactFloats;
  py::class_<FeedSchema>(module, "FeedSchema")
      .def(py::init(&SchemaFrom), py::arg("format"), py::arg("slots"), py::arg("per_slot_keys"),
           py::arg("max_line_bytes"), py::arg("csv") = ",|",
           py::arg("tags") = std::map<std::string, std::string>(), py::arg("plugin") = "",
           py::arg("csv_columns") = std::vector<std::string>(),
           py::arg("csv_nulls") = std::vector<std::string>())
      .def("with_csv_header", &WithCsvHeader, py::arg("line"))
      .def("check_columns", &CheckColumnsOf, py::arg("type"))
      .def_property_readonly("column_names", &FeedSchema::ColumnNames)
      .def_property_readonly("expression_columns", &ExpressionColumns)
      .def_readonly("csv_columns", &FeedSchema::csv_columns)
      .def_property_readonly("column_uses", &ColumnUses)
      .def_property_readonly("sparse_slots", &FeedSchema::sparse_slots)
      .def_property_readonly("dense_width", &FeedSchema::dense_width);
  py::class_<ParsedChunk>(module, "ParsedChunk")
      .def_readonly("instances", &ParsedChunk::instances)
      .def_readwrite("lines", &ParsedChunk::lines)
      .def_readonly("bad_lines", &ParsedChunk::bad_lines)
      .def_readwrite("left_out", &ParsedChunk::left_out)
      .def_property_readonly("first_bad", &FirstBad)
      .def_property_readonly("large", &Large)
      .def_property_readonly("rounded", &Rounded)
      .def_property_readonly("cut",
                             [](const ParsedChunk& c) {
                               return py::make_tuple(ToArray(std::vector<uint64_t>(c.cut_lists)),
                                                     ToArray(std::vector<uint64_t>(c.cut_values)));
                             })
      .def("sample", &Sample, py::arg("most_rows"))
      .def(
          "sample_negatives",
          [](ParsedChunk& self, const FeedSchema& schema, double rate, uint64_t seed) {
            return ValueOrThrow(
                SampleNegatives(schema.sparse_slots(), schema.dense_width(), rate, seed, &self,
                                schema.dense_width() - schema.WithoutMade().dense_width()));
          },
          py::arg("schema"), py::arg("rate"), py::arg("seed"), release)
      .def_property_readonly("tag_bytes", [](const ParsedChunk& c) { return c.tags.held(); })
      .def_property_readonly("occurrences", [](const ParsedChunk& c) { return c.feasigns.size(); });
  module.def("select_parser_path",
             [](const std::string& name) { ThrowIfError(feed::SelectTokenKernels(name.c_str())); });
  module.def("parse_chunk", &Parse, py::arg("schema"), py::arg("data"));
  module.def("parse_columns", &ParseBatches, py::arg("schema"), py::arg("batches"));

  py::class_<InstanceRange>(module, "InstanceRange")
      .def(py::init([](size_t begin, size_t end) { return InstanceRange{begin, end}; }))
      .def_readonly("begin", &InstanceRange::begin)
      .def_readonly("end", &InstanceRange::end);
  py::class_<ThreadPool>(module, "ThreadPool").def(py::init<int>(), py::arg("threads"));
  py::class_<Instances> instances(module, "Instances");
  BindArrange(&instances);
  instances.def(py::init<size_t, size_t>(), py::arg("sparse_slots"), py::arg("dense_width"))
      .def("share_lists",
           [](Instances& self, const std::optional<std::vector<size_t>>& slots) {
             ThrowIfError(self.ShareLists(slots.has_value() ? &*slots : nullptr));
           })
      .def("set_tables",
           [](Instances& self, const std::vector<uint8_t>& tables) {
             ThrowIfError(self.SetTables(tables));
           })
      .def("set_poolings",
           [](Instances& self, const std::vector<std::string>& poolings) {
             ThrowIfError(self.SetPoolings(PoolingsFrom(poolings)));
           })
      .def_property_readonly("key_bounds", &Instances::key_bounds)
      .def_property_readonly("shared",
                             [](const Instances& self) {
                               const SharedCounts counts = self.shared_counts();
                               return py::make_tuple(counts.lists, counts.values,
                                                     counts.index_bytes);
                             })
      .def(
          "append",
          [](Instances& self, ParsedChunk& chunk) { ThrowIfError(self.Append(std::move(chunk))); },
          release)
      .def(
          "shuffle", [](Instances& self, uint64_t seed) { ThrowIfError(self.Shuffle(seed)); },
          release)
      .def("arrange",
           [](Instances& self, const Array<uint32_t>& order) {
             ThrowIfError(self.Arrange(order.data(), SizeOf(order)));
           })
      .def("arrange_places",
           [](Instances& self, const Array<uint32_t>& order) {
             ThrowIfError(self.ArrangePlaces(order.data(), SizeOf(order)));
           })
      .def("gather",
           [](const Instances& self, const Array<uint32_t>& numbers) {
             return std::make_unique<ParsedChunk>(
                 ValueOrThrow(self.Gather(numbers.data(), SizeOf(numbers))));
           })
      .def(
          "index", [](Instances& self, ThreadPool& pool) { ThrowIfError(self.Index(&pool)); },
          release)
      .def_property_readonly("size", &Instances::size)
      .def(
          "key_counts",
          [](const Instances& instances, const std::optional<Array<uint8_t>>& counted) {
            const uint8_t* of_each = nullptr;
            if (counted.has_value()) {
              CheckSize("counted", SizeOf(*counted), instances.size());
              of_each = counted->data();
            }
            std::vector<uint32_t> counts;
            {
              const py::gil_scoped_release released;
              counts = ValueOrThrow(instances.KeyCounts(of_each));
            }
            return ToArray(std::move(counts));
          },
          py::arg("counted") = py::none())
      .def_property_readonly("unique_keys", &Instances::unique_keys)
      .def_property_readonly("occurrences", &Instances::occurrences)
      .def_property_readonly("bytes", &Instances::bytes)
      .def(
          "split",
          [](const Instances& self, size_t max_rows, size_t batch_size) {
            return ValueOrThrow(self.Split(max_rows, batch_size));
          },
          release)
      .def(
          "split",
          [](const Instances& self, const std::vector<size_t>& max_rows, size_t batch_size) {
            return ValueOrThrow(self.Split(max_rows, batch_size));
          },
          release)
      .def(
          "split_at",
          [](const Instances& self, const std::vector<size_t>& max_rows,
             const std::vector<size_t>& ends) {
            return ValueOrThrow(self.SplitAt(max_rows, ends));
          },
          release)
      .def("select",
           [](const Instances& self, InstanceRange range) {
             RangeKeys keys;
             {
               const py::gil_scoped_release released;
               keys = ValueOrThrow(self.SelectRange(range));
             }
             return py::make_tuple(ToArray(std::move(keys.keys)), ToArray(std::move(keys.slots)),
                                   ToArray(std::move(keys.positions)));
           })
      .def("pack_batch", &PackBatch, py::arg("begin"), py::arg("end"), py::arg("row_of_position"),
           py::arg("stamp"), py::arg("dense_width"))
      .def("pack_table", &PackTable, py::arg("table"), py::arg("begin"), py::arg("end"),
           py::arg("row_of_position"), py::arg("stamp"))
      .def("add_click_counts", &AddClickCounts, py::arg("begin"), py::arg("end"), py::arg("first"),
           py::arg("row_of_position"), py::arg("seed"), py::arg("slots"),
           py::arg("counts").noconvert())
      .def("pack_click_counts", &PackClickCounts, py::arg("begin"), py::arg("end"),
           py::arg("first"), py::arg("row_of_position"), py::arg("seed"), py::arg("slots"),
           py::arg("counts").noconvert())
      .def("pack_weights",
           [](const Instances& self, size_t begin, size_t end) {
             std::vector<float> weights;
             {
               const py::gil_scoped_release released;
               ThrowIfError(self.PackWeights(begin, end, &weights));
             }
             return ToArray(std::move(weights));
           })
      .def("pack_feasigns", [](const Instances& self, size_t begin, size_t end) {
        std::vector<uint64_t> feasigns;
        std::vector<int32_t> offsets;
        {
          const py::gil_scoped_release released;
          ThrowIfError(self.PackFeasigns(begin, end, &feasigns, &offsets));
        }
        return py::make_tuple(ToArray(std::move(feasigns)), ToArray(std::move(offsets)));
      });
  module.def("sorted_unique_keys", [](const Array<uint64_t>& feasigns) {
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < SizeOf(feasigns); ++i) {
      if (feasigns.data()[i] != 0) keys.push_back(KeyOf(feasigns.data()[i]));
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return ToArray(std::move(keys));
  });
}

}  // namespace pbx
