// How the kernels are written: as the work of a block of threads on one tile, in steps. Between two
// steps all threads meet. Compiled without nvcc a block is one thread, and a step a loop.
//
//   struct Body { PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const; };
//   Launch(body, tiles, shared_bytes, stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/host_device.h"
#include "base/status.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace pbx::hbm {

constexpr int kThreads = 256;  // of a block

#ifdef __CUDACC__
using Stream = cudaStream_t;
Status CudaStatus(cudaError_t error, const char* what);
#else
using Stream = void*;
#endif

// The threads of a block.
class Block {
 public:
  PBX_HOST_DEVICE explicit Block(char* shared) : shared_(shared) {}

  // Memory of all threads of the block, as much as Launch was given; 16-byte aligned.
  template <typename T>
  PBX_HOST_DEVICE T* shared(size_t at = 0) const {
    return reinterpret_cast<T*>(shared_ + at);
  }

  // f(0) .. f(n - 1), neighbours by neighbouring threads; returns when all are done.
  template <class F>
  PBX_HOST_DEVICE void ForEach(int n, const F& f) const {
#ifdef __CUDA_ARCH__
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) f(i);
    __syncthreads();
#else
    for (int i = 0; i < n; ++i) f(i);
#endif
  }

 private:
  char* shared_;
};

// Adds to a counter that many threads add to.
PBX_HOST_DEVICE inline void AddTo(uint64_t* counter, uint64_t more) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(more));
#else
  *counter += more;
#endif
}

// Leaves the higher of both, where many threads do so.
PBX_HOST_DEVICE inline void RaiseTo(uint64_t* highest, uint64_t value) {
#ifdef __CUDA_ARCH__
  atomicMax(reinterpret_cast<unsigned long long*>(highest), static_cast<unsigned long long>(value));
#else
  if (*highest < value) *highest = value;
#endif
}

#ifdef __CUDACC__
template <class Body>
__global__ void __launch_bounds__(kThreads) RunTiles(const Body body) {
  extern __shared__ __align__(16) char shared[];
  body(Block(shared), static_cast<int64_t>(blockIdx.x));
}
#endif

// Puts the body's tiles [0, tiles) into the stream. shared_bytes: for each block.
template <class Body>
Status Launch(const char* what, const Body& body, uint64_t tiles, size_t shared_bytes,
              Stream stream) {
  if (tiles == 0) return Status::Ok();
  if (tiles > INT32_MAX) {
    return Error(Code::kInvalidArgument, "%s: %llu tiles, 2^31 - 1 are the most of one call", what,
                 static_cast<unsigned long long>(tiles));
  }
#ifdef __CUDACC__
  if (shared_bytes > 48 * 1024) {
    PBX_RETURN_IF_ERROR(
        CudaStatus(cudaFuncSetAttribute(RunTiles<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)),
                   what));
  }
  RunTiles<Body><<<static_cast<unsigned>(tiles), kThreads, shared_bytes, stream>>>(body);
  return CudaStatus(cudaGetLastError(), what);
#else
  (void)stream;
  std::vector<uint64_t> shared(shared_bytes / 8 + 2);
  for (uint64_t tile = 0; tile < tiles; ++tile) {
    body(Block(reinterpret_cast<char*>(shared.data())), static_cast<int64_t>(tile));
  }
  return Status::Ok();
#endif
}

// Tiles of `size` that hold n.
inline uint64_t TilesOf(uint64_t n, uint64_t size) { return (n + size - 1) / size; }

// How many of n a tile of `size` that begins with `first` holds.
PBX_HOST_DEVICE inline int CountOf(uint64_t n, uint64_t first, int size) {
  const uint64_t left = n - first;
  return left < static_cast<uint64_t>(size) ? static_cast<int>(left) : size;
}

}  // namespace pbx::hbm
