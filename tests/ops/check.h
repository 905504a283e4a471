// The core's test harness: TEST, CHECK, CHECK_EQ, CHECK_NEAR, CHECK_OK, CHECK_CODE. A failing check
// prints file, line and both values and fails its test; the others go on.
//
//   TEST(torn_tail_is_dropped) { CHECK_EQ(a, b); }
//
// Each tests/ops/**/test_*.cc is a program of its own: no main needed, RUN_ALL is in check_main.cc.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx::test {

struct Case {
  const char* name;
  void (*body)();
};
inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}
inline int& Failures() {
  static int failures = 0;
  return failures;
}
struct Register {
  Register(const char* name, void (*body)()) { Cases().push_back({name, body}); }
};
// Whether this is a build of a sanitizer. It finds in a few variants of a case what it can find in
// all of them, and takes many times as long. The plain build runs all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
inline void Fail(const char* file, int line, const std::string& what) {
  ++Failures();
  std::cerr << file << ":" << line << ": " << what << std::endl;
}
template <typename A, typename B>
void Equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " != " << b;
  Fail(file, line, out.str());
}
inline void Near(const char* file, int line, const char* text, double a, double b,
                 double tolerance) {
  if (std::fabs(a - b) <= tolerance) return;
  std::ostringstream out;
  out.precision(10);
  out << text << ": " << a << " and " << b << " differ by more than " << tolerance;
  Fail(file, line, out.str());
}
inline const char* Name(Code code) {
  switch (code) {
    case Code::kOk: return "Ok";
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kNotFound: return "NotFound";
    case Code::kCorruption: return "Corruption";
    case Code::kIOError: return "IOError";
    case Code::kOutOfSpace: return "OutOfSpace";
    case Code::kFailedPrecondition: return "FailedPrecondition";
    case Code::kNotFinite: return "NotFinite";
    case Code::kPeerGone: return "PeerGone";
  }
  return "?";
}
inline void Coded(const char* file, int line, const char* text, const Status& status, Code code) {
  if (status.code() == code) return;
  Fail(file, line,
       std::string(text) + " gave " + Name(status.code()) + " (" + status.message() +
           "), expected " + Name(code));
}

}  // namespace pbx::test

#define TEST(name)                                                        \
  static void test_##name();                                              \
  static const ::pbx::test::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) ::pbx::test::Fail(__FILE__, __LINE__, #condition " is false"); \
  } while (0)
#define CHECK_EQ(a, b) ::pbx::test::Equal(__FILE__, __LINE__, #a " == " #b, a, b)
#define CHECK_NEAR(a, b, tolerance) \
  ::pbx::test::Near(__FILE__, __LINE__, #a " ~ " #b, a, b, tolerance)
#define CHECK_CODE(status, code) ::pbx::test::Coded(__FILE__, __LINE__, #status, status, code)
#define CHECK_OK(status) CHECK_CODE(status, ::pbx::Code::kOk)
