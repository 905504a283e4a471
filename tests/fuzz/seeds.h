// What a fuzz target may give the driver beside LLVMFuzzerTestOneInput.
#pragma once

#include <string>
#include <vector>

// Adds inputs to begin with. Optional: a target without it begins with the files on the command
// line.
__attribute__((weak)) void AddFuzzSeeds(std::vector<std::string>* seeds);
