#include "paddle/bindings/table_rows.h"

#include <pybind11/stl.h>

#include <cmath>
#include <utility>
#include <vector>

#include "row/feasign.h"

namespace pbx {
namespace {

// Collects pairs for Python.
class Pairs {
 public:
  explicit Pairs(const Table& table) : words_(table.row_bytes() / 4) {}

  void Reserve(size_t rows) {
    feasigns_.reserve(rows);
    rows_.reserve(rows * words_);
  }

  void Add(uint64_t key, const char* row) {
    feasigns_.push_back(FeasignOf(key));
    const auto* words = reinterpret_cast<const float*>(row);
    rows_.insert(rows_.end(), words, words + words_);
  }
  size_t size() const { return feasigns_.size(); }

  // Moves out (n) feasigns and (n, words) rows. REQUIRES: the GIL is held.
  py::tuple Take() {
    const auto n = static_cast<py::ssize_t>(feasigns_.size());
    py::tuple out =
        py::make_tuple(ToArray(std::exchange(feasigns_, {})),
                       ToArray(std::exchange(rows_, {}), {n, static_cast<py::ssize_t>(words_)}));
    return out;
  }

 private:
  size_t words_;
  std::vector<uint64_t> feasigns_;
  std::vector<float> rows_;
};

SaveFilter FilterFrom(const py::dict& fields) {
  SaveFilter filter;
  filter.day = fields["day"].cast<uint32_t>();
  filter.min_score = fields["min_score"].cast<float>();
  filter.min_delta_score = fields["min_delta_score"].cast<float>();
  filter.max_unseen_days = fields["max_unseen_days"].cast<uint32_t>();
  return filter;
}

}  // namespace

py::tuple ReadAll(Table& table, uint64_t low, uint64_t high) {
  Pairs pairs(table);
  // Keys are hashes, so a range has its share of the rows, about.
  const double share = high < low ? 0 : std::ldexp(static_cast<double>(high - low), -64);
  pairs.Reserve(static_cast<size_t>(1.01 * share * static_cast<double>(table.pairs_upper_bound())));
  {
    const py::gil_scoped_release release;
    ThrowIfError(table.Visit(low, high, [&](uint64_t key, const char* row) {
      pairs.Add(key, row);
      return Status::Ok();
    }));
  }
  return pairs.Take();
}

void VisitChunks(Table& table, size_t most, const py::function& callback,
                 const std::optional<py::dict>& fields) {
  const bool all = !fields.has_value();
  const SaveFilter filter = all ? SaveFilter() : FilterFrom(*fields);
  Pairs pairs(table);
  const auto flush = [&] {
    const py::gil_scoped_acquire acquire;
    callback(*pairs.Take());
  };
  const py::gil_scoped_release release;
  ThrowIfError(table.Visit([&](uint64_t key, const char* row) {
    if (!all &&
        !life::Saved(table.config().accessor, filter, reinterpret_cast<const float*>(row))) {
      return Status::Ok();
    }
    pairs.Add(key, row);
    if (pairs.size() == most) flush();
    return Status::Ok();
  }));
  if (pairs.size() != 0) flush();
}

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

}  // namespace pbx
