#include "compat/scaled_int8fc.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dense/matmul.h"

namespace pbx {
namespace {

constexpr size_t kMostInputs = 131071;  // 128 * 128 * 131071 < 2^31
// Sums of so many products are integers of at most 2^24, which float32 holds exactly. So they are
// computed by MatMulAdd, which has vector paths for float32.
constexpr size_t kExactInputs = 1024;

Status ExpectPositive(float factor, const char* name) {
  if (std::isfinite(factor) && factor > 0.0f) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s is %g, expected a positive number", name,
               static_cast<double>(factor));
}

float StepOf(const Int8Scale& scale, float range) { return 2.0f * scale.clip / range; }

}  // namespace

Status CheckScaledInt8Fc(const ScaledInt8Fc& fc) {
  PBX_RETURN_IF_ERROR(ExpectPositive(fc.x.expand, "input_expand_factor"));
  PBX_RETURN_IF_ERROR(ExpectPositive(fc.x.clip, "input_clip_factor"));
  PBX_RETURN_IF_ERROR(ExpectPositive(fc.w.expand, "weight_expand_factor"));
  PBX_RETURN_IF_ERROR(ExpectPositive(fc.w.clip, "weight_clip_factor"));
  PBX_RETURN_IF_ERROR(ExpectPositive(fc.range, "int8_range"));
  if (fc.inputs <= kMostInputs) return Status::Ok();
  return Error(Code::kInvalidArgument, "Input has %zu columns, expected at most %zu", fc.inputs,
               kMostInputs);
}

void QuantizeInt8(size_t n, const float* from, const Int8Scale& scale, float range, float* to) {
  const float step = StepOf(scale, range);
  for (size_t i = 0; i < n; ++i) {
    float value = from[i] * scale.expand;
    if (static_cast<double>(value - scale.clip) > 1e-6) {
      value = scale.clip;
    } else if (static_cast<double>(value + scale.clip) < 1e-6) {
      value = -scale.clip;
    }
    const double kept = std::clamp(static_cast<double>(value / step) + 0.5, -128.0, 127.0);
    to[i] = std::isnan(kept) ? 0.0f : static_cast<float>(static_cast<int>(kept));
  }
}

void ScaledInt8FcForward(const ScaledInt8Fc& fc, const float* x, const float* w, const float* bias,
                         float* y) {
  const size_t in = fc.inputs, out = fc.outputs;
  std::vector<float> qx(fc.instances * in), qw(in * out), part(fc.instances * out);
  std::vector<int32_t> sums(fc.instances * out);
  QuantizeInt8(qx.size(), x, fc.x, fc.range, qx.data());
  QuantizeInt8(qw.size(), w, fc.w, fc.range, qw.data());
  for (size_t begin = 0; begin < in; begin += kExactInputs) {
    std::fill(part.begin(), part.end(), 0.0f);
    MatMulAdd(fc.instances, std::min(kExactInputs, in - begin), out, {qx.data() + begin, in, 1},
              qw.data() + begin * out, out, part.data(), out);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<int32_t>(part[i]);
  }
  const float expand = fc.x.expand * fc.w.expand, step = StepOf(fc.x, fc.range);
  for (size_t i = 0; i < sums.size(); ++i)
    y[i] = static_cast<float>(sums[i]) / expand * step + bias[i % out];
}

}  // namespace pbx
