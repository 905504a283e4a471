// Status: how the core reports errors. The core throws no exceptions: every function that can fail
// returns a Status or a Result<T>, and neither may be ignored.
//
// A message names the object, what was expected, what was found and, if there is one, the next
// step: "segment /r/000007.seg: block 12 has CRC32C 0x1a2b3c4d, expected 0x99aabbcc (rows
// 552..597)".
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

namespace pbx {

enum class Code {
  kOk = 0,
  kInvalidArgument,     // the caller's mistake: Python ValueError
  kNotFound,            // a file or a named object does not exist
  kCorruption,          // bytes differ from those that were written
  kIOError,             // the operating system refused
  kOutOfSpace,          // disk or budget
  kFailedPrecondition,  // called out of order: Python PassError
  kNotFinite,           // NaN or infinity in training: Python TrainingError
  kPeerGone,            // another rank of the job has ended: Python RankError
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// printf-style constructor: Error(Code::kIOError, "%s: %s", path, strerror(errno)).
__attribute__((format(printf, 2, 3))) inline Status Error(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return Status(code, std::move(text));
}

// A value, or the Status that says why there is none. REQUIRES: ok() before value().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return value_; }
  const T& value() const { return value_; }

 private:
  Status status_;
  T value_{};
};

#define PBX_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::pbx::Status pbx_status_ = (expression);  \
    if (!pbx_status_.ok()) return pbx_status_; \
  } while (0)

}  // namespace pbx
