#include "dense/gemm.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/vector_clones.h"
#include "dense/onednn.h"

namespace pbx {
namespace {

using Handle = OneDnn::Handle;

// An object of oneDNN that is destroyed with its owner.
class Owned {
 public:
  explicit Owned(int (*destroy)(Handle)) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(Owned&& other) noexcept : destroy_(other.destroy_), handle_(other.handle_) {
    other.handle_ = nullptr;
  }
  Owned& operator=(Owned&&) = delete;

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  int (*destroy_)(Handle);
  Handle handle_ = nullptr;
};

// One OpenMP thread for the calls of the calling thread. oneDNN would otherwise open a team of its
// own in each thread of a pool.
class OneOpenMpThread {
 public:
  explicit OneOpenMpThread(const OneDnn& dnn) : dnn_(dnn), before_(dnn.omp_get_max_threads()) {
    if (before_ != 1) dnn_.omp_set_num_threads(1);
  }
  ~OneOpenMpThread() {
    if (before_ != 1) dnn_.omp_set_num_threads(before_);
  }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  const OneDnn& dnn_;
  const int before_;
};

// What a thread needs to run primitives. Not freed at the end of a thread: oneDNN may be gone then.
struct ThreadState {
  Handle stream = nullptr;
  std::vector<char> scratchpad;
};

ThreadState* State() {
  static thread_local ThreadState* const state = new ThreadState;
  return state;
}

const char* NameOf(GemmType type) { return type == GemmType::kFloat32 ? "float32" : "bfloat16"; }

int TypeOf(GemmType type) {
  return type == GemmType::kFloat32 ? OneDnn::kFloat32 : OneDnn::kBfloat16;
}

// A layout of rows x columns elements.
struct Matrix {
  size_t rows, columns, row, column;  // the last two: strides
  GemmType type;
};

}  // namespace

std::string GemmShape::Describe() const {
  char text[160];
  std::snprintf(text, sizeof(text), "(%zu, %zu) * (%zu, %zu) of %s to %s", m, k, k, n, NameOf(type),
                NameOf(to));
  return text;
}

struct Gemm::Impl {
  // The conversion to the layout of b.
  struct Conversion {
    explicit Conversion(const OneDnn& library)
        : from(library.memory_desc_destroy),
          description(library.primitive_desc_destroy),
          primitive(library.primitive_destroy) {}

    Owned from, description, primitive;
    Handle scratchpad = nullptr;  // a layout that belongs to the description
  };

  Impl(const OneDnn& library, const GemmShape& of) : dnn(library), shape(of) {}

  const OneDnn& dnn;
  const GemmShape shape;
  std::string implementation;
  Owned description{dnn.primitive_desc_destroy}, primitive{dnn.primitive_destroy};
  Owned a{dnn.memory_desc_destroy}, c{dnn.memory_desc_destroy}, bias{dnn.memory_desc_destroy};
  Handle b = nullptr, scratchpad = nullptr;  // layouts that belong to the description
  mutable std::mutex conversions_mutex;
  mutable std::map<std::pair<size_t, size_t>, std::unique_ptr<Conversion>> conversions;

  Status Check(const char* what, int code) const {
    if (code == 0) return Status::Ok();
    return Error(Code::kFailedPrecondition, "oneDNN %s: %s failed with status %d for %s",
                 dnn.version.c_str(), what, code, shape.Describe().c_str());
  }

  Status Layout(const Matrix& of, Handle* layout) const {
    const int64_t sizes[] = {static_cast<int64_t>(of.rows), static_cast<int64_t>(of.columns)};
    const int64_t strides[] = {static_cast<int64_t>(of.row), static_cast<int64_t>(of.column)};
    return Check("a layout",
                 dnn.memory_desc_create_with_strides(layout, 2, sizes, TypeOf(of.type), strides));
  }

  Status Attributes(Owned* attributes) const {
    PBX_RETURN_IF_ERROR(Check("attributes", dnn.primitive_attr_create(attributes->out())));
    PBX_RETURN_IF_ERROR(
        Check("a scratchpad of the caller",
              dnn.primitive_attr_set_scratchpad_mode(attributes->get(), OneDnn::kUserScratchpad)));
    PBX_RETURN_IF_ERROR(
        Check("deterministic", dnn.primitive_attr_set_deterministic(attributes->get(), 1)));
    Owned after(dnn.post_ops_destroy);
    PBX_RETURN_IF_ERROR(Check("post ops", dnn.post_ops_create(after.out())));
    if (shape.add) {
      PBX_RETURN_IF_ERROR(
          Check("a sum", dnn.post_ops_append_sum(after.get(), 1.0f, 0, TypeOf(shape.to))));
    }
    if (shape.relu) {
      PBX_RETURN_IF_ERROR(
          Check("ReLU", dnn.post_ops_append_eltwise(after.get(), OneDnn::kRelu, 0.0f, 0.0f)));
    }
    return Check("post ops", dnn.primitive_attr_set_post_ops(attributes->get(), after.get()));
  }

  Status Make() {
    const OneOpenMpThread one(dnn);
    Owned attributes(dnn.primitive_attr_destroy), any(dnn.memory_desc_destroy);
    PBX_RETURN_IF_ERROR(Attributes(&attributes));
    PBX_RETURN_IF_ERROR(
        Layout({shape.m, shape.k, shape.a_row, shape.a_column, shape.type}, a.out()));
    PBX_RETURN_IF_ERROR(Layout({shape.m, shape.n, shape.c_row, 1, shape.to}, c.out()));
    if (shape.bias) {
      PBX_RETURN_IF_ERROR(Layout({1, shape.n, shape.n, 1, GemmType::kFloat32}, bias.out()));
    }
    if (shape.packed) {
      const int64_t sizes[] = {static_cast<int64_t>(shape.k), static_cast<int64_t>(shape.n)};
      PBX_RETURN_IF_ERROR(Check(
          "a layout",
          dnn.memory_desc_create_with_tag(any.out(), 2, sizes, TypeOf(shape.type), OneDnn::kAny)));
    } else {
      PBX_RETURN_IF_ERROR(
          Layout({shape.k, shape.n, shape.b_row, shape.b_column, shape.type}, any.out()));
    }
    PBX_RETURN_IF_ERROR(Check("a product", dnn.matmul_primitive_desc_create(
                                               description.out(), dnn.engine, a.get(), any.get(),
                                               bias.get(), c.get(), attributes.get())));
    PBX_RETURN_IF_ERROR(
        Check("a product", dnn.primitive_create(primitive.out(), description.get())));
    b = dnn.primitive_desc_query_md(description.get(), OneDnn::kWeightsLayout, 0);
    scratchpad = dnn.primitive_desc_query_md(description.get(), OneDnn::kScratchpadLayout, 0);
    const char* name = nullptr;
    dnn.primitive_desc_query(description.get(), OneDnn::kImplementation, 0,
                             static_cast<void*>(&name));
    implementation = name != nullptr ? name : "";
    return Status::Ok();
  }

  // From float32 with these strides. Made once.
  Result<const Conversion*> ConversionFrom(size_t row, size_t column) const {
    const std::lock_guard<std::mutex> lock(conversions_mutex);
    std::unique_ptr<Conversion>& made = conversions[{row, column}];
    if (made != nullptr) return made.get();
    const OneOpenMpThread one(dnn);
    auto conversion = std::make_unique<Conversion>(dnn);
    Owned attributes(dnn.primitive_attr_destroy);
    PBX_RETURN_IF_ERROR(
        Layout({shape.k, shape.n, row, column, GemmType::kFloat32}, conversion->from.out()));
    PBX_RETURN_IF_ERROR(Check("attributes", dnn.primitive_attr_create(attributes.out())));
    PBX_RETURN_IF_ERROR(
        Check("a scratchpad of the caller",
              dnn.primitive_attr_set_scratchpad_mode(attributes.get(), OneDnn::kUserScratchpad)));
    PBX_RETURN_IF_ERROR(Check(
        "a conversion",
        dnn.reorder_primitive_desc_create(conversion->description.out(), conversion->from.get(),
                                          dnn.engine, b, dnn.engine, attributes.get())));
    PBX_RETURN_IF_ERROR(Check("a conversion", dnn.primitive_create(conversion->primitive.out(),
                                                                   conversion->description.get())));
    conversion->scratchpad =
        dnn.primitive_desc_query_md(conversion->description.get(), OneDnn::kScratchpadLayout, 0);
    made = std::move(conversion);
    return made.get();
  }

  struct Operand {
    int name;
    Handle layout;
    const void* data;
  };

  // Runs a primitive on its operands, the last of which is the scratchpad.
  template <size_t N>
  Status Execute(Handle run, Handle scratchpad_layout, std::array<Operand, N> operands) const {
    const OneOpenMpThread one(dnn);
    ThreadState* state = State();
    if (state->stream == nullptr) {
      PBX_RETURN_IF_ERROR(
          Check("a stream", dnn.stream_create(&state->stream, dnn.engine, OneDnn::kDefaultStream)));
    }
    const size_t bytes = dnn.memory_desc_get_size(scratchpad_layout);
    if (state->scratchpad.size() < bytes + kAlignment) state->scratchpad.resize(bytes + kAlignment);
    size_t space = state->scratchpad.size();
    void* aligned = state->scratchpad.data();
    std::align(kAlignment, bytes, aligned, space);
    operands[N - 1] = {OneDnn::kScratchpad, scratchpad_layout, aligned};
    std::vector<Owned> memories;
    OneDnn::Argument arguments[N];
    int count = 0;
    for (const Operand& operand : operands) {
      if (operand.data == nullptr) continue;
      memories.emplace_back(dnn.memory_destroy);
      PBX_RETURN_IF_ERROR(
          Check("memory", dnn.memory_create(memories.back().out(), operand.layout, dnn.engine,
                                            const_cast<void*>(operand.data))));
      arguments[count++] = {operand.name, memories.back().get()};
    }
    PBX_RETURN_IF_ERROR(
        Check("a run", dnn.primitive_execute(run, state->stream, count, arguments)));
    return Check("a run", dnn.stream_wait(state->stream));
  }

  static constexpr size_t kAlignment = 64;
};

Gemm::Gemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gemm::~Gemm() = default;

Result<const Gemm*> Gemm::Of(const GemmShape& shape) {
  const bool a_is_row = shape.m == 1 && shape.a_column != 1;
  if (a_is_row || (shape.k == 1 && shape.b_column != 1)) {
    return Error(Code::kInvalidArgument,
                 "a product %s: expected a contiguous row, found stride %zu",
                 shape.Describe().c_str(), a_is_row ? shape.a_column : shape.b_column);
  }
  static std::mutex* const mutex = new std::mutex;
  static auto* const made = new std::map<GemmShape, std::unique_ptr<const Gemm>>;  // never freed
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto found = made->find(shape);
  if (found != made->end()) return found->second.get();
  Result<const OneDnn*> dnn = FindOneDnn();
  if (!dnn.ok()) return dnn.status();
  auto impl = std::make_unique<Impl>(*dnn.value(), shape);
  PBX_RETURN_IF_ERROR(impl->Make());
  return made->emplace(shape, new Gemm(std::move(impl))).first->second.get();
}

Status Gemm::Run(const void* a, const void* b, const float* bias, void* c) const {
  return impl_->Execute(impl_->primitive.get(), impl_->scratchpad,
                        std::array<Impl::Operand, 5>{{{OneDnn::kSource, impl_->a.get(), a},
                                                      {OneDnn::kWeights, impl_->b, b},
                                                      {OneDnn::kBias, impl_->bias.get(), bias},
                                                      {OneDnn::kTo, impl_->c.get(), c},
                                                      {}}});
}

size_t Gemm::packed_bytes() const { return impl_->dnn.memory_desc_get_size(impl_->b); }

Status Gemm::Pack(const float* from, size_t row, size_t column, void* to) const {
  Result<const Impl::Conversion*> found = impl_->ConversionFrom(row, column);
  if (!found.ok()) return found.status();
  const Impl::Conversion& conversion = *found.value();
  return impl_->Execute(
      conversion.primitive.get(), conversion.scratchpad,
      std::array<Impl::Operand, 3>{
          {{OneDnn::kSource, conversion.from.get(), from}, {OneDnn::kTo, impl_->b, to}, {}}});
}

const std::string& Gemm::implementation() const { return impl_->implementation; }

GemmSupport SupportOf(GemmType type) {
  const Result<const OneDnn*> dnn = FindOneDnn();
  if (!dnn.ok()) return GemmSupport::kNone;
  const OneDnn& found = *dnn.value();
  if (type == GemmType::kFloat32) {
    return found.includes(OneDnn::kAvx512) ? GemmSupport::kFast : GemmSupport::kSlow;
  }
  if (!found.includes(OneDnn::kAvx512Bfloat16)) return GemmSupport::kNone;
  if (found.includes(OneDnn::kAmx)) return GemmSupport::kFast;
  // The dot product takes two cycles on Intel's cores and one on AMD's (Zen 4 and later), and
  // both start two products of float32 a cycle.
  return __builtin_cpu_is("amd") ? GemmSupport::kFast : GemmSupport::kSlow;
}

size_t DepthOfBfloat16() {
  const Result<const OneDnn*> dnn = FindOneDnn();
  return dnn.ok() && dnn.value()->includes(OneDnn::kAmx) ? 32 : 2;
}

Result<std::string> GemmLibrary() {
  const Result<const OneDnn*> dnn = FindOneDnn();
  if (!dnn.ok()) return dnn.status();
  char set[16];
  std::snprintf(set, sizeof(set), "0x%x", static_cast<unsigned>(dnn.value()->instruction_set()));
  return "oneDNN " + dnn.value()->version + ", instruction set " + set;
}

PBX_VECTOR_CLONES
void ToBfloat16(size_t n, const float* from, uint16_t* to) {
  for (size_t i = 0; i < n; ++i) to[i] = ToBfloat16(from[i]);
}

}  // namespace pbx
