// A stack of linear layers: pbx_gpu_mlp_ of cuda/dense.h.
#include <algorithm>
#include <cstdint>

#include "base/drops.h"
#include "cuda/call.h"
#include "cuda/dense.h"
#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

// Of x (rows, summed) and y (summed, columns), each of which may be read transposed.
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
  return product;
}

// Dropout, in place.
struct Dropped {
  float rate;
  const int64_t* seed;
  uint64_t layer;
  float* h;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const Drops drops(rate, static_cast<uint64_t>(*seed), layer);
    h[i] = drops.keeps(static_cast<uint32_t>(i)) ? h[i] * drops.scale : 0.0f;
  }
};

// The gradient before a ReLU, and before the dropout after it.
struct Masked {
  const float* h;
  const float* dh;
  float scale;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const { to[i] = h[i] > 0 ? dh[i] * scale : 0.0f; }
};

// The floats of an array (B, columns), so that the next one begins where cuBLASLt expects it.
uint64_t FloatsOf(const pbx_gpu_mlp& mlp, int64_t columns) {
  return static_cast<uint64_t>(mlp.instances * columns + 63) / 64 * 64;
}
// Of H_1 to H_layers.
uint64_t SavedOf(const pbx_gpu_mlp& mlp, int64_t layers) {
  uint64_t floats = 0;
  for (int64_t l = 0; l < layers; ++l) floats += FloatsOf(mlp, mlp.layers[l].outputs);
  return floats;
}
// Of the widest of H_1 to H_L.
uint64_t WidestOf(const pbx_gpu_mlp& mlp) {
  uint64_t floats = 0;
  for (int64_t l = 0; l < mlp.count; ++l) {
    floats = std::max(floats, FloatsOf(mlp, mlp.layers[l].outputs));
  }
  return floats;
}

Status Forward(const pbx_gpu_mlp& mlp, const float* h, float* saved, float* out, Stream stream) {
  for (int64_t l = 0; l < mlp.count; ++l) {
    const pbx_gpu_layer& layer = mlp.layers[l];
    float* const to = l + 1 < mlp.count ? saved + SavedOf(mlp, l) : out;
    const auto product = ProductOf(mlp.instances, layer.inputs, layer.outputs, false, false);
    PBX_RETURN_IF_ERROR(
        MultiplyAndActivate(product, h, layer.weight, layer.bias, layer.relu != 0, to, stream));
    if (layer.relu != 0 && mlp.dropout > 0) {
      const Dropped dropped{mlp.dropout, mlp.seed, static_cast<uint64_t>(l), to};
      PBX_RETURN_IF_ERROR(LaunchForAll("dropout", mlp.instances * layer.outputs, dropped, stream));
    }
    h = to;
  }
  return Status::Ok();
}

Status Backward(const pbx_gpu_mlp& mlp, const float* x, const float* saved, const float* out,
                const float* dh, float* room, float* dx, float* const* dweights,
                float* const* dbiases, Stream stream) {
  const int64_t rows = mlp.instances;
  float* const parts = room + 2 * WidestOf(mlp);
  const float scale = 1.0f / (1.0f - mlp.dropout);
  for (int64_t l = mlp.count; l-- > 0;) {
    const pbx_gpu_layer& layer = mlp.layers[l];
    // The gradients of H_(l+1) and H_l take turns in the room.
    float* const own = room + (l % 2 == 0 ? WidestOf(mlp) : 0);
    float* const next = l == 0 ? dx : room + (l % 2 == 0 ? 0 : WidestOf(mlp));
    if (layer.relu != 0) {
      const float* const h = l + 1 < mlp.count ? saved + SavedOf(mlp, l) : out;
      PBX_RETURN_IF_ERROR(
          LaunchForAll("relu_grad", rows * layer.outputs, Masked{h, dh, scale, own}, stream));
      dh = own;
    }
    if (dbiases[l] != nullptr) {
      PBX_RETURN_IF_ERROR(Sum(dh, 1, rows, layer.outputs, 1, parts, dbiases[l], stream));
    }
    const float* const before = l == 0 ? x : saved + SavedOf(mlp, l - 1);
    PBX_RETURN_IF_ERROR(Multiply(ProductOf(layer.inputs, rows, layer.outputs, true, false), before,
                                 dh, dweights[l], stream));
    PBX_RETURN_IF_ERROR(Multiply(ProductOf(rows, layer.outputs, layer.inputs, false, true), dh,
                                 layer.weight, next, stream));
    dh = next;
  }
  return Status::Ok();
}

}  // namespace
}  // namespace pbx::gpu

uint64_t pbx_gpu_mlp_saved(const pbx_gpu_mlp* mlp) {
  return pbx::gpu::SavedOf(*mlp, mlp->count - 1);
}
uint64_t pbx_gpu_mlp_room(const pbx_gpu_mlp* mlp) {
  uint64_t parts = 0;
  for (int64_t l = 0; l < mlp->count; ++l) {
    parts = std::max(parts, pbx::gpu::SumRoom(1, mlp->instances, mlp->layers[l].outputs));
  }
  return 2 * pbx::gpu::WidestOf(*mlp) + parts;
}
int pbx_gpu_mlp_forward(const pbx_gpu_mlp* mlp, const float* x, float* saved, float* out,
                        void* stream) {
  return pbx::hbm::Told(
      pbx::gpu::Forward(*mlp, x, saved, out, static_cast<pbx::hbm::Stream>(stream)));
}
int pbx_gpu_mlp_backward(const pbx_gpu_mlp* mlp, const float* x, const float* saved,
                         const float* out, const float* dout, float* room, float* dx,
                         float* const* dweights, float* const* dbiases, void* stream) {
  return pbx::hbm::Told(pbx::gpu::Backward(*mlp, x, saved, out, dout, room, dx, dweights, dbiases,
                                           static_cast<pbx::hbm::Stream>(stream)));
}
