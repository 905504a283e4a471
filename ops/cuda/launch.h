// A kernel is written as the work that one block of threads does on one tile, in steps. After each
// step, the threads of the block wait for each other (a barrier). Without nvcc, a block has only
// one thread, and each step is an ordinary loop.
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
#else
#include "cuda/host_memory.h"
#include "cuda/host_stream.h"
#endif

namespace pbx::hbm {

constexpr int kThreads = 256;  // per block

#ifdef __CUDACC__
using Stream = cudaStream_t;
Status CudaStatus(cudaError_t error, const char* what);
#else
using Stream = HostStream*;
#endif

// The threads of a block.
class Block {
 public:
  PBX_HOST_DEVICE explicit Block(char* shared) : shared_(shared) {}

  // The shared memory of the block, with the size that Launch was given. Aligned to 16 bytes.
  template <typename T>
  PBX_HOST_DEVICE T* shared(size_t at = 0) const {
    return reinterpret_cast<T*>(shared_ + at);
  }

  // Calls f(0) .. f(n - 1), neighbours on neighbouring threads. Returns when all are done.
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

  // Divides rows among groups of kLanes threads, whose lanes are 0 to kLanes - 1. Calls
  // f(first, step, lane) for the rows first, first + step, ..., kTogether of them, those below
  // `rows`. What f loads for several rows before it stores, the device loads at the same time.
  template <int kLanes, int kTogether, class F>
  PBX_HOST_DEVICE void ForEachRow(int rows, const F& f) const {
    constexpr int kGroups = kThreads / kLanes;
#ifdef __CUDA_ARCH__
    const int group = static_cast<int>(threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    for (int first = group; first < rows; first += kGroups * kTogether) f(first, kGroups, lane);
    __syncthreads();
#else
    for (int group = 0; group < kGroups; ++group) {
      for (int first = group; first < rows; first += kGroups * kTogether) {
        for (int lane = 0; lane < kLanes; ++lane) f(first, kGroups, lane);
      }
    }
#endif
  }

  // Copies n floats from shared memory, aligned to 16 bytes, to `to`.
  PBX_HOST_DEVICE void CopyOut(const float* from, int n, float* to) const {
#ifdef __CUDA_ARCH__
    const int whole = reinterpret_cast<uintptr_t>(to) % 16 == 0 ? n / 4 : 0;
    for (int i = static_cast<int>(threadIdx.x); i < whole; i += kThreads) {
      reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
    }
    for (int i = whole * 4 + static_cast<int>(threadIdx.x); i < n; i += kThreads) to[i] = from[i];
    __syncthreads();
#else
    for (int i = 0; i < n; ++i) to[i] = from[i];
#endif
  }

 private:
  char* shared_;
};

// Adds to a counter atomically.
PBX_HOST_DEVICE inline void AddTo(uint64_t* counter, uint64_t more) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(more));
#else
  *counter += more;
#endif
}

// Raises *highest to value if that is higher, atomically.
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

// Runs the body on tiles [0, tiles) in the stream. shared_bytes: per block.
template <class Body>
Status Launch(const char* what, const Body& body, uint64_t tiles, size_t shared_bytes,
              Stream stream) {
  if (tiles == 0) return Status::Ok();
  if (tiles > INT32_MAX) {
    return Error(Code::kInvalidArgument, "%s: %llu tiles, expected at most 2^31 - 1", what,
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
  InStream(stream, [body, tiles, shared_bytes] {
    const OpenMemory open;
    std::vector<uint64_t> shared((shared_bytes + 7) / 8);  // no more, so that ASan sees overruns
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      body(Block(reinterpret_cast<char*>(shared.data())), static_cast<int64_t>(tile));
    }
  });
  return Status::Ok();
#endif
}

// The number of tiles of `size` that hold n.
inline uint64_t TilesOf(uint64_t n, uint64_t size) { return (n + size - 1) / size; }

// How many of n items are in the tile of `size` that begins at `first`.
PBX_HOST_DEVICE inline int CountOf(uint64_t n, uint64_t first, int size) {
  const uint64_t left = n - first;
  return left < static_cast<uint64_t>(size) ? static_cast<int>(left) : size;
}

}  // namespace pbx::hbm
