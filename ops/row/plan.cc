#include "row/plan.h"

#include <algorithm>
#include <array>

namespace pbx {
namespace {

constexpr size_t kHeader = 3;
constexpr int kMaxDigitBits = 11;  // 2048 counters: 8 KB, well inside the first-level cache

// An occurrence: row id in the upper half, segment in the lower.
uint64_t Occurrence(int32_t row, size_t segment) {
  return static_cast<uint64_t>(static_cast<uint32_t>(row)) << 32 | segment;
}
int32_t RowOf(uint64_t occurrence) { return static_cast<int32_t>(occurrence >> 32); }

// Sorts by row; stable, so segments stay ascending within a row. As many passes as the largest row
// id needs, with digits of equal width. Returns which of the two buffers holds the result.
uint64_t* SortByRow(uint64_t* from, uint64_t* to, size_t n, uint32_t max_row) {
  int bits = 0;
  while (bits < 32 && max_row >> bits != 0) ++bits;
  const int passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
  if (passes == 0) return from;
  const int width = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = 32 + pass * width;
    std::array<uint32_t, size_t{1} << kMaxDigitBits> place{};
    for (size_t i = 0; i < n; ++i) ++place[from[i] >> shift & mask];
    uint32_t next = 0;
    for (uint32_t& p : place) {
      const uint32_t count = p;
      p = next;
      next += count;
    }
    for (size_t i = 0; i < n; ++i) to[place[from[i] >> shift & mask]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

Status Malformed(const char* what, size_t index) {
  return Error(Code::kInvalidArgument,
               "dedup plan: %s at %zu; feed the plan that came with the batch", what, index);
}

}  // namespace

void BuildPlan(const int32_t* ids, const int32_t* offsets, size_t segments, int32_t stamp,
               std::vector<int32_t>* plan) {
  // Kept by the thread: fresh pages for every batch would cost as much as the sort.
  thread_local std::vector<uint64_t> buffers;
  const size_t total = static_cast<size_t>(offsets[segments]);
  if (buffers.size() < 2 * total) buffers.resize(2 * total);
  uint64_t* const first = buffers.data();

  size_t m = 0;
  uint32_t max_row = 0;
  for (size_t s = 0; s < segments; ++s) {
    for (int32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const int32_t row = ids[i];
      first[m] = Occurrence(row, s);
      m += row >= 0;
      max_row = std::max(max_row, row >= 0 ? static_cast<uint32_t>(row) : 0u);
    }
  }
  const uint64_t* const sorted = SortByRow(first, first + total, m, max_row);

  size_t unique = m > 0;
  for (size_t i = 1; i < m; ++i) unique += sorted[i] >> 32 != sorted[i - 1] >> 32;
  plan->resize(kHeader + 2 * unique + 1 + m);
  int32_t* const out = plan->data();
  out[0] = stamp;
  out[1] = static_cast<int32_t>(unique);
  out[2] = static_cast<int32_t>(m);
  int32_t* const rows = out + kHeader;
  int32_t* const starts = rows + unique;
  int32_t* const segment = starts + unique + 1;
  size_t u = 0;
  for (size_t i = 0; i < m; ++i) {
    segment[i] = static_cast<int32_t>(sorted[i] & 0xffffffffu);
    if (i == 0 || sorted[i] >> 32 != sorted[i - 1] >> 32) {
      rows[u] = RowOf(sorted[i]);
      starts[u++] = static_cast<int32_t>(i);
    }
  }
  starts[unique] = static_cast<int32_t>(m);
}

Result<PlanView> ViewPlan(const int32_t* plan, size_t size, size_t table_rows, size_t segments) {
  if (size < kHeader + 1) return Malformed("fewer than 4 numbers: it ends", size);
  if (plan[1] < 0) return Malformed("a negative count of rows", 1);
  if (plan[2] < 0) return Malformed("a negative count of occurrences", 2);
  PlanView view;
  view.stamp = plan[0];
  view.unique = static_cast<size_t>(plan[1]);
  view.occurrences = static_cast<size_t>(plan[2]);
  const size_t expected = kHeader + 2 * view.unique + 1 + view.occurrences;
  if (size != expected) {
    return Error(Code::kInvalidArgument,
                 "dedup plan: %zu numbers, expected %zu for %zu rows and %zu occurrences", size,
                 expected, view.unique, view.occurrences);
  }
  view.rows = plan + kHeader;
  view.starts = view.rows + view.unique;
  view.segments = view.starts + view.unique + 1;

  int64_t last = -1;
  for (size_t u = 0; u < view.unique; ++u) {
    if (view.rows[u] <= last) return Malformed("row ids do not ascend", u);
    last = view.rows[u];
  }
  if (last >= 0 && static_cast<uint64_t>(last) >= table_rows) {
    return Error(Code::kInvalidArgument, "dedup plan: row %lld is outside the table of %zu rows",
                 static_cast<long long>(last), table_rows);
  }
  if (view.starts[0] != 0) return Malformed("the first start is not 0", 0);
  for (size_t u = 0; u < view.unique; ++u) {
    if (view.starts[u + 1] <= view.starts[u]) return Malformed("starts do not ascend", u + 1);
  }
  if (view.starts[view.unique] != plan[2]) {
    return Malformed("the last start is not the count of occurrences", view.unique);
  }
  for (size_t u = 0; u < view.unique; ++u) {
    int32_t before = 0;
    for (int32_t i = view.starts[u]; i < view.starts[u + 1]; ++i) {
      const int32_t segment = view.segments[i];
      if (segment < before || static_cast<size_t>(segment) >= segments) {
        return Malformed("a segment out of order or bounds", static_cast<size_t>(i));
      }
      before = segment;
    }
  }
  return view;
}

}  // namespace pbx
