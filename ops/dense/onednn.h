// The functions of oneDNN's C API that gemm.cc calls. They are taken from the library that Paddle's
// wheel ships and loads, so that building needs no headers of oneDNN and running loads nothing.
//
// Names, types and values are those of oneDNN 3.6 (dnnl.h, dnnl_types.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace pbx {

struct OneDnn {
  using Handle = void*;  // dnnl_engine_t, dnnl_stream_t, dnnl_memory_desc_t, ...
  struct Argument {      // dnnl_exec_arg_t
    int name;
    Handle memory;
  };
  enum DataType { kBfloat16 = 2, kFloat32 = 3 };
  enum ArgumentName { kSource = 1, kTo = 17, kWeights = 33, kBias = 41, kScratchpad = 80 };
  enum Query { kImplementation = 8, kWeightsLayout = 131, kScratchpadLayout = 136 };
  // dnnl_cpu_isa_t: each value has the bits of the instruction sets that it includes.
  enum InstructionSet { kAvx512 = 0x27, kAvx512Bfloat16 = 0xe7, kAmx = 0xfef };
  static constexpr int kCpu = 1, kDefaultStream = 1, kAny = 1, kUserScratchpad = 1;
  static constexpr int kRelu = 32;

  int (*engine_create)(Handle* engine, int kind, size_t index);
  int (*stream_create)(Handle* stream, Handle engine, unsigned flags);
  int (*stream_wait)(Handle stream);
  int (*memory_desc_create_with_strides)(Handle* layout, int dims, const int64_t* shape, int type,
                                         const int64_t* strides);
  int (*memory_desc_create_with_tag)(Handle* layout, int dims, const int64_t* shape, int type,
                                     int tag);
  int (*memory_desc_destroy)(Handle layout);
  size_t (*memory_desc_get_size)(Handle layout);
  int (*memory_create)(Handle* memory, Handle layout, Handle engine, void* data);
  int (*memory_destroy)(Handle memory);
  int (*primitive_attr_create)(Handle* attributes);
  int (*primitive_attr_destroy)(Handle attributes);
  int (*primitive_attr_set_scratchpad_mode)(Handle attributes, int mode);
  int (*primitive_attr_set_deterministic)(Handle attributes, int value);
  int (*primitive_attr_set_post_ops)(Handle attributes, Handle post_ops);
  int (*post_ops_create)(Handle* post_ops);
  int (*post_ops_destroy)(Handle post_ops);
  int (*post_ops_append_sum)(Handle post_ops, float scale, int32_t zero_point, int type);
  int (*post_ops_append_eltwise)(Handle post_ops, int function, float alpha, float beta);
  int (*matmul_primitive_desc_create)(Handle* description, Handle engine, Handle source,
                                      Handle weights, Handle bias, Handle to, Handle attributes);
  int (*reorder_primitive_desc_create)(Handle* description, Handle from, Handle from_engine,
                                       Handle to, Handle to_engine, Handle attributes);
  int (*primitive_desc_query)(Handle description, int what, int index, void* result);
  Handle (*primitive_desc_query_md)(Handle description, int what, int index);
  int (*primitive_desc_destroy)(Handle description);
  int (*primitive_create)(Handle* primitive, Handle description);
  int (*primitive_destroy)(Handle primitive);
  int (*primitive_execute)(Handle primitive, Handle stream, int count, const Argument* arguments);
  int (*get_effective_cpu_isa)();

  // OpenMP's, of the runtime that this oneDNN uses.
  int (*omp_get_max_threads)();
  void (*omp_set_num_threads)(int threads);

  Handle engine = nullptr;
  std::string version;  // "3.6.2"

  int instruction_set() const { return get_effective_cpu_isa(); }
  bool includes(InstructionSet set) const { return (instruction_set() & set) == set; }
};

// The library, found once. The error says what is missing: the library is not loaded in this
// process, or its version is not one that this file describes.
Result<const OneDnn*> FindOneDnn();

}  // namespace pbx
