#include <cstring>

#include "check.h"

// usage: test_x [part of a test's name]
int main(int argc, char** argv) {
  int run = 0;
  for (const auto& test : pbx::test::Cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = pbx::test::Failures();
    test.body();
    ++run;
    if (pbx::test::Failures() != before) std::cerr << "FAILED " << test.name << std::endl;
  }
  std::cout << run << " tests, " << pbx::test::Failures() << " failed checks" << std::endl;
  return run == 0 || pbx::test::Failures() != 0;
}
