// Matrix products of one thread, by oneDNN: the tiles of which mlp.h is made.
//
// Letters: M = rows of a and c, K = columns of a and rows of b, N = columns of b and c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "base/bfloat16.h"
#include "base/status.h"

namespace pbx {

enum class GemmType { kFloat32, kBfloat16 };  // of a and b; sums are float32 in both

inline size_t SizeOf(GemmType type) { return type == GemmType::kFloat32 ? 4 : 2; }

// c (M, N) = [c +] a (M, K) * b (K, N) [+ bias (N)], then ReLU if `relu`.
//
// Element (i, k) of a is at i * a_row + k * a_column, and b likewise; c has contiguous rows. If
// `packed`, b is in the layout that Pack makes, which pays if several products use the same b.
//
// REQUIRES: a_column is 1 if m is 1, and b_column is 1 if k is 1. oneDNN 3.6.2 reads the only row
// of a matrix as if it were contiguous.
struct GemmShape {
  size_t m = 0, k = 0, n = 0;
  GemmType type = GemmType::kFloat32;
  GemmType to = GemmType::kFloat32;  // of c
  size_t a_row = 0, a_column = 1, b_row = 0, b_column = 1, c_row = 0;
  bool packed = false, bias = false, relu = false, add = false;

  auto Fields() const {
    return std::tie(m, k, n, type, to, a_row, a_column, b_row, b_column, c_row, packed, bias, relu,
                    add);
  }
  bool operator<(const GemmShape& other) const { return Fields() < other.Fields(); }
  std::string Describe() const;
};

// A product of one shape. Immutable: any number of threads may run it at the same time. Bits depend
// on the shape, the library's version and the instruction set, never on threads.
class Gemm {
 public:
  // The product of this shape. Products are made once for the process; making one takes some
  // milliseconds. The error says why there is none: no oneDNN, a type that the processor lacks, or
  // a shape that breaks a requirement.
  static Result<const Gemm*> Of(const GemmShape& shape);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // On the calling thread alone. bias is null without GemmShape::bias. c must not overlap the rest.
  Status Run(const void* a, const void* b, const float* bias, void* c) const;

  // With `packed`: bytes of the layout of b, and the conversion to it from float32, whose element
  // (k, n) is at k * row + n * column.
  size_t packed_bytes() const;
  Status Pack(const float* from, size_t row, size_t column, void* to) const;

  const std::string& implementation() const;  // oneDNN's name for it

 private:
  struct Impl;
  explicit Gemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// How fast products of a type are here.
enum class GemmSupport {
  kNone,  // the processor lacks the instructions, or no oneDNN was found
  kSlow,  // bfloat16: no faster than float32; float32: no faster than the MKL of Paddle's wheel
  kFast,
};
GemmSupport SupportOf(GemmType type);

// What the depth K of products of bfloat16 should be a multiple of; oneDNN copies other operands.
size_t DepthOfBfloat16();

// Version and instruction set, "oneDNN 3.6.2, instruction set 0xe7"; or the error of FindOneDnn.
// Two runs with the same name compute the same bits.
Result<std::string> GemmLibrary();

// As that of base/bfloat16.h, for an array.
void ToBfloat16(size_t n, const float* from, uint16_t* to);

}  // namespace pbx
