#include "device/hbm_library.h"

#include <dlfcn.h>

namespace pbx {
namespace {

HbmLibrary& Library() {
  static HbmLibrary library;
  return library;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

const HbmLibrary& Hbm() { return Library(); }

Status PlugIn(const std::string& path, const std::string& sources) {
  if (Hbm().plugged_in) return Status::Ok();
  void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);  // stays open
  if (opened == nullptr) {
    return Error(Code::kNotFound, "%s: Paddle has not loaded it", path.c_str());
  }
  const char* (*missing)() = nullptr;
  const char* (*digest)() = nullptr;
  HbmLibrary found;
  bool complete = Find(opened, "pbx_gpu_sources", &digest) && digest() == sources &&
                  Find(opened, "pbx_gpu_missing", &missing) &&
                  Find(opened, "pbx_gpu_mlp_saved", &found.mlp_saved) &&
                  Find(opened, "pbx_gpu_mlp_room", &found.mlp_room) &&
                  Find(opened, "pbx_gpu_mlp_forward", &found.mlp_forward) &&
                  Find(opened, "pbx_gpu_mlp_backward", &found.mlp_backward);
#define PBX_FIND(name) complete = complete && Find(opened, "pbx_hbm_" #name, &found.name);
  PBX_HBM_FUNCTIONS(PBX_FIND)
#undef PBX_FIND
  if (!complete) {
    return Error(Code::kFailedPrecondition,
                 "%s: expected a library of the sources %s, found %s: build it again (docs/gpu.md)",
                 path.c_str(), sources.c_str(), digest == nullptr ? "none" : digest());
  }
  if (const char* const why = missing(); why != nullptr) {
    return Error(Code::kFailedPrecondition, "%s found no GPU: %s", path.c_str(), why);
  }
  found.plugged_in = true;
  Library() = found;
  return Status::Ok();
}

}  // namespace pbx
