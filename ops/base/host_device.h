// Marks the functions that run on the host and, compiled by nvcc, on the GPU: one definition each,
// so that both give the same bits.
#pragma once

#ifdef __CUDACC__
#define PBX_HOST_DEVICE __host__ __device__
#else
#define PBX_HOST_DEVICE
#endif
