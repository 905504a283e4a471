#include "table/decay_clock.h"

#include <algorithm>

namespace pbx {
namespace {

constexpr double kLeast = 1e-100;  // of a product

}  // namespace

DecayClock::DecayClock() : inverses_(1) { decay_.inverses = inverses_.data(); }

void DecayClock::Tick(const AccessorConfig& config) {
  const auto factor = [&](const RuleConfig& rule) {
    return 1.0 - double{rule.learning_rate} * double{config.rate} * double{config.weight_decay};
  };
  const Decay::Product by = {factor(config.embed), factor(config.embedx)};
  Decay::Product& product = decay_.product;
  product.embed *= by.embed;
  product.embedx *= by.embedx;
  total_.embed *= by.embed;
  total_.embedx *= by.embedx;
  // Before products leave the range of a double, they are counted from this step on: each inverse
  // is multiplied by the product so far. What becomes 0 then is too small for a weight.
  if (std::min(product.embed, product.embedx) < kLeast) {
    for (Decay::Product& inverse : inverses_) {
      inverse.embed *= product.embed;
      inverse.embedx *= product.embedx;
    }
    product = {};
  }
  inverses_.push_back({1 / product.embed, 1 / product.embedx});
  decay_.inverses = inverses_.data();
  ++decay_.step;
}

}  // namespace pbx
