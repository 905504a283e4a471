// What a fuzz target promises of any input: where it does not hold, the input is a finding.
#pragma once

#include <cstdio>
#include <cstdlib>

#define REQUIRE(condition)                                             \
  do {                                                                 \
    if (!(condition)) {                                                \
      std::fprintf(stderr, "%d: %s is false\n", __LINE__, #condition); \
      std::abort();                                                    \
    }                                                                  \
  } while (0)
