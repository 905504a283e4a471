// Kernels of normalizations, of dropout and of optimizers.
#include <limits>
#include <random>
#include <string>

#include "paddle/gpu/tensors.h"

namespace pbx::gpu::kernels {

using phi::CustomContext;
using phi::Scalar;
using Inputs = std::vector<const DenseTensor*>;
using Outputs = std::vector<DenseTensor*>;

// ---- Normalization.

template <typename T, typename Context>
void SoftmaxOver(const Context& context, const DenseTensor& x, int axis, DenseTensor* out) {
  const Sizes sizes = SizesOf(x);
  const size_t at = AxisOf(axis, sizes.size());
  Check(Softmax(In<float>(x), CountBetween(sizes, 0, at), sizes[at],
                CountBetween(sizes, at + 1, sizes.size()), Out<float>(context, out),
                StreamOf(context)));
}
template <typename T, typename Context>
void SoftmaxOverGrad(const Context& context, const DenseTensor& out, const DenseTensor& dout,
                     int axis, DenseTensor* dx) {
  const Sizes sizes = SizesOf(out);
  const size_t at = AxisOf(axis, sizes.size());
  Check(SoftmaxGrad(In<float>(out), In<float>(dout), CountBetween(sizes, 0, at), sizes[at],
                    CountBetween(sizes, at + 1, sizes.size()), Out<float>(context, dx),
                    StreamOf(context)));
}

template <typename T, typename Context>
void NormalizeLayer(const Context& context, const DenseTensor& x, const Optional& scale,
                    const Optional& bias, float epsilon, int begin_axis, DenseTensor* out,
                    DenseTensor* mean, DenseTensor* variance) {
  const Sizes sizes = SizesOf(x);
  const auto begin = static_cast<size_t>(begin_axis);
  Check(LayerNorm(In<float>(x), CountBetween(sizes, 0, begin),
                  CountBetween(sizes, begin, sizes.size()), In<float>(scale), In<float>(bias),
                  epsilon, Out<float>(context, out), Out<float>(context, mean),
                  Out<float>(context, variance), StreamOf(context)));
}
template <typename T, typename Context>
void NormalizeLayerGrad(const Context& context, const DenseTensor& x, const Optional& scale,
                        const Optional& /*bias*/, const DenseTensor& mean,
                        const DenseTensor& variance, const DenseTensor& dout, float epsilon,
                        int begin_axis, DenseTensor* dx, DenseTensor* dscale, DenseTensor* dbias) {
  const Sizes sizes = SizesOf(x);
  const auto begin = static_cast<size_t>(begin_axis);
  const int64_t rows = CountBetween(sizes, 0, begin), n = CountBetween(sizes, begin, sizes.size());
  const bool both = dscale != nullptr || dbias != nullptr;
  DenseTensor held, room;
  float* const terms = both ? Room(context, 2 * CountOf(x), &held) : nullptr;
  const Stream stream = StreamOf(context);
  Check(LayerNormGrad(In<float>(x), rows, n, In<float>(scale), In<float>(mean), In<float>(variance),
                      epsilon, In<float>(dout), Out<float>(context, dx), terms, stream));
  float* const parts = Room(context, SumRoom(1, rows, n), &room);
  if (dscale != nullptr)
    Check(Sum(terms, 1, rows, n, 1, parts, Out<float>(context, dscale), stream));
  if (dbias != nullptr) {
    Check(Sum(terms + rows * n, 1, rows, n, 1, parts, Out<float>(context, dbias), stream));
  }
}

// x as columns. Only (B, C), or (B, L, C) with the channels last.
BatchNormOf ColumnsOf(const DenseTensor& x, const Optional& scale, const Optional& bias,
                      const std::string& layout) {
  const Sizes sizes = SizesOf(x);
  if (sizes.size() != 2 && layout != "NHWC" && layout != "NDHWC" && layout != "NLC") {
    Refuse("batch_norm", ("layout " + layout + " of more than two axes").c_str());
  }
  BatchNormOf of;
  of.n = sizes.back();
  of.rows = CountBetween(sizes, 0, sizes.size() - 1);
  of.x = In<float>(x);
  of.scale = In<float>(scale);
  of.bias = In<float>(bias);
  return of;
}

template <typename T, typename Context>
void NormalizeBatch(const Context& context, const DenseTensor& x, const DenseTensor& mean,
                    const DenseTensor& variance, const Optional& scale, const Optional& bias,
                    bool is_test, float momentum, float epsilon, const std::string& layout,
                    bool use_global_stats, bool trainable_statistics, DenseTensor* y,
                    DenseTensor* mean_out, DenseTensor* variance_out, DenseTensor* saved_mean,
                    DenseTensor* saved_inverse, DenseTensor* reserve) {
  const Stream stream = StreamOf(context);
  const BatchNormOf of = ColumnsOf(x, scale, bias, layout);
  float* const running_mean = Out<float>(context, mean_out);
  float* const running_variance = Out<float>(context, variance_out);
  if (running_mean != In<float>(mean) || running_variance != In<float>(variance)) {
    Refuse("batch_norm", "statistics that are not updated in place");
  }
  Out<float>(context, saved_mean);
  Out<float>(context, saved_inverse);
  if (reserve != nullptr) Room(context, 0, reserve);
  float* const to = Out<float>(context, y);
  if ((is_test && !trainable_statistics) || use_global_stats) {
    return Check(BatchNorm(of, running_mean, nullptr, running_variance, epsilon, to, stream));
  }
  // y holds the differences from the mean, then their squares, before the result.
  DenseTensor held, room;
  float* const parts = Room(context, SumRoom(1, of.rows, of.n), &room);
  float* const found = Room(context, static_cast<uint64_t>(2 * of.n), &held);
  float* const of_squares = found + of.n;
  const float share = 1.0f / static_cast<float>(of.rows);
  const Sizes sizes{of.rows, of.n}, rows{of.n, 1}, repeated{0, 1};
  Check(Sum(of.x, 1, of.rows, of.n, share, parts, found, stream));
  Check(Apply(Map::kSubtract, sizes, of.x, rows, found, repeated, 0, 0, to, stream));
  Check(Apply(Map::kSquare, CountOf(x), to, nullptr, 0, 0, to, stream));
  Check(Sum(to, 1, of.rows, of.n, share, parts, of_squares, stream));
  Check(BatchStatistics(found, of_squares, of.n, momentum, epsilon, running_mean, running_variance,
                        saved_mean->data<float>(), saved_inverse->data<float>(), stream));
  Check(BatchNorm(of, saved_mean->data<float>(), saved_inverse->data<float>(), nullptr, epsilon, to,
                  stream));
}

template <typename T, typename Context>
void NormalizeBatchGrad(const Context& context, const DenseTensor& x, const Optional& scale,
                        const Optional& bias, const Optional& /*mean*/,
                        const Optional& /*variance*/, const DenseTensor& saved_mean,
                        const DenseTensor& saved_inverse, const Optional& /*reserve*/,
                        const DenseTensor& dout, float /*momentum*/, float /*epsilon*/,
                        const std::string& layout, bool is_test, bool use_global_stats,
                        bool /*trainable*/, DenseTensor* dx, DenseTensor* dscale,
                        DenseTensor* dbias) {
  if (is_test || use_global_stats) Refuse("batch_norm_grad", "statistics that are not the batch's");
  const Stream stream = StreamOf(context);
  const BatchNormOf of = ColumnsOf(x, scale, bias, layout);
  const float *mean = In<float>(saved_mean), *inverse = In<float>(saved_inverse);
  DenseTensor held, room, sums;
  float* const parts = Room(context, SumRoom(1, of.rows, of.n), &room);
  float* const terms = Room(context, CountOf(x), &held);
  float* const both = Room(context, static_cast<uint64_t>(2 * of.n), &sums);
  float* const sum = dbias != nullptr ? Out<float>(context, dbias) : both;
  float* const of_terms = dscale != nullptr ? Out<float>(context, dscale) : both + of.n;
  Check(BatchNormTerms(of, mean, inverse, In<float>(dout), terms, stream));
  Check(Sum(In<float>(dout), 1, of.rows, of.n, 1, parts, sum, stream));
  Check(Sum(terms, 1, of.rows, of.n, 1, parts, of_terms, stream));
  if (dx == nullptr) return;
  Check(BatchNormGrad(of, mean, inverse, In<float>(dout), sum, of_terms, Out<float>(context, dx),
                      stream));
}

// ---- Dropout.

// The seed of a call: `fixed`, or drawn on the host by Paddle's generator, so that a pass that is
// trained again drops the same elements.
uint64_t SeedOf(const CustomContext& context, bool fixed, int seed) {
  if (fixed) return static_cast<uint64_t>(seed);
  std::uniform_int_distribution<int64_t> seeds(0, std::numeric_limits<int32_t>::max() - 1);
  return static_cast<uint64_t>(seeds(*context.GetHostGenerator()->GetCPUEngine()));
}

float RateOf(const char* op, const Scalar& p) {
  const float rate = p.to<float>();
  if (!(rate >= 0 && rate < 1)) Refuse(op, "a probability that is not in [0, 1)");
  return rate;
}

template <typename T, typename Context>
void DropElements(const Context& context, const DenseTensor& x, const Optional& seed_tensor,
                  const Scalar& p, bool is_test, const std::string& mode, int seed, bool fixed,
                  DenseTensor* out, DenseTensor* mask) {
  if (seed_tensor) Refuse("dropout", "a seed that is a tensor");
  const float rate = RateOf("dropout", p);
  const bool scaled = mode == "upscale_in_train";
  const Stream stream = StreamOf(context);
  float* const to = Out<float>(context, out);
  if (is_test) {
    const float factor = scaled ? 1.0f : 1.0f - rate;
    return Check(Apply(Map::kScale, CountOf(x), In<float>(x), nullptr, factor, 0, to, stream));
  }
  Check(Dropout(CountOf(x), In<float>(x), rate, SeedOf(context, fixed, seed), scaled, to,
                Out<uint8_t>(context, mask), stream));
}
template <typename T, typename Context>
void DropElementsGrad(const Context& context, const DenseTensor& mask, const DenseTensor& dout,
                      const Scalar& p, bool is_test, const std::string& mode, DenseTensor* dx) {
  const float rate = RateOf("dropout_grad", p);
  const bool scaled = mode == "upscale_in_train";
  const float* const from = In<float>(dout);
  float* const to = Out<float>(context, dx);
  if (is_test) {
    const float factor = scaled ? 1.0f : 1.0f - rate;
    return Check(
        Apply(Map::kScale, CountOf(dout), from, nullptr, factor, 0, to, StreamOf(context)));
  }
  const float scale = scaled ? 1.0f / (1.0f - rate) : 1.0f;
  Check(DropoutGrad(CountOf(dout), In<uint8_t>(mask), from, scale, to, StreamOf(context)));
}

// ---- Optimizers. They update in place.

void RefuseOptions(const char* op, const Optional& skip, bool multi_precision, bool amsgrad) {
  if (skip) Refuse(op, "skip_update");
  if (multi_precision) Refuse(op, "multi_precision");
  if (amsgrad) Refuse(op, "amsgrad");
}

AdamOf OneAdam(const CustomContext& context, const DenseTensor& parameter,
               const DenseTensor& gradient, const DenseTensor& rate, const DenseTensor& moment1,
               const DenseTensor& moment2, const DenseTensor& beta1_power,
               const DenseTensor& beta2_power, DenseTensor* parameter_out, DenseTensor* moment1_out,
               DenseTensor* moment2_out, DenseTensor* beta1_out, DenseTensor* beta2_out) {
  AdamOf of;
  of.n = parameter.numel();
  of.rate = In<float>(rate);
  of.beta1_power = In<float>(beta1_power);
  of.beta2_power = In<float>(beta2_power);
  of.gradient = In<float>(gradient);
  of.parameter = In<float>(parameter);
  of.moment1 = In<float>(moment1);
  of.moment2 = In<float>(moment2);
  of.parameter_out = Out<float>(context, parameter_out);
  of.moment1_out = Out<float>(context, moment1_out);
  of.moment2_out = Out<float>(context, moment2_out);
  of.beta1_out = Out<float>(context, beta1_out);
  of.beta2_out = Out<float>(context, beta2_out);
  return of;
}

template <typename T, typename Context>
void AdamKernel(const Context& context, const DenseTensor& parameter, const DenseTensor& gradient,
                const DenseTensor& rate, const DenseTensor& moment1, const DenseTensor& moment2,
                const Optional& /*moment2_max*/, const DenseTensor& beta1_power,
                const DenseTensor& beta2_power, const Optional& /*master*/, const Optional& skip,
                const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, bool /*lazy*/,
                int64_t /*min_row_size*/, bool multi_precision, bool global_powers, bool amsgrad,
                DenseTensor* parameter_out, DenseTensor* moment1_out, DenseTensor* moment2_out,
                DenseTensor* /*moment2_max_out*/, DenseTensor* beta1_out, DenseTensor* beta2_out,
                DenseTensor* /*master_out*/) {
  RefuseOptions("adam", skip, multi_precision, amsgrad);
  const Adam adam{beta1.to<float>(), beta2.to<float>(), epsilon.to<float>(), 0};
  Check(AdamStep(
      adam,
      {OneAdam(context, parameter, gradient, rate, moment1, moment2, beta1_power, beta2_power,
               parameter_out, moment1_out, moment2_out, beta1_out, beta2_out)},
      !global_powers, StreamOf(context)));
}

// NOLINTBEGIN(performance-unnecessary-value-param): Paddle passes lists of outputs by value.
template <typename T, typename Context>
void MergedAdamKernel(const Context& context, const Inputs& parameter, const Inputs& gradient,
                      const Inputs& rate, const Inputs& moment1, const Inputs& moment2,
                      const paddle::optional<Inputs>& /*moment2_max*/, const Inputs& beta1_power,
                      const Inputs& beta2_power, const paddle::optional<Inputs>& /*master*/,
                      const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon,
                      bool multi_precision, bool global_powers, bool amsgrad, Outputs parameter_out,
                      Outputs moment1_out, Outputs moment2_out, Outputs /*moment2_max_out*/,
                      Outputs beta1_out, Outputs beta2_out, Outputs /*master_out*/) {
  // NOLINTEND(performance-unnecessary-value-param)
  RefuseOptions("merged_adam", Optional(), multi_precision, amsgrad);
  if (gradient.size() != parameter.size()) Refuse("merged_adam", "a parameter without a gradient");
  std::vector<AdamOf> of;
  for (size_t k = 0; k < parameter.size(); ++k) {
    of.push_back(OneAdam(context, *parameter[k], *gradient[k], *rate[k], *moment1[k], *moment2[k],
                         *beta1_power[k], *beta2_power[k], parameter_out[k], moment1_out[k],
                         moment2_out[k], beta1_out[k], beta2_out[k]));
  }
  const Adam adam{beta1.to<float>(), beta2.to<float>(), epsilon.to<float>(), 0};
  Check(AdamStep(adam, of, !global_powers, StreamOf(context)));
}

template <typename T, typename Context>
void AdamWKernel(const Context& context, const DenseTensor& parameter, const DenseTensor& gradient,
                 const DenseTensor& rate, const DenseTensor& moment1, const DenseTensor& moment2,
                 const Optional& /*moment2_max*/, const DenseTensor& beta1_power,
                 const DenseTensor& beta2_power, const Optional& /*master*/, const Optional& skip,
                 const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, float lr_ratio,
                 float coeff, bool with_decay, bool /*lazy*/, int64_t /*min_row_size*/,
                 bool multi_precision, bool global_powers, bool amsgrad, DenseTensor* parameter_out,
                 DenseTensor* moment1_out, DenseTensor* moment2_out,
                 DenseTensor* /*moment2_max_out*/, DenseTensor* beta1_out, DenseTensor* beta2_out,
                 DenseTensor* /*master_out*/) {
  RefuseOptions("adamw", skip, multi_precision, amsgrad);
  if (lr_ratio != 1.0f) Refuse("adamw", "lr_ratio");
  const Adam adam{beta1.to<float>(), beta2.to<float>(), epsilon.to<float>(),
                  with_decay ? coeff : 0.0f};
  Check(AdamStep(
      adam,
      {OneAdam(context, parameter, gradient, rate, moment1, moment2, beta1_power, beta2_power,
               parameter_out, moment1_out, moment2_out, beta1_out, beta2_out)},
      !global_powers, StreamOf(context)));
}

template <typename T, typename Context>
void SgdKernel(const Context& context, const DenseTensor& parameter, const DenseTensor& rate,
               const DenseTensor& gradient, const Optional& /*master*/, bool multi_precision,
               DenseTensor* parameter_out, DenseTensor* /*master_out*/) {
  RefuseOptions("sgd", Optional(), multi_precision, false);
  Check(SgdStep(CountOf(parameter), In<float>(rate), In<float>(gradient), In<float>(parameter),
                Out<float>(context, parameter_out), StreamOf(context)));
}

template <typename T, typename Context>
void AdagradKernel(const Context& context, const DenseTensor& parameter,
                   const DenseTensor& gradient, const DenseTensor& moment, const DenseTensor& rate,
                   const Optional& /*master*/, float epsilon, bool multi_precision,
                   DenseTensor* parameter_out, DenseTensor* moment_out,
                   DenseTensor* /*master_out*/) {
  RefuseOptions("adagrad", Optional(), multi_precision, false);
  Check(AdagradStep(CountOf(parameter), In<float>(rate), epsilon, In<float>(gradient),
                    In<float>(parameter), In<float>(moment), Out<float>(context, parameter_out),
                    Out<float>(context, moment_out), StreamOf(context)));
}

}  // namespace pbx::gpu::kernels

PBX_REGISTER(softmax, SoftmaxOver, float)
PBX_REGISTER(softmax_grad, SoftmaxOverGrad, float)
PBX_REGISTER(layer_norm, NormalizeLayer, float)
PBX_REGISTER(layer_norm_grad, NormalizeLayerGrad, float)
PBX_REGISTER(batch_norm, NormalizeBatch, float)
PBX_REGISTER(batch_norm_grad, NormalizeBatchGrad, float)
PBX_REGISTER(dropout, DropElements, float)
PBX_REGISTER(dropout_grad, DropElementsGrad, float)
PBX_REGISTER(adam, AdamKernel, float)
PBX_REGISTER(merged_adam, MergedAdamKernel, float)
PBX_REGISTER(adamw, AdamWKernel, float)
PBX_REGISTER(sgd, SgdKernel, float)
PBX_REGISTER(adagrad, AdagradKernel, float)
