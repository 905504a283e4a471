// The builds of the token kernels. For tokens.cc only; other code calls ActiveTokenKernels().
#pragma once

#include "feed/text/tokens.h"

namespace pbx::feed {

extern const TokenKernels kAvx2Tokens;
extern const TokenKernels kAvx512Tokens;

}  // namespace pbx::feed
