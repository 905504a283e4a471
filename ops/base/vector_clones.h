// PBX_VECTOR_CLONES compiles a function for AVX-512 (x86-64-v4), for AVX2 and for plain x86-64. The
// loader chooses one of them.
#pragma once

// The runtime of the thread sanitizer is not initialised yet when the loader chooses a clone.
#if defined(__SANITIZE_THREAD__)
#define PBX_VECTOR_CLONES
#else
#define PBX_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
