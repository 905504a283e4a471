// Makes the dedup plan of a batch (row/plan.h) on the device. Occurrences are sorted by row with a
// stable sort, so segments stay in order.
#include <algorithm>
#include <numeric>

#include "cuda/call.h"
#include "row/plan.h"

#ifdef __CUDACC__
#include <cub/cub.cuh>
#endif

namespace pbx::hbm {
namespace {

constexpr int kTile = 1024;

// Writes the segment of each occurrence. Rows are unsigned, so that -1, no row, comes last.
struct Expand {
  const int32_t* offsets;  // null: each occurrence is a segment
  uint64_t segments, nnz;
  int32_t* segment_of;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    block.ForEach(CountOf(segments, first, kTile), [&](int i) {
      const uint64_t segment = first + static_cast<uint64_t>(i);
      if (offsets == nullptr) {
        segment_of[segment] = static_cast<int32_t>(segment);
        return;
      }
      const int32_t begin = offsets[segment], end = offsets[segment + 1];
      if (begin < 0 || end < begin || static_cast<uint64_t>(end) > nnz) return;  // out of range
      for (int32_t at = begin; at < end; ++at) segment_of[at] = static_cast<int32_t>(segment);
    });
  }
};

// Whether sorted occurrence i is the first of a row.
PBX_HOST_DEVICE inline bool Begins(const uint32_t* rows, int64_t i) {
  return rows[i] != UINT32_MAX && (i == 0 || rows[i] != rows[i - 1]);
}

struct MarkHeads {
  const uint32_t* rows;
  uint64_t nnz;
  int32_t* heads;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    block.ForEach(CountOf(nnz, first, kTile), [&](int i) {
      const int64_t at = static_cast<int64_t>(first) + i;
      heads[at] = Begins(rows, at) ? 1 : 0;
    });
  }
};

// Writes the plan. number: (nnz), how many rows begin at or before each occurrence.
struct Write {
  const uint32_t* rows;
  const int32_t* segment_of;
  const int32_t* number;
  uint64_t nnz;
  int32_t stamp;
  int32_t* plan;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const int64_t unique = number[nnz - 1];
    int32_t* const ids = plan + 3;
    int32_t* const starts = plan + 3 + unique;
    int32_t* const segments = plan + 3 + 2 * unique + 1;
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    block.ForEach(CountOf(nnz, first, kTile), [&](int i) {
      const int64_t at = static_cast<int64_t>(first) + i;
      const bool is_last = static_cast<uint64_t>(at) + 1 == nnz || rows[at + 1] == UINT32_MAX;
      if (rows[at] != UINT32_MAX) {
        const bool head = Begins(rows, at);
        segments[at] = segment_of[at] | (head ? kFirst : 0);
        if (head) {
          ids[number[at] - 1] = static_cast<int32_t>(rows[at]);
          starts[number[at] - 1] = static_cast<int32_t>(at);
        }
      }
      // One thread writes the sizes: the one with the last occurrence that has a row, or with the
      // first occurrence if none has a row.
      const bool none = at == 0 && rows[0] == UINT32_MAX;
      if (none || (is_last && rows[at] != UINT32_MAX)) {
        const int32_t occurrences = none ? 0 : static_cast<int32_t>(at) + 1;
        plan[0] = stamp;
        plan[1] = static_cast<int32_t>(unique);
        plan[2] = occurrences;
        starts[unique] = occurrences;
      }
    });
  }
};

#ifndef __CUDACC__
// Sorts the ids (nnz) and moves their segments with them. Stable.
void SortPairs(const int32_t* ids, const int32_t* segment_of, uint64_t nnz, uint32_t* rows,
               int32_t* sorted) {
  const OpenMemory open;
  std::vector<int32_t> order(nnz);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return static_cast<uint32_t>(ids[a]) < static_cast<uint32_t>(ids[b]);
  });
  for (size_t i = 0; i < nnz; ++i) {
    rows[i] = static_cast<uint32_t>(ids[order[i]]);
    sorted[i] = segment_of[order[i]];
  }
}
#endif

Status Plan(pbx_hbm* hbm, const int32_t* ids, const int32_t* offsets, uint64_t segments,
            uint64_t nnz, int32_t stamp, int32_t* plan, Stream stream) {
  if (offsets == nullptr && segments != nnz) {
    return Error(Code::kInvalidArgument, "plan: %llu segments of one id each, but %llu ids",
                 static_cast<unsigned long long>(segments), static_cast<unsigned long long>(nnz));
  }
  if (nnz > INT32_MAX / 2) {
    return Error(Code::kInvalidArgument, "plan: %llu ids, expected at most 2^30",
                 static_cast<unsigned long long>(nnz));
  }
  if (nnz == 0) {
    PBX_RETURN_IF_ERROR(SetZero(plan, 4 * 4, stream));
    return ToDevice(plan, &stamp, 4, stream);
  }
  const size_t array = (nnz * 4 + 255) / 256 * 256;
  size_t rest = 256;
#ifdef __CUDACC__
  const int n = static_cast<int>(nnz);
  size_t sort = 0, scan = 0;
  PBX_RETURN_IF_ERROR(CudaStatus(
      cub::DeviceRadixSort::SortPairs(
          nullptr, sort, static_cast<uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
          static_cast<int32_t*>(nullptr), static_cast<int32_t*>(nullptr), n, 0, 32, stream),
      "plan"));
  PBX_RETURN_IF_ERROR(
      CudaStatus(cub::DeviceScan::InclusiveSum(nullptr, scan, static_cast<int32_t*>(nullptr),
                                               static_cast<int32_t*>(nullptr), n, stream),
                 "plan"));
  rest = std::max(sort, scan);
#endif
  PBX_RETURN_IF_ERROR(hbm->workspace.Grow("plans", 4 * array + rest));
  char* const base = hbm->workspace.as<char>();
  const auto at = [&](size_t i) { return base + i * array; };
  int32_t* const segment_of = reinterpret_cast<int32_t*>(at(0));
  uint32_t* const rows = reinterpret_cast<uint32_t*>(at(1));
  int32_t* const sorted = reinterpret_cast<int32_t*>(at(2));
  int32_t* const number = reinterpret_cast<int32_t*>(at(3));
  PBX_RETURN_IF_ERROR(Launch("plan", Expand{offsets, segments, nnz, segment_of},
                             TilesOf(segments, kTile), 0, stream));
#ifdef __CUDACC__
  PBX_RETURN_IF_ERROR(CudaStatus(
      cub::DeviceRadixSort::SortPairs(at(4), sort, reinterpret_cast<const uint32_t*>(ids), rows,
                                      segment_of, sorted, n, 0, 32, stream),
      "plan"));
#else
  InStream(stream, [=] { SortPairs(ids, segment_of, nnz, rows, sorted); });
#endif
  PBX_RETURN_IF_ERROR(Launch("plan", MarkHeads{rows, nnz, number}, TilesOf(nnz, kTile), 0, stream));
#ifdef __CUDACC__
  PBX_RETURN_IF_ERROR(
      CudaStatus(cub::DeviceScan::InclusiveSum(at(4), scan, number, number, n, stream), "plan"));
#else
  InStream(stream, [number, nnz] {
    const OpenMemory open;
    std::partial_sum(number, number + nnz, number);
  });
#endif
  const Write write{rows, sorted, number, nnz, stamp, plan};
  return Launch("plan", write, TilesOf(nnz, kTile), 0, stream);
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

uint64_t pbx_hbm_plan_room(uint64_t nnz) { return 4 + 3 * nnz; }

int pbx_hbm_plan(pbx_hbm* hbm, const int32_t* ids, const int32_t* offsets, uint64_t segments,
                 uint64_t nnz, int32_t stamp, int32_t* plan, void* stream) {
  return TimedCall(hbm, &hbm->plans, stream, [&] {
    return Plan(hbm, ids, offsets, segments, nnz, stamp, plan, static_cast<Stream>(stream));
  });
}
