// Marks the functions that run on the host and, compiled by nvcc, on the GPU: one definition each,
// so that both give the same bits.
//
// PBX_INLINE is for those that the vector paths call in their loops: left to itself the compiler
// calls some of them, and what is called is compiled for the oldest processor, one float at a time.
#pragma once

#ifdef __CUDACC__
#define PBX_HOST_DEVICE __host__ __device__
#define PBX_INLINE __host__ __device__ __forceinline__
#else
#define PBX_HOST_DEVICE
#define PBX_INLINE inline __attribute__((always_inline))
#endif
