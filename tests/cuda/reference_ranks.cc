// What ranks exchange, as the host packs and merges it, behind C functions. Not part of any
// product.
#include <cstdint>
#include <vector>

#include "cuda/hbm.h"
#include "ranks/quantize.h"
#include "reference.h"
#include "table/kernels.h"

namespace {

pbx::Wire WireOf(int32_t wire) {
  switch (wire) {
    case PBX_HBM_WIRE_FLOAT16: return pbx::Wire::kFloat16;
    case PBX_HBM_WIRE_BFLOAT16: return pbx::Wire::kBfloat16;
    default: return pbx::Wire::kInt8;
  }
}

}  // namespace

extern "C" {

PBX_HBM_API uint64_t pbx_reference_record_bytes(int32_t wire, uint64_t columns) {
  return pbx::WireBytes(WireOf(wire), columns);
}

PBX_HBM_API void pbx_reference_pack(int32_t wire, const float* rows, uint64_t n, uint64_t columns,
                                    char* out) {
  pbx::PackRows(WireOf(wire), rows, n, columns, out);
}

PBX_HBM_API void pbx_reference_unpack(int32_t wire, const char* packed, uint64_t n,
                                      uint64_t columns, float* rows) {
  pbx::UnpackRows(WireOf(wire), packed, n, columns, rows);
}

// The push of a batch table (ops/table/batch_table.h). sums: (n, 3 + dim), added to.
PBX_HBM_API void pbx_reference_merge(int32_t dim, uint64_t n, const int32_t* plan,
                                     const pbx_hbm_gradient* gradient, float* sums) {
  pbx::AccessorConfig accessor;
  accessor.layout = pbx::RowLayout{dim, 0, 0, 0, 0};
  accessor.embed.kind = accessor.embedx.kind = pbx::RuleKind::kNaive;
  std::vector<float> rows(n * static_cast<uint64_t>(accessor.layout.words()));
  std::vector<uint64_t> keys(n);
  pbx::GradientView view = ViewOf(*gradient);
  view.merged = sums;
  const auto unique = static_cast<size_t>(plan[1]);
  const pbx::RowBlock block{reinterpret_cast<char*>(rows.data()), keys.data(),
                            accessor.layout.bytes(), &accessor};
  pbx::ActiveKernels().push(block, plan + 3, plan + 3 + unique, plan + 3 + 2 * unique + 1, 0,
                            unique, view, gradient->day);
}

}  // extern "C"
