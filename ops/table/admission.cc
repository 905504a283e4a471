#include "table/admission.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace pbx {

Result<AdmissionFilter> AdmissionFilter::Make(uint64_t bytes, uint32_t threshold) {
  if (bytes < kMinBytes || (bytes & (bytes - 1)) != 0) {
    return Error(Code::kInvalidArgument,
                 "admission.filter_bytes: %llu, expected a power of two of at least %llu",
                 static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(kMinBytes));
  }
  if (threshold < 2 || threshold > kMaxThreshold) {
    return Error(Code::kInvalidArgument, "admission.min_count: %u, expected 2 to %u", threshold,
                 kMaxThreshold);
  }
  Result<Buffer> counters = Buffer::Allocate(bytes);
  if (!counters.ok()) return counters.status();
  AdmissionFilter filter;
  filter.counters_ = std::move(counters.value());
  filter.shift_ = 64 - __builtin_ctzll(bytes / kBlock);
  filter.threshold_ = threshold;
  return Result<AdmissionFilter>(std::move(filter));
}

void AdmissionFilter::Places(uint64_t key, size_t* places) const {
  const size_t block = static_cast<size_t>(key >> shift_) * kBlock;
  const uint64_t hash = Mix(key ^ 0x61646d6974ULL);
  for (int i = 0; i < kCounters; ++i) places[i] = block + (hash >> (6 * i) & (kBlock - 1));
}

uint32_t AdmissionFilter::Estimate(uint64_t key) const {
  size_t places[kCounters];
  Places(key, places);
  uint8_t least = UINT8_MAX;
  for (const size_t place : places) {
    least = std::min(least, static_cast<uint8_t>(counters_.data()[place]));
  }
  return least;
}

void AdmissionFilter::Add(const uint64_t* keys, const uint32_t* counts, size_t n) {
  // All keys are checked before any count is added.
  std::vector<uint8_t> known(n);
  for (size_t i = 0; i < n; ++i) known[i] = Admits(keys[i]) ? 1 : 0;
  for (size_t i = 0; i < n; ++i) {
    if (known[i] != 0) continue;
    size_t places[kCounters];
    Places(keys[i], places);
    const uint32_t count = counts == nullptr ? 1 : counts[i];
    for (int c = 0; c < kCounters; ++c) {
      // A key whose places coincide adds to that counter once.
      if (std::find(places, places + c, places[c]) != places + c) continue;
      char& counter = counters_.data()[places[c]];
      const uint32_t sum = static_cast<uint8_t>(counter) + std::min(count, kMaxThreshold);
      counter = static_cast<char>(std::min(sum, kMaxThreshold));
    }
  }
}

Status AdmissionFilter::SetState(const char* state, size_t size) {
  if (size != bytes()) {
    return Error(Code::kInvalidArgument,
                 "admission.filter_bytes is %llu, but the store's filter has %zu bytes: set that "
                 "size",
                 static_cast<unsigned long long>(bytes()), size);
  }
  std::memcpy(counters_.data(), state, size);
  return Status::Ok();
}

}  // namespace pbx
