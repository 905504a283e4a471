#include "feed/columns/expression_columns.h"

#include <algorithm>
#include <cstring>

#include "base/vector_clones.h"
#include "feed/columns/column_types.h"
#include "feed/text/dense_limits.h"

namespace pbx::feed {
namespace {

// Sets floats to the values, or to `absent` where they are null. False if a value is so large that
// Block must see it as it is.
PBX_VECTOR_CLONES bool AsFloats(const double* values, const uint8_t* valid, double absent, size_t n,
                                float* floats) {
  // On bits, because GCC does not vectorise a choice between doubles by a byte.
  uint64_t of_absent, limit, wrong = 0;
  const double least = static_cast<double>(kLeastRounded);
  std::memcpy(&of_absent, &absent, 8);
  std::memcpy(&limit, &least, 8);
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits;
    std::memcpy(&bits, values + i, 8);
    const uint64_t chosen = -uint64_t{valid[i]};
    bits = (bits & chosen) | (of_absent & ~chosen);
    wrong |= limit - 1 - (bits & 0x7fffffffffffffffu);  // the top bit: above the limit, or NaN
    double value;
    std::memcpy(&value, &bits, 8);
    floats[i] = static_cast<float>(value);
  }
  return wrong >> 63 == 0;
}

}  // namespace

// An array with the values of one slot.
struct ExpressionColumns::Output {
  ArrowSchema type{}, item_type{};
  ArrowArray array{}, items{};
  ArrowSchema* type_child[1] = {&item_type};
  ArrowArray* child[1] = {&items};
  const void* buffers[2] = {};
  const void* item_buffers[2] = {};
  SlotSpec spec;
  std::vector<uint8_t> valid;  // bits
  std::vector<int64_t> ends;
  std::vector<float> floats = std::vector<float>(expr::kRows);

  // The vector must outlive the use of the arrays.
  void Set(const expr::Vector& from, bool list, size_t n) {
    item_type.name = type.name = "";
    array.length = static_cast<int64_t>(n);
    array.n_buffers = items.n_buffers = 2;
    array.buffers = buffers;
    items.buffers = item_buffers;
    if (list) {
      SetLists(from, n);
    } else if (spec.kind == SlotKind::kSparse) {
      SetValues("l", from.ints.data());
    } else if (!spec.exact && spec.transform.has_default &&
               AsFloats(from.floats.data(), from.valid.data(), spec.transform.default_value, n,
                        floats.data())) {
      SetValues("f", floats.data());
    } else {
      SetValues("g", from.floats.data());
      SetNulls(from.valid, n);
    }
  }

 private:
  static constexpr int64_t kNone[1] = {};

  void SetValues(const char* format, const void* values) {
    type.format = format;
    array.null_count = 0;
    buffers[0] = nullptr;
    buffers[1] = values;
  }

  void SetNulls(const std::vector<uint8_t>& from, size_t n) {
    valid.assign((n + 7) / 8, 0);
    size_t nulls = n;
    for (size_t i = 0; i < n; ++i) {
      valid[i / 8] |= static_cast<uint8_t>(from[i] << (i % 8));
      nulls -= from[i];
    }
    array.null_count = static_cast<int64_t>(nulls);
    buffers[0] = valid.data();
  }

  void SetLists(const expr::Vector& from, size_t n) {
    ends.assign(1, 0);
    ends.insert(ends.end(), from.ends.begin(), from.ends.begin() + static_cast<ptrdiff_t>(n));
    type.format = "+L";
    type.n_children = array.n_children = 1;
    type.children = type_child;
    array.children = child;
    buffers[1] = ends.data();
    item_type.format = "l";
    items.length = ends.back();
    item_buffers[1] = from.ints.empty() ? kNone : from.ints.data();
  }
};

ExpressionColumns::ExpressionColumns(const FeedSchema& schema)
    : program_(*schema.program), evaluator_(program_) {
  for (const expr::Load& load : program_.loads) specs_.push_back(SpecOf(load));
  for (const SlotSpec& slot : schema.slots) {
    if (slot.output < 0) continue;
    outputs_.push_back(std::make_unique<Output>());
    outputs_.back()->spec = slot;
    outputs_.back()->spec.transform.hash = false;  // the program has hashed
  }
}

ExpressionColumns::~ExpressionColumns() = default;

Column ExpressionColumns::column(const SlotSpec& slot) const {
  const Output& output = *outputs_[static_cast<size_t>(slot.output)];
  return {output.spec, output.type, output.array, -begin_};
}

Status ExpressionColumns::Open(const ColumnBatch& batch) {
  columns_.clear();
  for (const SlotSpec& spec : specs_) {
    const int64_t place = FindColumn(spec, *batch.type).value();
    columns_.emplace_back(spec, *batch.type->children[place], *batch.values->children[place],
                          batch.values->offset);
    PBX_RETURN_IF_ERROR(columns_.back().CheckBuffers(batch.values->length));
  }
  return Status::Ok();
}

Status ExpressionColumns::Take(int64_t begin, int64_t rows) {
  begin_ = begin;
  errors_.clear();
  const size_t n = static_cast<size_t>(rows);
  for (size_t i = 0; i < columns_.size(); ++i) {
    const expr::Load& load = program_.loads[i];
    const int zone = load.type.zone;
    PBX_RETURN_IF_ERROR(TakeLoad(load,
                                 zone < 0 ? nullptr : &program_.zones[static_cast<size_t>(zone)],
                                 columns_[i], begin, n, evaluator_.input(i), &errors_));
  }
  evaluator_.Run(n);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const size_t at = static_cast<size_t>(program_.outputs[i]);
    outputs_[i]->Set(evaluator_.output(i), program_.registers[at].list, n);
  }
  std::stable_sort(errors_.begin(), errors_.end(),
                   [](const RowError& a, const RowError& b) { return a.row < b.row; });
  const auto same = [](const RowError& a, const RowError& b) { return a.row == b.row; };
  errors_.erase(std::unique(errors_.begin(), errors_.end(), same), errors_.end());
  return Status::Ok();
}

Status CheckExpressions(const FeedSchema& schema, const ArrowSchema& type) {
  if (schema.program == nullptr) return Status::Ok();
  for (const expr::Load& load : schema.program->loads) {
    const Result<int64_t> place = FindColumn(SpecOf(load), type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(CheckLoad(load, *type.children[place.value()]));
  }
  return Status::Ok();
}

}  // namespace pbx::feed
