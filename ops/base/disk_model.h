// DiskModel: what a read costs, learned from the reads themselves: c + bytes / r seconds, c for the
// request and r the rate of a long one. With many requests in flight c is what the disk needs for
// one more, not its latency.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace pbx {

// Thread safe.
class DiskModel {
 public:
  // A batch of `requests` reads of `bytes` in all took `seconds`.
  void Observe(uint64_t requests, uint64_t bytes, double seconds) {
    if (requests == 0 || bytes < kMinBytes || seconds <= 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    // Least squares of seconds over (requests, bytes), both in units of the prior's cost. A batch
    // counts by what kind it is, not by how large or slow; what is old fades.
    const double n = static_cast<double>(requests) * kPriorC;
    const double b = static_cast<double>(bytes) * kPriorS;
    const double unit = 1 / (n + b);
    for (double* sum : {&nn_, &nb_, &bb_, &nt_, &bt_}) *sum *= kFade;
    nn_ += n * n * unit * unit;
    nb_ += n * b * unit * unit;
    bb_ += b * b * unit * unit;
    nt_ += n * seconds * unit * unit;
    bt_ += b * seconds * unit * unit;
  }

  double request_seconds() const { return Solve().c; }
  double bytes_per_second() const { return 1 / Solve().s; }

  // Bytes that nobody needs and that are read over all the same, to save a request.
  uint64_t gap_bytes() const {
    const Cost cost = Solve();
    return std::clamp<uint64_t>(static_cast<uint64_t>(cost.c / cost.s), 4096, 1u << 20);
  }

 private:
  static constexpr uint64_t kMinBytes = 1u << 20;  // shorter ones measure the caller
  static constexpr double kFade = 0.95;
  static constexpr double kPriorC = 12e-6, kPriorS = 0.5e-9;  // seconds a request, seconds a byte

  struct Cost {
    double c, s;
  };

  Cost Solve() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A little towards the prior, which keeps it defined when all batches are alike.
    constexpr double kRidge = 0.05;
    const double a11 = nn_ + kRidge, a22 = bb_ + kRidge;
    const double y1 = nt_ + kRidge, y2 = bt_ + kRidge;
    const double det = a11 * a22 - nb_ * nb_;
    const double x1 = (y1 * a22 - y2 * nb_) / det, x2 = (a11 * y2 - nb_ * y1) / det;
    return {std::clamp(x1, 0.1, 100.0) * kPriorC, std::clamp(x2, 0.05, 20.0) * kPriorS};
  }

  mutable std::mutex mutex_;
  double nn_ = 0, nb_ = 0, bb_ = 0, nt_ = 0, bt_ = 0;
};

}  // namespace pbx
