// VectorIndex: the vectors of a catalogue of items in one file, searched exactly: a query is
// compared with every vector. docs/formats/vectors.md has the format.
//
// Letters: N = vectors, D = floats of a vector, Q = queries, K = results of a query.
//
// Caveats. An index is immutable: a new version is a new file. Vectors are rounded to bfloat16
// (8 bits of mantissa), queries are not; so the order is exact for the rounded vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/map_guard.h"
#include "base/status.h"
#include "base/threads.h"

namespace pbx {

constexpr size_t kIndexBlock = 64;  // vectors of a block of the file

// Writes the file front to back. Not thread safe.
class VectorIndexWriter {
 public:
  // width: D >= 1. version: of the model that made the vectors. The file appears with Finish.
  static Result<std::unique_ptr<VectorIndexWriter>> Create(const std::string& path, size_t width,
                                                           uint64_t version);
  // vectors: (n, D). InvalidArgument, with the number of the vector, if one has a float that is not
  // finite as bfloat16; then nothing of this call is in the file.
  Status Append(const float* vectors, size_t n);
  // Makes the file durable. REQUIRES: no call after it.
  Status Finish();

  size_t width() const { return width_; }  // D

 private:
  VectorIndexWriter(std::unique_ptr<AtomicFileWriter> file, size_t width, uint64_t version);
  Status WriteBlock();

  const std::unique_ptr<AtomicFileWriter> file_;
  const size_t width_;
  const uint64_t version_;
  uint64_t rows_ = 0;
  uint32_t crc_ = 0;
  std::vector<uint16_t> block_;  // (D, kIndexBlock)
};

// A file that is mapped for reading. Thread safe.
class VectorIndex {
 public:
  // Reads the whole file once. Corruption, with what was expected and found, if it is not a whole
  // index; NotFound.
  static Result<std::unique_ptr<VectorIndex>> Open(const std::string& path);
  ~VectorIndex();
  VectorIndex(const VectorIndex&) = delete;
  VectorIndex& operator=(const VectorIndex&) = delete;

  uint64_t rows() const { return rows_; }  // N
  size_t width() const { return width_; }  // D
  uint64_t version() const { return version_; }

  // The K vectors with the largest inner products with each query, best first; of equal products,
  // the vector with the lower number. The products are sums of floats in the order of columns: the
  // result depends neither on the threads nor on the processor.
  //
  // queries: (Q, D), finite. numbers, products: (Q, K). REQUIRES: 1 <= K <= N. Corruption if
  // another process has cut the file short.
  Status Search(const float* queries, size_t q, size_t k, ThreadPool* pool, uint64_t* numbers,
                float* products) const;

 private:
  VectorIndex() = default;
  Status Map(const std::string& path);
  Status ReadTrailer();

  std::string path_;
  const char* bytes_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<MapGuard> guard_;
  uint64_t rows_ = 0;
  size_t width_ = 0;
  uint64_t version_ = 0;
};

}  // namespace pbx
