// A stack of linear layers: pbx_gpu_mlp_ of cuda/dense.h. T is the type of the factors of products,
// float or uint16_t (base/bfloat16.h).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bfloat16.h"
#include "base/drops.h"
#include "cuda/call.h"
#include "cuda/dense.h"
#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

template <typename T>
constexpr bool kRounds = sizeof(T) < sizeof(float);

// Of x (rows, summed) and y (summed, columns), each of which may be read transposed.
template <typename T>
Product ProductOf(int64_t rows, int64_t summed, int64_t columns, bool x_transposed,
                  bool y_transposed) {
  Product product;
  product.rows = rows;
  product.summed = summed;
  product.columns = columns;
  product.x_row = x_transposed ? 1 : summed;
  product.x_column = x_transposed ? rows : 1;
  product.y_row = y_transposed ? 1 : columns;
  product.y_column = y_transposed ? summed : 1;
  product.bfloat16 = kRounds<T>;
  return product;
}

// Rounding to T, and dropout after it. from may be to.
template <typename T>
struct Kept {
  float rate;
  const int64_t* seed;  // not read if rate is 0
  int64_t layer;
  const float* from;
  T* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    T h = RoundedTo<T>(from[i]);
    if (rate > 0) {
      const Drops drops(rate, static_cast<uint64_t>(*seed), static_cast<uint64_t>(layer));
      const bool keeps = drops.keeps(static_cast<uint32_t>(i));
      h = RoundedTo<T>(keeps ? ToFloat(h) * drops.scale : 0.0f);
    }
    to[i] = h;
  }
};

// The gradient before a ReLU, and before the dropout after it. H: the type of their result, to
// which the gradient is rounded first.
template <typename H, typename T>
struct Masked {
  const H* h;  // null: there is no ReLU
  const float* dh;
  float scale;
  T* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    float gradient = ToFloat(RoundedTo<H>(dh[i]));
    if (h != nullptr) gradient = ToFloat(h[i]) > 0 ? gradient * scale : 0.0f;
    to[i] = RoundedTo<T>(gradient);
  }
};

// The floats of an array of n elements, so that the next one begins where cuBLASLt expects it.
template <typename T>
uint64_t FloatsOf(int64_t n) {
  return (static_cast<uint64_t>(n) * sizeof(T) + 255) / 256 * 64;
}
// The elements of the widest of H_1 to H_L.
int64_t WidestOf(const pbx_gpu_mlp& mlp) {
  int64_t widest = 0;
  for (int64_t l = 0; l < mlp.count; ++l) widest = std::max(widest, mlp.layers[l].outputs);
  return mlp.instances * widest;
}

// H_0 to H_(L-1) and the weights, as factors. What the forward does not save, X and weights of
// float32, is only read.
template <typename T>
struct Factors {
  Factors(const pbx_gpu_mlp& mlp, const float* x, float* saved) {
    const auto place = [&](bool is_saved, const float* input, int64_t n) {
      float* const next = saved == nullptr ? nullptr : saved + floats;
      if (is_saved) floats += FloatsOf<T>(n);
      return reinterpret_cast<T*>(is_saved ? next : const_cast<float*>(input));
    };
    for (int64_t l = 0; l < mlp.count; ++l) {
      const pbx_gpu_layer& layer = mlp.layers[l];
      h.push_back(place(kRounds<T> || l > 0, x, mlp.instances * layer.inputs));
      weights.push_back(place(kRounds<T>, layer.weight, layer.inputs * layer.outputs));
    }
  }

  std::vector<T*> h, weights;
  uint64_t floats = 0;  // saved
};

template <typename T>
Status Keep(const Kept<T>& kept, int64_t n, Stream stream) {
  return LaunchForAll("mlp", n, kept, stream);
}

template <typename T>
Status Forward(const pbx_gpu_mlp& mlp, const float* x, float* saved, float* room, float* out,
               Stream stream) {
  const Factors<T> factors(mlp, x, saved);
  if (kRounds<T>) {
    const int64_t n = mlp.instances * mlp.layers[0].inputs;
    PBX_RETURN_IF_ERROR(Keep<T>({0, nullptr, 0, x, factors.h[0]}, n, stream));
  }
  for (int64_t l = 0; l < mlp.count; ++l) {
    const pbx_gpu_layer& layer = mlp.layers[l];
    if (kRounds<T>) {
      PBX_RETURN_IF_ERROR(Keep<T>({0, nullptr, 0, layer.weight, factors.weights[l]},
                                  layer.inputs * layer.outputs, stream));
    }
    const bool is_last = l + 1 == mlp.count;
    T* const h = is_last ? nullptr : factors.h[l + 1];
    float* const to = is_last ? out : kRounds<T> ? room : reinterpret_cast<float*>(h);
    const auto product = ProductOf<T>(mlp.instances, layer.inputs, layer.outputs, false, false);
    PBX_RETURN_IF_ERROR(MultiplyAndActivate(product, factors.h[l], factors.weights[l], layer.bias,
                                            layer.relu != 0, to, stream));
    const float rate = layer.relu != 0 ? mlp.dropout : 0.0f;
    const int64_t n = mlp.instances * layer.outputs;
    if (is_last && rate > 0) {
      PBX_RETURN_IF_ERROR(Keep<float>({rate, mlp.seed, l, to, to}, n, stream));
    } else if (!is_last && (rate > 0 || kRounds<T>)) {
      PBX_RETURN_IF_ERROR(Keep<T>({rate, mlp.seed, l, to, h}, n, stream));
    }
  }
  return Status::Ok();
}

template <typename T>
Status Backward(const pbx_gpu_mlp& mlp, const float* x, const float* saved, const float* out,
                const float* dh, float* room, float* dx, float* const* dweights,
                float* const* dbiases, Stream stream) {
  const Factors<T> factors(mlp, x, const_cast<float*>(saved));
  T* const masked = reinterpret_cast<T*>(room);
  float* const dh_before = room + FloatsOf<T>(WidestOf(mlp));
  float* const parts = dh_before + FloatsOf<float>(WidestOf(mlp));
  const int64_t rows = mlp.instances;
  const float scale = 1.0f / (1.0f - mlp.dropout);
  for (int64_t l = mlp.count; l-- > 0;) {
    const pbx_gpu_layer& layer = mlp.layers[l];
    const bool is_last = l + 1 == mlp.count, relu = layer.relu != 0;
    const int64_t n = rows * layer.outputs;
    const T* gradient = masked;
    if (!is_last) {
      const Masked<T, T> mask{relu ? factors.h[l + 1] : nullptr, dh, scale, masked};
      PBX_RETURN_IF_ERROR(LaunchForAll("relu_grad", n, mask, stream));
    } else if (relu || kRounds<T>) {
      const Masked<float, T> mask{relu ? out : nullptr, dh, scale, masked};
      PBX_RETURN_IF_ERROR(LaunchForAll("relu_grad", n, mask, stream));
    } else {
      gradient = reinterpret_cast<const T*>(dh);
    }
    if (dbiases[l] != nullptr) {
      PBX_RETURN_IF_ERROR(Sum(gradient, 1, rows, layer.outputs, 1, parts, dbiases[l], stream));
    }
    PBX_RETURN_IF_ERROR(Multiply(ProductOf<T>(layer.inputs, rows, layer.outputs, true, false),
                                 factors.h[l], gradient, dweights[l], stream));
    float* const next = l == 0 ? dx : dh_before;
    PBX_RETURN_IF_ERROR(Multiply(ProductOf<T>(rows, layer.outputs, layer.inputs, false, true),
                                 gradient, factors.weights[l], next, stream));
    dh = next;
  }
  return Status::Ok();
}

}  // namespace
}  // namespace pbx::gpu

uint64_t pbx_gpu_mlp_saved(const pbx_gpu_mlp* mlp) {
  if (mlp->bfloat16 != 0) return pbx::gpu::Factors<uint16_t>(*mlp, nullptr, nullptr).floats;
  return pbx::gpu::Factors<float>(*mlp, nullptr, nullptr).floats;
}
uint64_t pbx_gpu_mlp_room(const pbx_gpu_mlp* mlp, int32_t backward) {
  const uint64_t widest = pbx::gpu::FloatsOf<float>(pbx::gpu::WidestOf(*mlp));
  if (backward == 0) return mlp->bfloat16 != 0 ? widest : 0;
  uint64_t parts = 0;
  for (int64_t l = 0; l < mlp->count; ++l) {
    parts = std::max(parts, pbx::gpu::SumRoom(1, mlp->instances, mlp->layers[l].outputs));
  }
  return 2 * widest + parts;
}
int pbx_gpu_mlp_forward(const pbx_gpu_mlp* mlp, const float* x, float* saved, float* room,
                        float* out, void* stream) {
  const auto forward = mlp->bfloat16 != 0 ? pbx::gpu::Forward<uint16_t> : pbx::gpu::Forward<float>;
  return pbx::hbm::Told(forward(*mlp, x, saved, room, out, static_cast<pbx::hbm::Stream>(stream)));
}
int pbx_gpu_mlp_backward(const pbx_gpu_mlp* mlp, const float* x, const float* saved,
                         const float* out, const float* dout, float* room, float* dx,
                         float* const* dweights, float* const* dbiases, void* stream) {
  const auto backward =
      mlp->bfloat16 != 0 ? pbx::gpu::Backward<uint16_t> : pbx::gpu::Backward<float>;
  return pbx::hbm::Told(backward(*mlp, x, saved, out, dout, room, dx, dweights, dbiases,
                                 static_cast<pbx::hbm::Stream>(stream)));
}
