// Marks functions that run on the host and, compiled by nvcc, on the GPU. Each has one definition,
// so both give the same bits.
//
// PBX_INLINE is for functions that the vector paths call in their loops. Without it the compiler
// does not inline some of them, and a function that is not inlined is compiled for the oldest
// processor, one float at a time.
//
// PBX_UNROLL, before a loop, unrolls it on the GPU, where arrays that loops index are in registers
// only if the indices are constants.
#pragma once

#ifdef __CUDA_ARCH__
#define PBX_UNROLL _Pragma("unroll")
#else
#define PBX_UNROLL
#endif

#ifdef __CUDACC__
#define PBX_HOST_DEVICE __host__ __device__
#define PBX_INLINE __host__ __device__ __forceinline__
#else
#define PBX_HOST_DEVICE
#define PBX_INLINE inline __attribute__((always_inline))
#endif
