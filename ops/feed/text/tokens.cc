#include "feed/text/tokens.h"

#include <atomic>
#include <cstring>

#include "feed/text/token_paths.h"

namespace pbx::feed {
namespace {

bool Supported(const TokenKernels& kernels) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  if (&kernels == &kAvx2Tokens) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

const TokenKernels* Widest() {
  for (const TokenKernels* kernels : {&kAvx512Tokens, &kAvx2Tokens}) {
    if (Supported(*kernels)) return kernels;
  }
  return nullptr;
}

std::atomic<const TokenKernels*>& Active() {
  static std::atomic<const TokenKernels*> active{Widest()};
  return active;
}

}  // namespace

const TokenKernels* ActiveTokenKernels() { return Active().load(std::memory_order_acquire); }

Status SelectTokenKernels(const char* name) {
  const bool plain = std::strcmp(name, "plain") == 0;
  if (plain || std::strcmp(name, "auto") == 0) {
    Active().store(plain ? nullptr : Widest(), std::memory_order_release);
    return Status::Ok();
  }
  for (const TokenKernels* kernels : {&kAvx2Tokens, &kAvx512Tokens}) {
    if (std::strcmp(name, kernels->name) != 0) continue;
    if (!Supported(*kernels)) {
      return Error(Code::kInvalidArgument, "parser path '%s': this processor does not support it",
                   name);
    }
    Active().store(kernels, std::memory_order_release);
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument,
               "parser path '%s': expected one of auto, plain, avx2, avx512", name);
}

}  // namespace pbx::feed
