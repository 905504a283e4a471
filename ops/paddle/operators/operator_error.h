// The message of the last operator that failed in this process, for paddlebox.ops, because Paddle
// does not always pass it to Python.
#pragma once

#include <string>

namespace pbx {

void SetOperatorError(const std::string& message);
std::string TakeOperatorError();  // returns it and clears it; empty: none

}  // namespace pbx
