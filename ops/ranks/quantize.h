// Formats in which rows and gradients are sent between ranks: (n, P) float32 columns [show, click,
// embed_w, embedx...] become n records of a fixed size.
//
//   kFloat16, kBfloat16   show f32, click f32, then P - 2 values of 16 bits     8 + 2 (P - 2) bytes
//   kInt8                 show f32, click f32, scale f32, embed_w float16, int8[D]   14 + D bytes
//
// Counts stay float32, because float16 ends at 65,504. The int8 scale ignores embed_w, which is
// often a hundred times larger than embedx. Values are rounded to nearest, ties to even, and
// clamped to the largest finite value. Infinities and NaN are kept, so that the receiver detects
// them; with int8, a single infinity or NaN makes the whole embedx NaN. Every bit depends on the
// row alone.
//
// Letters: D = embedx_dim, P = 3 + D.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

enum class Wire : uint8_t { kFloat16, kBfloat16, kInt8 };

// Bytes of a record. columns: P, at least 3.
size_t WireBytes(Wire wire, size_t columns);

// rows: (n, columns). out: (n, WireBytes).
void PackRows(Wire wire, const float* rows, size_t n, size_t columns, char* out);
void UnpackRows(Wire wire, const char* packed, size_t n, size_t columns, float* rows);

// Packs with error feedback: the rounding error of a row's gradient is added to its next gradient.
// The sum of all sent gradients then differs from the exact sum by one rounding only.
//
// places: (n) different rows of `residual`. residual: (residual_rows, columns - 1). Each row of it
// holds the shows of the last gradient, then the rounding errors of [embed_w, embedx...]. A
// rounding error is 0 after a gradient that is not finite. InvalidArgument if a place does not
// exist; nothing changes then.
Status PackWithResidual(Wire wire, const float* rows, size_t n, size_t columns,
                        const int32_t* places, float* residual, size_t residual_rows, char* out);

}  // namespace pbx
