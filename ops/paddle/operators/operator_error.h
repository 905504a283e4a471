// The message of the last operator that failed in this process, for paddlebox.ops: Paddle does not
// always carry it to Python.
#pragma once

#include <string>

namespace pbx {

void SetOperatorError(const std::string& message);
std::string TakeOperatorError();  // and forgets it; empty without one

}  // namespace pbx
