// The device, its configuration, memory for callers, and errors.
#include "cuda/hbm.h"

#include <memory>
#include <string>

#include "cuda/call.h"

namespace pbx::hbm {
namespace {

thread_local std::string last_error;

Status RuleOf(const char* name, const pbx_hbm_rule& from, RuleConfig* to) {
  if (from.kind < 0 || from.kind > static_cast<int>(RuleKind::kFtrl)) {
    return Error(Code::kInvalidArgument, "rule of %s: kind is %d, expected 0 to %d", name,
                 from.kind, static_cast<int>(RuleKind::kFtrl));
  }
  to->kind = static_cast<RuleKind>(from.kind);
  to->learning_rate = from.learning_rate;
  to->initial_range = from.initial_range;
  to->initial_g2sum = from.initial_g2sum;
  to->beta1 = from.beta1;
  to->beta2 = from.beta2;
  to->epsilon = from.epsilon;
  to->beta = from.beta;
  to->l1 = from.l1;
  to->l2 = from.l2;
  to->min_bound = from.min_bound;
  to->max_bound = from.max_bound;
  return Status::Ok();
}

Status Open(const pbx_hbm_config& from, int device, std::unique_ptr<pbx_hbm>* out) {
  if (from.embedx_dim < 1 || from.embedx_dim > 253) {
    return Error(Code::kInvalidArgument, "embedx_dim is %d, expected 1 to 253", from.embedx_dim);
  }
  if (from.expand_dim < 0 || from.expand_dim > 253) {
    return Error(Code::kInvalidArgument, "expand_dim is %d, expected 0 to 253", from.expand_dim);
  }
  if (from.threads < 1) {
    return Error(Code::kInvalidArgument, "threads is %d, expected at least 1", from.threads);
  }
  PBX_RETURN_IF_ERROR(CheckDevice(device));
  auto hbm = std::make_unique<pbx_hbm>();
  hbm->device = device;
  hbm->threads = std::make_unique<ThreadPool>(from.threads);
  AccessorConfig& to = hbm->config;
  to.seed = from.seed;
  to.nonclk_coeff = from.nonclk_coeff;
  to.click_coeff = from.click_coeff;
  to.embedx_threshold = from.embedx_threshold;
  to.show_scale = from.show_scale != 0;
  PBX_RETURN_IF_ERROR(RuleOf("embed", from.embed, &to.embed));
  PBX_RETURN_IF_ERROR(RuleOf("embedx", from.embedx, &to.embedx));
  to.layout.embedx_dim = from.embedx_dim;
  to.layout.embed_state = rule::StateSize(to.embed.kind, 1);
  to.layout.embedx_state = rule::StateSize(to.embedx.kind, from.embedx_dim);
  if (from.expand_dim != 0) {
    PBX_RETURN_IF_ERROR(RuleOf("expand", from.expand, &to.expand));
    to.layout.expand_dim = from.expand_dim;
    to.layout.expand_state = rule::StateSize(to.expand.kind, from.expand_dim);
  }
  const OnDevice here(device);
  PBX_RETURN_IF_ERROR(here.status());
  PBX_RETURN_IF_ERROR(hbm->copies.Open());
  if (from.slot_rates != nullptr) {
    constexpr size_t kBytes = 65536 * sizeof(float);
    Result<Memory> rates = Memory::New("learning rates of slots", kBytes);
    if (!rates.ok()) return rates.status();
    hbm->slot_rates = std::move(rates.value());
    to.slot_rates = hbm->slot_rates.as<float>();
    PBX_RETURN_IF_ERROR(
        ToDevice(hbm->slot_rates.as<void>(), from.slot_rates, kBytes, hbm->copies.get()));
    PBX_RETURN_IF_ERROR(Synchronize(hbm->copies.get()));
  }
  *out = std::move(hbm);
  return Status::Ok();
}

}  // namespace

int Told(const Status& status) {
  if (status.ok()) return PBX_HBM_OK;
  last_error = status.message();
  switch (status.code()) {
    case Code::kInvalidArgument: return PBX_HBM_INVALID;
    case Code::kOutOfSpace: return PBX_HBM_MEMORY;
    default: return PBX_HBM_DEVICE;
  }
}

}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

const char* pbx_hbm_error(void) { return last_error.c_str(); }

const char* pbx_hbm_backend(void) {
#ifdef __CUDACC__
  return "cuda";
#else
  return "host";
#endif
}

int pbx_hbm_open(const pbx_hbm_config* config, int device, pbx_hbm** out) {
  std::unique_ptr<pbx_hbm> hbm;
  const Status status = Open(*config, device, &hbm);
  if (status.ok()) *out = hbm.release();
  return Told(status);
}

void pbx_hbm_close(pbx_hbm* hbm) {
  if (hbm == nullptr) return;
  const OnDevice here(hbm->device);
  delete hbm;
}

int pbx_hbm_take_times(pbx_hbm* hbm, pbx_hbm_times* out) {
  return Call(hbm, [&]() -> Status {
    pbx_hbm_times times{};
    PBX_RETURN_IF_ERROR(hbm->pulls.Take(&times.pull_ns));
    PBX_RETURN_IF_ERROR(hbm->pushes.Take(&times.push_ns));
    PBX_RETURN_IF_ERROR(hbm->plans.Take(&times.plan_ns));
    *out = times;
    return Status::Ok();
  });
}

int32_t pbx_hbm_row_words(const pbx_hbm* hbm) { return static_cast<int32_t>(hbm->words()); }

int pbx_hbm_malloc(uint64_t bytes, void** out) {
  Result<Memory> memory = Memory::New("an array", bytes);
  if (memory.ok()) *out = memory.value().Release();
  return Told(memory.status());
}
void pbx_hbm_free(void* device) { Memory::Free(device, Memory::Where::kDevice); }

int pbx_hbm_malloc_pinned(uint64_t bytes, void** out) {
  Result<Memory> memory = Memory::New("an array", bytes, Memory::Where::kPinned);
  if (memory.ok()) *out = memory.value().Release();
  return Told(memory.status());
}
void pbx_hbm_free_pinned(void* host) { Memory::Free(host, Memory::Where::kPinned); }

int pbx_hbm_copy(void* to, const void* from, uint64_t bytes, void* stream) {
  return Told(CopyOnDevice(to, from, bytes, static_cast<Stream>(stream)));
}

int pbx_hbm_copy_rows(void* to, uint64_t to_stride, const void* from, uint64_t from_stride,
                      uint64_t bytes, uint64_t rows, void* stream) {
  return Told(
      CopyRowsOnDevice(to, to_stride, from, from_stride, bytes, rows, static_cast<Stream>(stream)));
}

int pbx_hbm_to_device(void* device, const void* host, uint64_t bytes) {
  Status status = ToDevice(device, host, bytes, nullptr);
  if (status.ok()) status = Synchronize(nullptr);
  return Told(status);
}
int pbx_hbm_to_host(void* host, const void* device, uint64_t bytes) {
  Status status = ToHost(host, device, bytes, nullptr);
  if (status.ok()) status = Synchronize(nullptr);
  return Told(status);
}
int pbx_hbm_synchronize(void* stream) { return Told(Synchronize(static_cast<Stream>(stream))); }
int pbx_hbm_wait(const pbx_hbm* hbm) {
  return Call(hbm, [] { return SynchronizeAll(); });
}
