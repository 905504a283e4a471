#include "dense/onednn.h"

#include <dlfcn.h>

namespace pbx {
namespace {

constexpr char kLibrary[] = "libdnnl.so.3", kOpenMp[] = "libiomp5.so";
constexpr int kMajor = 3, kMinor = 6;  // the header's

// dnnl_version_t
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

template <typename Function>
Status Take(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return Status::Ok();
  return Error(Code::kNotFound, "%s has no function %s", kLibrary, name);
}

Status Load(OneDnn* found) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  void* openmp = dlopen(kOpenMp, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr || openmp == nullptr) {
    return Error(Code::kNotFound,
                 "expected %s and %s of Paddle's wheel in this process, found no %s", kLibrary,
                 kOpenMp, library == nullptr ? kLibrary : kOpenMp);
  }
  const Version* (*version)() = nullptr;
  PBX_RETURN_IF_ERROR(Take(library, "dnnl_version", &version));
  const Version* v = version();
  found->version =
      std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  if (v->major != kMajor || v->minor < kMinor) {
    return Error(Code::kNotFound, "%s is version %s, expected %d.%d or a later %d.x", kLibrary,
                 found->version.c_str(), kMajor, kMinor, kMajor);
  }
#define PBX_TAKE(name) PBX_RETURN_IF_ERROR(Take(library, "dnnl_" #name, &found->name))
  PBX_TAKE(engine_create);
  PBX_TAKE(stream_create);
  PBX_TAKE(stream_wait);
  PBX_TAKE(memory_desc_create_with_strides);
  PBX_TAKE(memory_desc_create_with_tag);
  PBX_TAKE(memory_desc_destroy);
  PBX_TAKE(memory_desc_get_size);
  PBX_TAKE(memory_create);
  PBX_TAKE(memory_destroy);
  PBX_TAKE(primitive_attr_create);
  PBX_TAKE(primitive_attr_destroy);
  PBX_TAKE(primitive_attr_set_scratchpad_mode);
  PBX_TAKE(primitive_attr_set_deterministic);
  PBX_TAKE(primitive_attr_set_post_ops);
  PBX_TAKE(post_ops_create);
  PBX_TAKE(post_ops_destroy);
  PBX_TAKE(post_ops_append_sum);
  PBX_TAKE(post_ops_append_eltwise);
  PBX_TAKE(matmul_primitive_desc_create);
  PBX_TAKE(reorder_primitive_desc_create);
  PBX_TAKE(primitive_desc_query);
  PBX_TAKE(primitive_desc_query_md);
  PBX_TAKE(primitive_desc_destroy);
  PBX_TAKE(primitive_create);
  PBX_TAKE(primitive_destroy);
  PBX_TAKE(primitive_execute);
  PBX_TAKE(get_effective_cpu_isa);
#undef PBX_TAKE
  PBX_RETURN_IF_ERROR(Take(openmp, "omp_get_max_threads", &found->omp_get_max_threads));
  PBX_RETURN_IF_ERROR(Take(openmp, "omp_set_num_threads", &found->omp_set_num_threads));
  if (found->engine_create(&found->engine, OneDnn::kCpu, 0) != 0) {
    return Error(Code::kNotFound, "%s made no engine for the CPU", kLibrary);
  }
  return Status::Ok();
}

}  // namespace

Result<const OneDnn*> FindOneDnn() {
  static OneDnn found{};
  static const Status status = Load(&found);
  if (!status.ok()) return status;
  return &found;
}

}  // namespace pbx
