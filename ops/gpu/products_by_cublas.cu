#include "gpu/products_by_cublas.h"

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <utility>
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
  gemm->bfloat16 = product.bfloat16;
  PBX_RETURN_IF_ERROR(
      SideOf(product.rows, product.summed, product.x_row, product.x_column, &gemm->x));
  return SideOf(product.summed, product.columns, product.y_row, product.y_column, &gemm->y);
}

#ifdef __CUDACC__

namespace {

// Of cublas_v2.h, cublas_api.h and cublasLt.h, which the nvcc of PyPI comes without.
using Handle = void*;
constexpr int kNone = 0, kTransposed = 1;         // cublasOperation_t
constexpr int kFloat32 = 0, kBfloat16 = 14;       // cudaDataType: CUDA_R_32F, CUDA_R_16BF
constexpr int kCompute32 = 68, kPedantic32 = 69;  // cublasComputeType_t: sums in float32

int TypeOf(const Gemm& gemm) { return gemm.bfloat16 ? kBfloat16 : kFloat32; }
// Pedantic: no TF32, whatever the environment. It would also keep bfloat16 from the tensor cores.
int ComputeTypeOf(const Gemm& gemm) { return gemm.bfloat16 ? kCompute32 : kPedantic32; }

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

struct Cublas {
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, long long,
              const void*, int, int, long long, const void*, void*, int, int, long long, int, int,
              int) = nullptr;
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
                      Find(library, "cublasGemmStridedBatchedEx", &cublas.gemm);
      if (cublas.loaded) return cublas;
    }
    std::fprintf(stderr,
                 "paddlebox: found neither libcublas.so.13 nor libcublas.so.12: products use a "
                 "much slower kernel. Install nvidia-cublas, or add its folder to "
                 "LD_LIBRARY_PATH\n");
    return cublas;
  }
};

struct CublasLt {
  struct Found {  // cublasLtMatmulHeuristicResult_t
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
  };
  int (*create)(Handle*) = nullptr;
  int (*new_product)(Handle*, int, int) = nullptr;
  int (*set)(Handle, int, const void*, size_t) = nullptr;
  int (*new_layout)(Handle*, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*new_preference)(Handle*) = nullptr;
  int (*end_product)(Handle) = nullptr;
  int (*end_layout)(Handle) = nullptr;
  int (*end_preference)(Handle) = nullptr;
  int (*find)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, Found*, int*) = nullptr;
  int (*multiply)(Handle, Handle, const void*, const void*, Handle, const void*, Handle,
                  const void*, const void*, Handle, void*, Handle, const uint64_t*, void*, size_t,
                  cudaStream_t) = nullptr;
  Handle handle = nullptr;  // serves all threads; null: there is no cuBLASLt

  static const CublasLt& Get() {
    static const CublasLt lt = Load();
    return lt;
  }

 private:
  static CublasLt Load() {
    CublasLt lt;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      // cuBLAS has loaded that of its version.
      void* const library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
      if (library == nullptr) continue;
      if (Find(library, "cublasLtCreate", &lt.create) &&
          Find(library, "cublasLtMatmulDescCreate", &lt.new_product) &&
          Find(library, "cublasLtMatmulDescSetAttribute", &lt.set) &&
          Find(library, "cublasLtMatrixLayoutCreate", &lt.new_layout) &&
          Find(library, "cublasLtMatmulPreferenceCreate", &lt.new_preference) &&
          Find(library, "cublasLtMatmulDescDestroy", &lt.end_product) &&
          Find(library, "cublasLtMatrixLayoutDestroy", &lt.end_layout) &&
          Find(library, "cublasLtMatmulPreferenceDestroy", &lt.end_preference) &&
          Find(library, "cublasLtMatmulAlgoGetHeuristic", &lt.find) &&
          Find(library, "cublasLtMatmul", &lt.multiply) && lt.create(&lt.handle) == 0) {
        return lt;
      }
    }
    lt.handle = nullptr;
    return lt;
  }
};

// The descriptions of one call. cuBLASLt itself keeps what it has found for them.
struct LtCall {
  const CublasLt& lt = CublasLt::Get();
  Handle product = nullptr, preference = nullptr, y = nullptr, x = nullptr, out = nullptr;
  CublasLt::Found found = {};

  LtCall() = default;
  LtCall(const LtCall&) = delete;
  LtCall& operator=(const LtCall&) = delete;
  ~LtCall() {
    if (product != nullptr) lt.end_product(product);
    if (preference != nullptr) lt.end_preference(preference);
    for (Handle layout : {y, x, out}) {
      if (layout != nullptr) lt.end_layout(layout);
    }
  }

  // Whether there is a kernel. It needs no workspace.
  bool Find(const Gemm& gemm, const float* bias, bool relu) {
    constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBias = 8;  // attributes
    const int epilogue = (relu ? 2 : 0) | (bias != nullptr ? 4 : 0);           // cublasLtEpilogue_t
    const int of_y = gemm.y.transposed ? kTransposed : kNone;
    const int of_x = gemm.x.transposed ? kTransposed : kNone;
    int count = 0;
    return lt.new_product(&product, ComputeTypeOf(gemm), kFloat32) == 0 &&
           lt.set(product, kTransposeA, &of_y, sizeof of_y) == 0 &&
           lt.set(product, kTransposeB, &of_x, sizeof of_x) == 0 &&
           lt.set(product, kEpilogue, &epilogue, sizeof epilogue) == 0 &&
           (bias == nullptr || lt.set(product, kBias, &bias, sizeof bias) == 0) &&
           Layout(TypeOf(gemm), gemm.y, gemm.columns, gemm.summed, &y) &&
           Layout(TypeOf(gemm), gemm.x, gemm.summed, gemm.rows, &x) &&
           Layout(kFloat32, {false, gemm.columns}, gemm.columns, gemm.rows, &out) &&
           lt.new_preference(&preference) == 0 &&
           lt.find(lt.handle, product, y, x, out, out, preference, 1, &found, &count) == 0 &&
           count == 1 && found.state == 0 && found.workspace_bytes == 0;
  }

 private:
  // Of a column-major matrix (rows, columns), or of its transposed one.
  bool Layout(int type, const GemmSide& side, int rows, int columns, Handle* layout) const {
    if (side.transposed) std::swap(rows, columns);
    return lt.new_layout(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                         side.leading) == 0;
  }
};

Status CublasStatus(int code, const char* what) {
  if (code == 0) return Status::Ok();
  return Error(Code::kIOError, "cuBLAS: %s failed with code %d", what, code);
}

int OperationOf(const GemmSide& side) { return side.transposed ? kTransposed : kNone; }

}  // namespace

bool HasCublas() { return Cublas::Get().loaded; }

Status MultiplyByCublas(const Product& of, const Gemm& gemm, const void* x, const void* y,
                        float* out, Stream stream) {
  static std::mutex mutex;  // a handle serves one thread at a time
  static Handle handle = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  const Cublas& cublas = Cublas::Get();
  if (handle == nullptr) {
    PBX_RETURN_IF_ERROR(CublasStatus(cublas.create(&handle), "cublasCreate"));
  }
  PBX_RETURN_IF_ERROR(CublasStatus(cublas.set_stream(handle, stream), "cublasSetStream"));
  const float one = 1, zero = 0;
  const int type = TypeOf(gemm);
  constexpr int kDefault = -1;  // CUBLAS_GEMM_DEFAULT
  return CublasStatus(
      cublas.gemm(handle, OperationOf(gemm.y), OperationOf(gemm.x), gemm.columns, gemm.rows,
                  gemm.summed, &one, y, type, gemm.y.leading, of.y_batch, x, type, gemm.x.leading,
                  of.x_batch, &zero, out, kFloat32, gemm.columns, of.rows * of.columns, gemm.batch,
                  ComputeTypeOf(gemm), kDefault),
      "cublasGemmStridedBatchedEx");
}

bool ActivateByCublas(const Gemm& gemm, const void* x, const void* y, const float* bias, bool relu,
                      float* out, Stream stream) {
  if (!HasCublas() || CublasLt::Get().handle == nullptr || gemm.batch != 1) return false;
  // Which cuBLASLt takes for granted.
  for (const void* one : {x, y, static_cast<const void*>(out), static_cast<const void*>(bias)}) {
    if (reinterpret_cast<uintptr_t>(one) % 256 != 0) return false;
  }
  LtCall call;
  if (!call.Find(gemm, bias, relu)) return false;
  const float one = 1, zero = 0;
  return call.lt.multiply(call.lt.handle, call.product, &one, y, call.y, x, call.x, &zero, out,
                          call.out, out, call.out, call.found.algorithm, nullptr, 0, stream) == 0;
}

#else

bool HasCublas() { return false; }
bool ActivateByCublas(const Gemm&, const void*, const void*, const float*, bool, float*, Stream) {
  return false;
}
Status MultiplyByCublas(const Product&, const Gemm&, const void*, const void*, float*, Stream) {
  return Error(Code::kFailedPrecondition, "the host build has no cuBLAS");
}

#endif

}  // namespace pbx::gpu
