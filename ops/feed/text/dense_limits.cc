#include "feed/text/dense_limits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/vector_clones.h"

namespace pbx::feed {
namespace {

PBX_VECTOR_CLONES void Compare(const uint32_t* bits, uint32_t limit, uint32_t sign, size_t n,
                               uint32_t* beyond) {
  for (size_t i = 0; i < n; ++i) beyond[i] |= (limit - (bits[i] & 0x7fffffffu)) | (bits[i] & sign);
}

}  // namespace

DenseLimits::DenseLimits(const FeedSchema& schema) {
  if (schema.format == Format::kCriteoTsv) return;  // its dense values are logarithms already
  const auto bits_of = [](float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  };
  const uint32_t limit = bits_of(kLargeDense), none = bits_of(std::numeric_limits<float>::max());
  uint32_t number = 0;
  for (const SlotSpec& slot : schema.slots) {
    if (slot.kind != SlotKind::kDense) continue;
    const SlotTransform& t = slot.transform;
    const bool clipped = t.clip && t.clip_low >= -kLargeDense && t.clip_high <= kLargeDense;
    if (slot.weight) weights_.push_back(limits_.size());
    for (int i = 0; i < slot.dim; ++i) {
      const uint32_t of_slot = t.log1p || clipped ? none : limit;
      limits_.push_back(slot.weight ? bits_of(kMostWeight) : of_slot);
      slots_.push_back(&slot);
      number_of_slot_.push_back(number);
    }
    ++number;
  }
  const auto none_of = [&](uint32_t of_column) { return of_column == none; };
  if (std::all_of(limits_.begin(), limits_.end(), none_of)) limits_.clear();
}

void DenseLimits::Beyond(const uint32_t* const* columns, size_t rows,
                         std::vector<uint32_t>* beyond) const {
  beyond->assign(rows, 0);
  for (size_t i = 0; i < limits_.size(); ++i) {
    const uint32_t sign = slots_[i]->weight ? 0x80000000u : 0;
    Compare(columns[i], limits_[i], sign, rows, beyond->data());
  }
}

float DenseLimits::Fed(size_t column, float value) const {
  const SlotTransform& t = slots_[column]->transform;
  if (t.log1p) return 0;
  return t.clip ? std::min(std::max(value, t.clip_low), t.clip_high) : value;
}

bool DenseLimits::Take(const float* row, uint64_t line, std::vector<LargeValue>* large,
                       LineError* error) const {
  for (size_t i = 0; i < limits_.size(); ++i) {
    const float value = Fed(i, row[i]);
    if (slots_[i]->weight && !(value >= 0 && value <= kMostWeight)) {
      return error->Set("slot '%.200s': found %g, expected a number in [0, 2^32]",
                        slots_[i]->name.c_str(), static_cast<double>(value));
    }
    if (std::fabs(value) <= kMostDense) continue;
    return error->Set(
        "slot '%.200s': %g is beyond %g, too large for a network; bound it in slots.yaml by "
        "clip: [low, high] or log1p: true",
        slots_[i]->name.c_str(), static_cast<double>(value), static_cast<double>(kMostDense));
  }
  for (size_t i = 0; i < limits_.size(); ++i) {
    const float value = Fed(i, row[i]);
    if (slots_[i]->weight || std::fabs(value) <= kLargeDense) continue;
    const auto of_slot = [&](const LargeValue& one) { return one.slot == number_of_slot_[i]; };
    const auto found = std::find_if(large->begin(), large->end(), of_slot);
    if (found == large->end()) {
      large->push_back({number_of_slot_[i], line, value});
    } else if (std::fabs(value) > std::fabs(found->value)) {
      *found = {number_of_slot_[i], line, value};
    }
  }
  return true;
}

bool DenseLimits::MayRound(size_t column, float value,
                           const std::vector<RoundedValue>& rounded) const {
  if (std::fabs(value) < kLeastRounded || Fed(column, value) != value) return false;
  return std::none_of(rounded.begin(), rounded.end(),
                      [&](const RoundedValue& one) { return one.slot == number_of_slot_[column]; });
}

bool DenseLimits::MayRound(const float* row, const std::vector<RoundedValue>& rounded) const {
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (MayRound(i, row[i], rounded)) return true;
  }
  return false;
}

void DenseLimits::TakeRounded(const float* row, const long double* exact, uint64_t line,
                              std::vector<RoundedValue>* rounded) const {
  for (size_t i = 0; i < limits_.size(); ++i) {
    const bool first = i == 0 || number_of_slot_[i] != number_of_slot_[i - 1];
    if (!first || !MayRound(i, row[i], *rounded)) continue;
    if (exact[i] == static_cast<long double>(row[i]) || exact[i] != std::floor(exact[i])) continue;
    rounded->push_back({number_of_slot_[i], line, static_cast<double>(exact[i])});
  }
}

}  // namespace pbx::feed
