#include "gpu/products_by_cublas.h"

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#endif

namespace pbx::gpu {
namespace {

// A matrix of these strides.
Status SideOf(int64_t rows, int64_t columns, int64_t row, int64_t column, GemmSide* side) {
  int64_t leading = 0;
  if ((column == 1 || columns <= 1) && (row >= columns || rows <= 1)) {
    *side = {false, 1};
    leading = std::max<int64_t>({rows <= 1 ? 1 : row, columns, 1});
  } else if ((row == 1 || rows <= 1) && (column >= rows || columns <= 1)) {
    *side = {true, 1};
    leading = std::max<int64_t>({columns <= 1 ? 1 : column, rows, 1});
  }
  if (leading < 1 || leading > INT32_MAX) {
    return Error(Code::kInvalidArgument,
                 "a product of a matrix (%lld, %lld) with strides %lld, %lld",
                 static_cast<long long>(rows), static_cast<long long>(columns),
                 static_cast<long long>(row), static_cast<long long>(column));
  }
  side->leading = static_cast<int>(leading);
  return Status::Ok();
}

}  // namespace

Status GemmOf(const Product& product, Gemm* gemm) {
  const int64_t sizes[] = {product.rows, product.columns, product.summed, product.batch};
  int* const to[] = {&gemm->rows, &gemm->columns, &gemm->summed, &gemm->batch};
  for (int k = 0; k < 4; ++k) {
    if (sizes[k] > INT32_MAX) {
      return Error(Code::kInvalidArgument,
                   "a product with a size of %lld, expected at most 2^31 - 1",
                   static_cast<long long>(sizes[k]));
    }
    *to[k] = static_cast<int>(sizes[k]);
  }
  PBX_RETURN_IF_ERROR(
      SideOf(product.rows, product.summed, product.x_row, product.x_column, &gemm->x));
  return SideOf(product.summed, product.columns, product.y_row, product.y_column, &gemm->y);
}

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

int OperationOf(const GemmSide& side) { return side.transposed ? kTransposed : kNone; }

}  // namespace

bool HasCublas() { return Cublas::Get().loaded; }

Status MultiplyByCublas(const Product& of, const Gemm& gemm, const float* x, const float* y,
                        float* out, Stream stream) {
  static std::mutex mutex;  // a handle serves one thread at a time
  static Handle handle = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  const Cublas& cublas = Cublas::Get();
  if (handle == nullptr) {
    PBX_RETURN_IF_ERROR(CublasStatus(cublas.create(&handle), "cublasCreate"));
    PBX_RETURN_IF_ERROR(CublasStatus(cublas.set_math(handle, kPedantic), "cublasSetMathMode"));
  }
  PBX_RETURN_IF_ERROR(CublasStatus(cublas.set_stream(handle, stream), "cublasSetStream"));
  const float one = 1, zero = 0;
  return CublasStatus(
      cublas.gemm(handle, OperationOf(gemm.y), OperationOf(gemm.x), gemm.columns, gemm.rows,
                  gemm.summed, &one, y, gemm.y.leading, of.y_batch, x, gemm.x.leading, of.x_batch,
                  &zero, out, gemm.columns, of.rows * of.columns, gemm.batch),
      "cublasSgemmStridedBatched");
}

#else

bool HasCublas() { return false; }
Status MultiplyByCublas(const Product&, const Gemm&, const float*, const float*, float*, Stream) {
  return Error(Code::kFailedPrecondition, "the host build has no cuBLAS");
}

#endif

}  // namespace pbx::gpu
