#include "row/plan.h"

#include <algorithm>
#include <cstring>

namespace pbx {
namespace {

constexpr size_t kHeader = 3;
constexpr int kMaxDigitBits = 9;  // as many open lines as the first-level cache has room for
constexpr int kMaxPasses = 4;

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
  // The digits of all passes are counted at once.
  uint32_t places[kMaxPasses][size_t{1} << kMaxDigitBits];
  std::memset(places, 0, static_cast<size_t>(passes) * sizeof(places[0]));
  for (size_t i = 0; i < n; ++i) {
    uint64_t digits = from[i] >> 32;
    for (int pass = 0; pass < passes; ++pass, digits >>= width) ++places[pass][digits & mask];
  }
  for (int pass = 0; pass < passes; ++pass) {
    uint32_t* const place = places[pass];
    uint32_t next = 0;
    for (size_t digit = 0; digit <= mask; ++digit) {
      const uint32_t count = place[digit];
      place[digit] = next;
      next += count;
    }
    const int shift = 32 + pass * width;
    for (size_t i = 0; i < n; ++i) to[place[from[i] >> shift & mask]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

Status Malformed(const char* what) {
  return Error(Code::kInvalidArgument, "dedup plan: %s; feed the plan that came with the batch",
               what);
}

}  // namespace

void BuildPlan(const int32_t* ids, const int32_t* offsets, size_t segments, int32_t stamp,
               std::vector<int32_t>* plan) {
  // Kept by the thread: fresh pages for every batch would cost as much as the sort.
  thread_local std::vector<uint64_t> buffers;
  thread_local std::vector<uint8_t> marks;
  const size_t total = static_cast<size_t>(offsets[segments]);
  if (buffers.size() < 2 * total) buffers.resize(2 * total);
  uint64_t* const first = buffers.data();

  // Where segments begin, counted for each id: a loop over each segment would guess its end wrong
  // once a segment. A count of 255 stands for that or more, and is looked up.
  marks.assign(total + 1, 0);
  for (size_t s = 0; s < segments; ++s) {
    uint8_t& mark = marks[static_cast<size_t>(offsets[s + 1])];
    mark = static_cast<uint8_t>(mark + (mark != 255 ? 1 : 0));
  }
  size_t m = 0, s = 0;
  int32_t max_row = 0;
  for (size_t i = 0; i < total; ++i) {
    s += marks[i];
    if (marks[i] == 255) {
      while (offsets[s + 1] <= static_cast<int32_t>(i)) ++s;
    }
    const int32_t row = ids[i];
    first[m] = Occurrence(row, s);
    m += row >= 0;
    max_row = std::max(max_row, row);
  }
  const uint64_t* const sorted = SortByRow(first, first + total, m, static_cast<uint32_t>(max_row));

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
  // Written for each occurrence, kept for the first of a row: no branch. The place after the last
  // row is the last start's, or the first segment's, and is written afterwards.
  size_t u = 0;
  uint64_t before = UINT64_MAX;
  for (size_t i = 0; i < m; ++i) {
    const uint64_t row = sorted[i] >> 32;
    const bool opens = row != before;
    u += opens;
    rows[u - 1] = RowOf(sorted[i]);
    starts[u] = static_cast<int32_t>(i + 1);
    segment[i] = static_cast<int32_t>(sorted[i] & 0xffffffffu) | (opens ? kFirst : 0);
    before = row;
  }
  starts[0] = 0;
}

Result<PlanView> ViewPlan(const int32_t* plan, size_t size, size_t table_rows, size_t segments) {
  if (size < kHeader + 1) return Malformed("fewer than 4 numbers");
  if (plan[1] < 0) return Malformed("a negative count of rows");
  if (plan[2] < 0) return Malformed("a negative count of occurrences");
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

  // Each of these loops only gathers whether anything is wrong, so that it is vectorised; what is
  // wrong is looked for when something is.
  int bad = view.unique != 0 && view.rows[0] < 0 ? 1 : 0;
  for (size_t u = 0; u + 1 < view.unique; ++u) bad |= view.rows[u] >= view.rows[u + 1] ? 1 : 0;
  if (bad != 0) return Malformed("row ids do not ascend");
  if (view.unique != 0 && static_cast<size_t>(view.rows[view.unique - 1]) >= table_rows) {
    return Error(Code::kInvalidArgument, "dedup plan: row %d is outside the table of %zu rows",
                 view.rows[view.unique - 1], table_rows);
  }
  bad = view.starts[0] != 0 || view.starts[view.unique] != plan[2] ? 1 : 0;
  for (size_t u = 0; u < view.unique; ++u) bad |= view.starts[u] >= view.starts[u + 1] ? 1 : 0;
  if (bad != 0) return Malformed("starts do not ascend from 0 to the count of occurrences");
  size_t firsts = 0;
  int32_t highest = 0;
  for (size_t i = 0; i < view.occurrences; ++i) {
    const int32_t segment = view.segments[i] & INT32_MAX;
    highest = segment > highest ? segment : highest;
    firsts += view.segments[i] < 0 ? 1 : 0;
  }
  if (view.occurrences != 0 && static_cast<size_t>(highest) >= segments) {
    return Error(Code::kInvalidArgument, "dedup plan: segment %d is outside the batch of %zu",
                 highest, segments);
  }
  bad = firsts != view.unique ? 1 : 0;
  for (size_t u = 0; u < view.unique; ++u) bad |= view.segments[view.starts[u]] >= 0 ? 1 : 0;
  if (bad != 0) return Malformed("the marks of first occurrences are not where the starts are");
  for (size_t i = 0; i + 1 < view.occurrences; ++i) {
    const int32_t here = view.segments[i] & INT32_MAX, next = view.segments[i + 1];
    bad |= (here > next ? 1 : 0) & (next >= 0 ? 1 : 0);
  }
  if (bad != 0) return Malformed("segments do not ascend within a row");
  return view;
}

}  // namespace pbx
