#include "paddle/operators/operator_error.h"

#include <mutex>
#include <utility>

namespace pbx {
namespace {
std::mutex mutex;
std::string last;
}  // namespace

void SetOperatorError(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex);
  last = message;
}

std::string TakeOperatorError() {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(last, std::string());
}

}  // namespace pbx
