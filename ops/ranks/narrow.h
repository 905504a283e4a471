// Rows and gradients as they travel between ranks: (n, P) float32 columns [show, click, embed_w,
// embedx...] as n records of a fixed size.
//
//   kFloat16, kBfloat16   show f32, click f32, then P - 2 values of 16 bits       8 + 2 (P - 2) bytes
//   kInt8                 show f32, click f32, scale f32, embed_w float16, int8[D]     14 + D bytes
//
// Counts stay float32: float16 ends at 65,504. embed_w has no part in the scale of int8, for it is
// often a hundred times larger than embedx. Values are rounded to the nearest, ties to even; beyond
// the largest finite value is that value. Infinities and NaN arrive as such (of int8: the whole
// embedx as NaN), so that whoever applies them sees them. Every bit is a function of the row alone.
//
// Letters: D = embedx_dim, P = 3 + D.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

enum class Wire : uint8_t { kFloat16, kBfloat16, kInt8 };

// Of a record. columns: P, at least 3.
size_t WireBytes(Wire wire, size_t columns);

// rows: (n, columns). out: (n, WireBytes).
void PackRows(Wire wire, const float* rows, size_t n, size_t columns, char* out);
void UnpackRows(Wire wire, const char* packed, size_t n, size_t columns, float* rows);

// Error feedback: what packing loses of a row's gradients is added to the next that it sends. The
// sum of what was sent is then the sum of the gradients, less one rounding.
//
// places: (n) different rows of `residual`. residual: (residual_rows, columns - 1), a row being the
// shows that its last gradient was sent with, then what was lost of [embed_w, embedx...]. Rows that
// are not finite leave 0. InvalidArgument for places that are not there; nothing is changed then.
Status PackWithResidual(Wire wire, const float* rows, size_t n, size_t columns,
                        const int32_t* places, float* residual, size_t residual_rows, char* out);

}  // namespace pbx
