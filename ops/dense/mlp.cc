#include "dense/mlp.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/buffer.h"
#include "base/drops.h"
#include "base/flush_subnormals.h"
#include "base/vector_clones.h"

namespace pbx {
namespace {

// Rows of a tile of instances.
constexpr size_t kMostRows = 8192, kLeastRows = 32;
// Most rows of a tile of a weight's gradient. A product first rearranges its operands, the
// gradients of H once for each of these tiles. 128 takes 1.05 times as long.
constexpr size_t kWeightRows = 256;
// Fewest instances for which weights are packed. Packing takes as long as the product of about a
// hundred instances, so this costs at most a tenth.
constexpr size_t kLeastPacked = 1024;
// Most floats of a tile, counting the inputs and outputs of the widest layer, unless it has the
// least rows. This is 1 MiB, about the cache of a core. Narrow layers have large tiles, because
// each product takes some microseconds to start.
constexpr size_t kTileFloats = 1 << 18;
constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// How the instances of a batch are cut. Batches of many sizes share a few sizes of tiles, so that
// oneDNN compiles few products. A batch of 1024 or more has at least three tiles, for threads.
struct Tiles {
  Tiles(size_t batch, size_t columns) : instances(batch) {
    const size_t most = std::min(kMostRows, std::max(batch / 4, std::min<size_t>(batch, 256)));
    while (rows < most && 2 * rows * columns <= kTileFloats) rows *= 2;
    count = (batch + rows - 1) / rows;
  }
  size_t padded() const { return count * rows; }
  size_t begin(size_t tile) const { return tile * rows; }
  size_t filled(size_t tile) const { return std::min(rows, instances - tile * rows); }

  size_t instances, rows = kLeastRows, count = 0;
};

// The first error of tasks that run on several threads.
class FirstError {
 public:
  void Keep(const Status& status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  Status status() const { return status_; }

 private:
  std::mutex mutex_;
  Status status_;
};

// Memory that the calling thread uses again at its next call.
Status Workspace(size_t bytes, char** begin) {
  static thread_local Buffer buffer;
  if (buffer.size() < bytes) {
    buffer = Buffer();
    Result<Buffer> larger = Buffer::Allocate(bytes);
    if (!larger.ok()) return larger.status();
    buffer = std::move(larger.value());
  }
  *begin = buffer.data();
  return Status::Ok();
}

// Hands out parts of a block of memory, or counts their bytes if there is none yet.
class Parts {
 public:
  explicit Parts(char* begin) : begin_(begin) {}
  char* Take(size_t bytes) {
    char* part = begin_ == nullptr ? nullptr : begin_ + bytes_;
    bytes_ += Aligned(bytes);
    return part;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* begin_;
  size_t bytes_ = 0;
};

void Convert(GemmType type, size_t n, const float* from, char* to) {
  if (type == GemmType::kBfloat16) {
    ToBfloat16(n, from, reinterpret_cast<uint16_t*>(to));
  } else {
    std::memcpy(to, from, n * sizeof(float));
  }
}

// Calls f(offset, offset of rows of `stride` elements, elements) for each row; if the rows are
// contiguous, once for all.
template <typename F>
void ForRows(size_t rows, size_t columns, size_t stride, const F& f) {
  if (stride == columns) return f(size_t{0}, size_t{0}, rows * columns);
  for (size_t r = 0; r < rows; ++r) f(r * columns, r * stride, columns);
}

// The rows of a tile in `type`, with zeros up to `stride` elements, and rows of zeros up to a whole
// tile.
void Fill(GemmType type, const Tiles& tiles, size_t tile, size_t columns, size_t stride,
          const float* from, char* to) {
  const size_t filled = tiles.filled(tile), size = SizeOf(type);
  from += tiles.begin(tile) * columns;
  ForRows(filled, columns, stride, [&](size_t at, size_t place, size_t n) {
    Convert(type, n, from + at, to + place * size);
    if (stride > columns) std::memset(to + (place + n) * size, 0, (stride - columns) * size);
  });
  std::memset(to + filled * stride * size, 0, (tiles.rows - filled) * stride * size);
}

// gradients = those of ReLU's input, where ReLU's output, after dropout, is `activations`.
PBX_VECTOR_CLONES
void MaskBfloat16(size_t n, const int16_t* activations, uint16_t* gradients) {
  for (size_t i = 0; i < n; ++i) { gradients[i] = activations[i] > 0 ? gradients[i] : uint16_t{0}; }
}

PBX_VECTOR_CLONES
void MaskFloat(size_t n, const float* activations, float scale, float* gradients) {
  for (size_t i = 0; i < n; ++i) {
    gradients[i] = activations[i] > 0.0f ? gradients[i] * scale : 0.0f;
  }
}

PBX_VECTOR_CLONES
void WidenScaled(size_t n, const uint16_t* from, float scale, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] = FromBfloat16(from[i]) * scale;
}

// Elements of bfloat16 that are scaled in float32 at a time.
constexpr size_t kChunk = 1024;

void Mask(GemmType type, size_t n, const char* activations, float scale, char* gradients) {
  if (type == GemmType::kFloat32) {
    return MaskFloat(n, reinterpret_cast<const float*>(activations), scale,
                     reinterpret_cast<float*>(gradients));
  }
  auto* const to = reinterpret_cast<uint16_t*>(gradients);
  MaskBfloat16(n, reinterpret_cast<const int16_t*>(activations), to);
  if (scale == 1.0f) return;
  float wide[kChunk];
  for (size_t i = 0; i < n; i += kChunk) {
    const size_t count = std::min(kChunk, n - i);
    WidenScaled(count, to + i, scale, wide);
    ToBfloat16(count, wide, to + i);
  }
}

PBX_VECTOR_CLONES
void Drop(const Drops& drops, uint32_t index, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i) {
    const bool keeps = drops.keeps(index + static_cast<uint32_t>(i));
    values[i] = keeps ? values[i] * drops.scale : 0.0f;
  }
}

// Drops elements of `values`, the first of which is element `index` of its layer.
void Drop(const Drops& drops, GemmType type, size_t index, size_t n, void* values) {
  const auto first = static_cast<uint32_t>(index);
  if (type == GemmType::kFloat32) return Drop(drops, first, n, static_cast<float*>(values));
  auto* const narrow = static_cast<uint16_t*>(values);
  float wide[kChunk];
  for (size_t i = 0; i < n; i += kChunk) {
    const size_t count = std::min(kChunk, n - i);
    WidenScaled(count, narrow + i, 1.0f, wide);
    Drop(drops, first + static_cast<uint32_t>(i), count, wide);
    ToBfloat16(count, wide, narrow + i);
  }
}

PBX_VECTOR_CLONES
void AddRows(size_t rows, size_t columns, const float* from, float* sums) {
  for (size_t r = 0; r < rows; ++r, from += columns) {
    for (size_t c = 0; c < columns; ++c) sums[c] += from[c];
  }
}

PBX_VECTOR_CLONES
void AddRows(size_t rows, size_t columns, size_t stride, const uint16_t* from, float* sums) {
  for (size_t r = 0; r < rows; ++r, from += stride) {
    for (size_t c = 0; c < columns; ++c) sums[c] += FromBfloat16(from[c]);
  }
}

// The backward pass of a layer with one output, for some instances. `inputs` has `columns` elements
// a row, `by` every stride-th: the gradients of the outputs. `gradients` = those of the inputs,
// sums (columns) = the gradient of W, added row by row. With `relu`, the inputs are outputs of
// ReLU, after dropout.
template <typename T>
PBX_INLINE void ColumnOf(size_t rows, size_t columns, size_t stride, const T* by,
                         const float* weight, bool relu, float scale, const T* inputs, T* gradients,
                         float* sums) {
  for (size_t c = 0; c < columns; ++c) sums[c] = 0.0f;
  for (size_t r = 0; r < rows; ++r, inputs += columns, gradients += columns) {
    const float of = ToFloat(by[r * stride]);
    for (size_t c = 0; c < columns; ++c) {
      const float input = ToFloat(inputs[c]);
      sums[c] = __builtin_fmaf(input, of, sums[c]);
      T gradient = RoundedTo<T>(of * weight[c] + 0.0f);
      if (relu) gradient = RoundedTo<T>(input > 0.0f ? ToFloat(gradient) * scale : 0.0f);
      gradients[c] = gradient;
    }
  }
}

PBX_VECTOR_CLONES
void Column(size_t rows, size_t columns, size_t stride, const float* by, const float* weight,
            bool relu, float scale, const float* inputs, float* gradients, float* sums) {
  ColumnOf(rows, columns, stride, by, weight, relu, scale, inputs, gradients, sums);
}
PBX_VECTOR_CLONES
void Column(size_t rows, size_t columns, size_t stride, const uint16_t* by, const float* weight,
            bool relu, float scale, const uint16_t* inputs, uint16_t* gradients, float* sums) {
  ColumnOf(rows, columns, stride, by, weight, relu, scale, inputs, gradients, sums);
}

// The most inputs and outputs of a layer.
size_t WidestLayer(const std::vector<MlpLayer>& layers) {
  size_t widest = 0;
  for (const MlpLayer& layer : layers) widest = std::max(widest, layer.inputs + layer.outputs);
  return widest;
}

// A stack for one batch: where its activations lie, and its products.
struct Stack {
  Stack(const std::vector<MlpLayer>& of, GemmType in, size_t instances, const float* input)
      : layers(of), type(in), tiles(instances, WidestLayer(of)), x(input) {}

  size_t size() const { return layers.size(); }
  size_t width(size_t l) const { return l == 0 ? layers[0].inputs : layers[l - 1].outputs; }
  // Elements from one row of H_l to the next. Those after width(l) are 0: with bfloat16, up to the
  // depth of its products. On a Xeon with AMX, 256 x 400 with 400 x 400 takes 0.10 ms, and with
  // 416 instead of 400 it takes 0.06 ms. A single column that a layer reads has none: gemm.h
  // refuses its transposed, for the gradient of W, with zeros between.
  size_t stride(size_t l) const {
    if (type == GemmType::kFloat32 || (width(l) == 1 && l < size())) return width(l);
    return (width(l) + depth - 1) / depth * depth;
  }
  // Whether the last layer has one output, as that of a logit, and is not the only one. Then Column
  // is its backward pass.
  bool ends_in_column() const { return size() > 1 && layers.back().outputs == 1; }
  size_t tile_bytes(size_t l) const { return tiles.rows * stride(l) * SizeOf(type); }

  // Whether tile t of X can be read where it is.
  bool x_in_place(size_t t) const {
    return type == GemmType::kFloat32 && tiles.filled(t) == tiles.rows;
  }
  // X in the type of the products: all of it, or only the last tile, which is padded.
  size_t x_bytes() const {
    return type == GemmType::kBfloat16 ? tiles.count * tile_bytes(0) : tile_bytes(0);
  }
  char* x_tile(char* converted, size_t t) const {
    return type == GemmType::kBfloat16 ? converted + t * tile_bytes(0) : converted;
  }

  // Activations that the forward keeps: saved[l] = H_l for 0 <= l < L.
  size_t Saved(char* begin, std::vector<char*>* saved) const {
    Parts parts(begin);
    saved->assign(size(), nullptr);
    (*saved)[0] = parts.Take(x_bytes());
    for (size_t l = 1; l < size(); ++l) (*saved)[l] = parts.Take(tiles.count * tile_bytes(l));
    return parts.bytes();
  }

  // Tile t of H_l, as an operand.
  const char* Operand(const std::vector<char*>& saved, size_t l, size_t t) const {
    if (l == 0) {
      return x_in_place(t) ? reinterpret_cast<const char*>(x + tiles.begin(t) * width(0))
                           : x_tile(saved[0], t);
    }
    return saved[l] + t * tile_bytes(l);
  }

  const std::vector<MlpLayer>& layers;
  const GemmType type;
  const size_t depth = type == GemmType::kBfloat16 ? DepthOfBfloat16() : 1;
  const Tiles tiles;
  const float* const x;
};

// A product that reads a weight, and the weight in its layout. Packed weights, and their bias, have
// zeros where the product's operand and result have columns of zeros.
struct Product {
  const Gemm* gemm = nullptr;
  bool packs = false;
  size_t inputs = 0, outputs = 0;  // of the weight, with those of zeros
  const void* weight = nullptr;
  const float* bias = nullptr;
};

// Whether the weight of layer l + 1 is packed. To be rounded to bfloat16, it is copied anyway. With
// one output, its transposed is a single row, which must be contiguous (gemm.h).
bool Packs(const Stack& stack, size_t l) {
  return stack.type == GemmType::kBfloat16 || stack.tiles.instances >= kLeastPacked ||
         stack.layers[l].outputs == 1;
}

// The products H_(l-1) W_l + b_l of layer l + 1.
Status ForwardProduct(const Stack& stack, size_t l, Product* product) {
  const MlpLayer& layer = stack.layers[l];
  GemmShape shape;
  const bool is_last = l + 1 == stack.size();
  shape.m = stack.tiles.rows;
  shape.k = shape.a_row = product->inputs = stack.stride(l);
  shape.n = shape.c_row = product->outputs = is_last ? layer.outputs : stack.stride(l + 1);
  shape.type = stack.type;
  shape.to = is_last ? GemmType::kFloat32 : stack.type;
  shape.bias = layer.bias != nullptr;
  shape.packed = product->packs = Packs(stack, l);
  if (!shape.packed) shape.b_row = layer.outputs;
  shape.relu = layer.activation == Activation::kRelu;
  Result<const Gemm*> gemm = Gemm::Of(shape);
  if (!gemm.ok()) return gemm.status();
  product->gemm = gemm.value();
  return Status::Ok();
}

// The gradient of H_(l-1), dH_l transposed(W_l), for layer l + 1.
Status InputProduct(const Stack& stack, size_t l, Product* product) {
  const MlpLayer& layer = stack.layers[l];
  GemmShape shape;
  shape.m = stack.tiles.rows;
  shape.k = shape.a_row = product->outputs = stack.stride(l + 1);
  shape.n = shape.c_row = product->inputs = l == 0 ? layer.inputs : stack.stride(l);
  shape.type = stack.type;
  shape.to = l == 0 ? GemmType::kFloat32 : stack.type;
  shape.packed = product->packs = Packs(stack, l);
  if (!shape.packed) {  // transposed
    shape.b_row = 1;
    shape.b_column = layer.outputs;
  }
  Result<const Gemm*> gemm = Gemm::Of(shape);
  if (!gemm.ok()) return gemm.status();
  product->gemm = gemm.value();
  return Status::Ok();
}

// `rows` rows of the gradient of W_l, transposed(H_(l-1)) dH_l, for layer l + 1. With `add`, the
// product is added to them.
Result<const Gemm*> WeightProduct(const Stack& stack, size_t l, size_t rows, bool add) {
  const MlpLayer& layer = stack.layers[l];
  GemmShape shape;
  shape.m = rows;
  shape.k = stack.tiles.rows;
  shape.n = shape.c_row = layer.outputs;
  shape.b_row = stack.stride(l + 1);
  shape.type = stack.type;
  shape.a_row = 1;
  shape.a_column = stack.stride(l);
  shape.add = add;
  return Gemm::Of(shape);
}

// The memory for the packed weight of a product. Its bias and the weight in float32 are there only
// if they need zeros.
struct Packed {
  char* weight = nullptr;
  float *wide = nullptr, *bias = nullptr;
};

bool HasZeros(const Product& product, const MlpLayer& layer) {
  return product.inputs != layer.inputs || product.outputs != layer.outputs;
}

Packed TakePacked(const Product& product, const MlpLayer& layer, Parts* parts) {
  Packed packed;
  if (!product.packs) return packed;
  packed.weight = parts->Take(product.gemm->packed_bytes());
  if (HasZeros(product, layer)) {
    const size_t elements = product.inputs * product.outputs;
    packed.wide = reinterpret_cast<float*>(parts->Take(elements * sizeof(float)));
    packed.bias = reinterpret_cast<float*>(parts->Take(product.outputs * sizeof(float)));
  }
  return packed;
}

// rows x columns values, with zeros up to all_rows x stride.
void AddZeros(size_t rows, size_t columns, size_t all_rows, size_t stride, const float* from,
              float* to) {
  for (size_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * stride, from + r * columns, columns * sizeof(float));
    std::memset(to + r * stride + columns, 0, (stride - columns) * sizeof(float));
  }
  std::memset(to + rows * stride, 0, (all_rows - rows) * stride * sizeof(float));
}

// Packs the weights of the products that want it; `transposed` for the gradients of H. place[l] is
// the memory for layer l + 1.
Status PackWeights(const Stack& stack, std::vector<Product>* products,
                   const std::vector<Packed>& place, bool transposed, ThreadPool* pool) {
  FirstError error;
  pool->ParallelFor(products->size(), [&](size_t l) {
    Product& product = (*products)[l];
    const MlpLayer& layer = stack.layers[l];
    product.bias = layer.bias;
    product.weight = product.packs ? static_cast<const void*>(place[l].weight) : layer.weight;
    if (!product.packs) return;
    const float* weight = layer.weight;
    size_t outputs = layer.outputs;
    if (HasZeros(product, layer)) {
      AddZeros(layer.inputs, layer.outputs, product.inputs, product.outputs, weight, place[l].wide);
      weight = place[l].wide;
      outputs = product.outputs;
      if (layer.bias != nullptr) {
        AddZeros(1, layer.outputs, 1, product.outputs, layer.bias, place[l].bias);
        product.bias = place[l].bias;
      }
    }
    error.Keep(product.gemm->Pack(weight, transposed ? 1 : outputs, transposed ? outputs : 1,
                                  place[l].weight));
  });
  return error.status();
}

Status ForwardTile(const Stack& stack, size_t t, const MlpDropout& dropout,
                   const std::vector<Product>& products, const std::vector<char*>& saved,
                   float* out, char* last) {
  if (!stack.x_in_place(t)) {
    Fill(stack.type, stack.tiles, t, stack.width(0), stack.stride(0), stack.x,
         stack.x_tile(saved[0], t));
  }
  for (size_t l = 0; l < stack.size(); ++l) {
    const bool is_last = l + 1 == stack.size();
    const bool whole = stack.tiles.filled(t) == stack.tiles.rows;
    const size_t columns = stack.width(l + 1);
    float* place = out + stack.tiles.begin(t) * columns;
    void* to = !is_last ? saved[l + 1] + t * stack.tile_bytes(l + 1)
               : whole  ? static_cast<void*>(place)
                        : last;
    PBX_RETURN_IF_ERROR(products[l].gemm->Run(stack.Operand(saved, l, t), products[l].weight,
                                              products[l].bias, to));
    const Drops drops(dropout.rate, dropout.seed, l);
    if (drops.any() && stack.layers[l].activation == Activation::kRelu) {
      const GemmType type = is_last ? GemmType::kFloat32 : stack.type;
      const size_t first = stack.tiles.begin(t) * columns;
      ForRows(stack.tiles.filled(t), columns, is_last ? columns : stack.stride(l + 1),
              [&](size_t at, size_t row, size_t n) {
                Drop(drops, type, first + at, n, static_cast<char*>(to) + row * SizeOf(type));
              });
    }
    if (is_last && !whole) {
      std::memcpy(place, last, stack.tiles.filled(t) * columns * sizeof(float));
    }
  }
  return Status::Ok();
}

// The gradients of H, in the type of the products: gradients[l] = dH_l for 1 <= l <= L.
struct BackwardPlan {
  std::vector<Product> products;  // of the gradients of H_(l-1); without dx none for layer 1
  std::vector<char*> gradients;
  char* dx_last = nullptr;  // float32, of the last tile
  // If the layers end in a column: its weights, with zeros and rounded to the type of the products,
  // and the gradient of them of each tile.
  float *column = nullptr, *column_sums = nullptr;
};

Status BackwardTile(const Stack& stack, size_t t, float scale, const BackwardPlan& plan,
                    const std::vector<char*>& saved, const float* out, const float* dout,
                    float* dx) {
  const size_t count = stack.size(), filled = stack.tiles.filled(t);
  const auto gradient = [&](size_t l) { return plan.gradients[l] + t * stack.tile_bytes(l); };
  const size_t columns = stack.width(count);
  const size_t stride = stack.stride(count);
  Fill(stack.type, stack.tiles, t, columns, stride, dout, gradient(count));
  if (stack.layers.back().activation == Activation::kRelu) {
    const float* activations = out + stack.tiles.begin(t) * columns;
    const float* from = dout + stack.tiles.begin(t) * columns;
    float masked[kChunk];
    ForRows(filled, columns, stride, [&](size_t at, size_t row, size_t elements) {
      for (size_t i = 0; i < elements; i += kChunk) {
        const size_t n = std::min(kChunk, elements - i);
        std::memcpy(masked, from + at + i, n * sizeof(float));
        MaskFloat(n, activations + at + i, scale, masked);
        Convert(stack.type, n, masked, gradient(count) + (row + i) * SizeOf(stack.type));
      }
    });
  }
  const auto is_relu = [&](size_t l) {  // of H_l
    return stack.layers[l - 1].activation == Activation::kRelu;
  };
  size_t above = count;  // the layer whose gradients are there
  if (stack.ends_in_column()) {
    above = count - 1;
    const size_t width = stack.stride(above);
    const auto column = [&](auto* to, const auto* by) {
      Column(stack.tiles.rows, width, stride, by, plan.column, is_relu(above), scale,
             reinterpret_cast<decltype(by)>(stack.Operand(saved, above, t)), to,
             plan.column_sums + t * width);
    };
    if (stack.type == GemmType::kFloat32) {
      column(reinterpret_cast<float*>(gradient(above)),
             reinterpret_cast<const float*>(gradient(count)));
    } else {
      column(reinterpret_cast<uint16_t*>(gradient(above)),
             reinterpret_cast<const uint16_t*>(gradient(count)));
    }
  }
  for (size_t l = above - 1; l > 0; --l) {
    PBX_RETURN_IF_ERROR(
        plan.products[l].gemm->Run(gradient(l + 1), plan.products[l].weight, nullptr, gradient(l)));
    if (is_relu(l)) {
      Mask(stack.type, stack.tiles.rows * stack.stride(l), stack.Operand(saved, l, t), scale,
           gradient(l));
    }
  }
  if (dx == nullptr) return Status::Ok();
  float* place = dx + stack.tiles.begin(t) * stack.width(0);
  const bool whole = filled == stack.tiles.rows;
  PBX_RETURN_IF_ERROR(plan.products[0].gemm->Run(gradient(1), plan.products[0].weight, nullptr,
                                                 whole ? static_cast<void*>(place) : plan.dx_last));
  if (!whole) std::memcpy(place, plan.dx_last, filled * stack.width(0) * sizeof(float));
  return Status::Ok();
}

struct WeightTask {
  size_t layer, begin;
  const Gemm *first, *others;  // of the first tile of instances, and of the others; null: the bias
};

// Some rows of the gradient of W of a layer.
Status WeightTile(const Stack& stack, const WeightTask& task, const std::vector<char*>& saved,
                  const char* gradients, float* to) {
  float* const rows = to + task.begin * stack.layers[task.layer].outputs;
  for (size_t t = 0; t < stack.tiles.count; ++t) {
    const char* from = stack.Operand(saved, task.layer, t) + task.begin * SizeOf(stack.type);
    const Gemm& gemm = t == 0 ? *task.first : *task.others;
    PBX_RETURN_IF_ERROR(
        gemm.Run(from, gradients + t * stack.tile_bytes(task.layer + 1), nullptr, rows));
  }
  return Status::Ok();
}

void BiasGradient(const Stack& stack, size_t l, const char* gradients, float* to) {
  const size_t columns = stack.layers[l].outputs, rows = stack.tiles.padded();
  std::memset(to, 0, columns * sizeof(float));
  if (stack.type == GemmType::kBfloat16) {
    AddRows(rows, columns, stack.stride(l + 1), reinterpret_cast<const uint16_t*>(gradients), to);
  } else {
    AddRows(rows, columns, reinterpret_cast<const float*>(gradients), to);
  }
}

Status WeightTasks(const Stack& stack, std::vector<WeightTask>* tasks) {
  for (size_t l = 0; l < stack.size(); ++l) {
    // Tiles of about the same size, so that none has a single row of several, which gemm.h refuses.
    const size_t inputs = stack.layers[l].inputs;
    const size_t count = (inputs + kWeightRows - 1) / kWeightRows;
    const bool is_column = stack.ends_in_column() && l + 1 == stack.size();
    for (size_t i = 0; i < count && !is_column; ++i) {
      const size_t begin = inputs * i / count, rows = inputs * (i + 1) / count - begin;
      Result<const Gemm*> first = WeightProduct(stack, l, rows, false);
      if (!first.ok()) return first.status();
      const bool adds = stack.tiles.count > 1;
      Result<const Gemm*> others = WeightProduct(stack, l, rows, adds);
      if (!others.ok()) return others.status();
      tasks->push_back({l, begin, first.value(), others.value()});
    }
    if (stack.layers[l].bias != nullptr) tasks->push_back({l, 0, nullptr, nullptr});
  }
  return Status::Ok();
}

}  // namespace

size_t MlpSavedBytes(const std::vector<MlpLayer>& layers, GemmType type, size_t instances) {
  std::vector<char*> saved;
  return Stack(layers, type, instances, nullptr).Saved(nullptr, &saved);
}

Status MlpForward(const std::vector<MlpLayer>& layers, GemmType type, size_t instances,
                  const MlpDropout& dropout, const float* x, float* out, char* saved,
                  ThreadPool* pool) {
  if (instances == 0) return Status::Ok();
  const Stack stack(layers, type, instances, x);
  std::vector<char*> activations;
  stack.Saved(saved, &activations);
  std::vector<Product> products(stack.size());
  for (size_t l = 0; l < stack.size(); ++l) {
    PBX_RETURN_IF_ERROR(ForwardProduct(stack, l, &products[l]));
  }
  char *begin = nullptr, *last = nullptr;
  std::vector<Packed> packed(stack.size());
  const auto place = [&](char* at) {
    Parts parts(at);
    for (size_t l = 0; l < stack.size(); ++l) {
      packed[l] = TakePacked(products[l], layers[l], &parts);
    }
    last = parts.Take(stack.tiles.rows * stack.width(stack.size()) * sizeof(float));
    return parts.bytes();
  };
  PBX_RETURN_IF_ERROR(Workspace(place(nullptr), &begin));
  place(begin);
  PBX_RETURN_IF_ERROR(PackWeights(stack, &products, packed, false, pool));
  FirstError error;
  pool->ParallelFor(stack.tiles.count, [&](size_t t) {
    const FlushSubnormals flush;
    error.Keep(ForwardTile(stack, t, dropout, products, activations, out, last));
  });
  return error.status();
}

Status MlpBackward(const std::vector<MlpLayer>& layers, GemmType type, size_t instances, float rate,
                   const float* x, const float* out, const char* saved, const float* dout,
                   float* dx, const std::vector<MlpGradient>& gradients, ThreadPool* pool) {
  if (instances == 0) {
    for (size_t l = 0; l < layers.size(); ++l) {
      const size_t outputs = layers[l].outputs;
      std::memset(gradients[l].weight, 0, layers[l].inputs * outputs * sizeof(float));
      if (layers[l].bias != nullptr) std::memset(gradients[l].bias, 0, outputs * sizeof(float));
    }
    return Status::Ok();
  }
  const Stack stack(layers, type, instances, x);
  std::vector<char*> activations;
  stack.Saved(const_cast<char*>(saved), &activations);  // only read
  BackwardPlan plan;
  const size_t columns = stack.ends_in_column() ? stack.stride(stack.size() - 1) : 0;
  plan.products.resize(stack.size() - (columns != 0 ? 1 : 0));
  for (size_t l = dx == nullptr ? 1 : 0; l < plan.products.size(); ++l) {
    PBX_RETURN_IF_ERROR(InputProduct(stack, l, &plan.products[l]));
  }
  std::vector<Packed> packed(plan.products.size());
  const auto place = [&](char* at) {
    Parts parts(at);
    for (size_t l = 0; l < packed.size(); ++l) {
      packed[l] = TakePacked(plan.products[l], layers[l], &parts);
    }
    plan.column = reinterpret_cast<float*>(parts.Take(columns * sizeof(float)));
    plan.column_sums =
        reinterpret_cast<float*>(parts.Take(stack.tiles.count * columns * sizeof(float)));
    plan.gradients.assign(stack.size() + 1, nullptr);
    for (size_t l = 1; l <= stack.size(); ++l) {
      plan.gradients[l] = parts.Take(stack.tiles.count * stack.tile_bytes(l));
    }
    plan.dx_last = parts.Take(stack.tiles.rows * stack.width(0) * sizeof(float));
    return parts.bytes();
  };
  char* begin = nullptr;
  PBX_RETURN_IF_ERROR(Workspace(place(nullptr), &begin));
  place(begin);
  PBX_RETURN_IF_ERROR(PackWeights(stack, &plan.products, packed, true, pool));
  if (columns != 0) {
    const MlpLayer& last = layers.back();
    std::memset(plan.column, 0, columns * sizeof(float));
    for (size_t c = 0; c < last.inputs; ++c) {
      plan.column[c] =
          type == GemmType::kFloat32 ? last.weight[c] : FromBfloat16(ToBfloat16(last.weight[c]));
    }
  }
  std::vector<WeightTask> tasks;
  PBX_RETURN_IF_ERROR(WeightTasks(stack, &tasks));
  FirstError error;
  pool->ParallelFor(stack.tiles.count, [&](size_t t) {
    const FlushSubnormals flush;
    error.Keep(BackwardTile(stack, t, 1.0f / (1.0f - rate), plan, activations, out, dout, dx));
  });
  PBX_RETURN_IF_ERROR(error.status());
  if (columns != 0) {
    const size_t inputs = layers.back().inputs;
    float* const to = gradients.back().weight;
    std::memcpy(to, plan.column_sums, inputs * sizeof(float));
    for (size_t t = 1; t < stack.tiles.count; ++t) {
      AddRows(1, inputs, plan.column_sums + t * columns, to);
    }
  }
  pool->ParallelFor(tasks.size(), [&](size_t i) {
    const FlushSubnormals flush;
    const WeightTask& task = tasks[i];
    const char* from = plan.gradients[task.layer + 1];
    if (task.first == nullptr) {
      return BiasGradient(stack, task.layer, from, gradients[task.layer].bias);
    }
    error.Keep(WeightTile(stack, task, activations, from, gradients[task.layer].weight));
  });
  return error.status();
}

}  // namespace pbx
