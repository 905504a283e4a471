// The vector paths of the processor that the tests run on.
#pragma once

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "check.h"
#include "table/kernels.h"

namespace pbx::test {

// The paths this processor has; plain first.
inline std::vector<const Kernels*> Paths() {
  std::vector<const Kernels*> paths;
  for (const char* name : {"plain", "avx2", "avx512"}) {
    const Status selected = SelectKernels(name);
    if (selected.ok()) {
      paths.push_back(&ActiveKernels());
      CHECK_EQ(std::string(ActiveKernels().name), name);
    } else {
      std::cout << "skipped: " << selected.message() << std::endl;
    }
  }
  CHECK_OK(SelectKernels("auto"));
  CHECK(&ActiveKernels() == paths.back());
  return paths;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace pbx::test
