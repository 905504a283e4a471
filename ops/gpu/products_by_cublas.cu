#include "gpu/products_by_cublas.h"

#ifdef __CUDACC__
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#endif

namespace pbx::gpu {

#ifdef __CUDACC__

namespace {

// Of cublas_v2.h and cublas_api.h, which the nvcc of PyPI comes without.
using Handle = void*;
constexpr int kNone = 0, kTransposed = 1;  // cublasOperation_t
constexpr int kPedantic = 2;  // CUBLAS_PEDANTIC_MATH: no TF32, whatever the environment

struct Cublas {
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*set_math)(Handle, int) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const float*, const float*, int, long long,
              const float*, int, long long, const float*, float*, int, long long, int) = nullptr;
  bool loaded = false;

  static const Cublas& Get() {
    static const Cublas cublas = Load();
    return cublas;
  }

 private:
  static Cublas Load() {
    Cublas cublas;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
      void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      cublas.loaded = Find(library, "cublasCreate_v2", &cublas.create) &&
                      Find(library, "cublasSetStream_v2", &cublas.set_stream) &&
                      Find(library, "cublasSetMathMode", &cublas.set_math) &&
                      Find(library, "cublasSgemmStridedBatched", &cublas.gemm);
      if (cublas.loaded) return cublas;
    }
    std::fprintf(stderr,
                 "paddlebox: found neither libcublas.so.13 nor libcublas.so.12: products use a "
                 "much slower kernel. Install nvidia-cublas, or add its folder to "
                 "LD_LIBRARY_PATH\n");
    return cublas;
  }

  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }
};

Status CublasStatus(int code, const char* what) {
  if (code == 0) return Status::Ok();
  return Error(Code::kIOError, "cuBLAS: %s failed with code %d", what, code);
}

// A matrix whose rows or columns are contiguous, as an argument of a column-major product.
struct Side {
  int operation, leading;
};
Side SideOf(int64_t row, int64_t column) {
  if (column == 1) return {kNone, static_cast<int>(row)};
  return {kTransposed, static_cast<int>(column)};
}

}  // namespace

bool HasCublas() { return Cublas::Get().loaded; }

Status MultiplyByCublas(const Product& of, const float* x, const float* y, float* out,
                        Stream stream) {
  static std::mutex mutex;  // a handle serves one thread at a time
  static Handle handle = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  const Cublas& cublas = Cublas::Get();
  if (handle == nullptr) {
    PBX_RETURN_IF_ERROR(CublasStatus(cublas.create(&handle), "cublasCreate"));
    PBX_RETURN_IF_ERROR(CublasStatus(cublas.set_math(handle, kPedantic), "cublasSetMathMode"));
  }
  PBX_RETURN_IF_ERROR(CublasStatus(cublas.set_stream(handle, stream), "cublasSetStream"));
  // cuBLAS is column-major: it computes the transposed product, of y and x in this order.
  const Side left = SideOf(of.y_row, of.y_column), right = SideOf(of.x_row, of.x_column);
  const float one = 1, zero = 0;
  const int rows = static_cast<int>(of.rows), columns = static_cast<int>(of.columns);
  return CublasStatus(cublas.gemm(handle, left.operation, right.operation, columns, rows,
                                  static_cast<int>(of.summed), &one, y, left.leading, of.y_batch, x,
                                  right.leading, of.x_batch, &zero, out, columns,
                                  of.rows * of.columns, static_cast<int>(of.batch)),
                      "cublasSgemmStridedBatched");
}

#else

bool HasCublas() { return false; }
Status MultiplyByCublas(const Product&, const float*, const float*, float*, Stream) {
  return Error(Code::kFailedPrecondition, "the host build has no cuBLAS");
}

#endif

}  // namespace pbx::gpu
