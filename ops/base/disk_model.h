// DiskModel: the cost of a read, learned from the reads themselves: c + bytes / r seconds, where c
// is the cost of a request and r the rate of a long read. With many requests in flight c is the
// time that one more request takes, not the latency.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace pbx {

// Thread safe.
class DiskModel {
 public:
  // A batch of `requests` reads, `bytes` in total, took `seconds`.
  void Observe(uint64_t requests, uint64_t bytes, double seconds) {
    if (requests == 0 || bytes < kMinBytes || seconds <= 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    // Least squares of seconds over (requests, bytes), both in units of the prior's cost. Dividing
    // by `unit` gives large and small batches the same weight. Old batches fade.
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

  // The largest gap between two reads for which one read over both is cheaper than two.
  uint64_t gap_bytes() const {
    const Cost cost = Solve();
    return std::clamp<uint64_t>(static_cast<uint64_t>(cost.c / cost.s), 4096, 1u << 20);
  }

 private:
  // A shorter batch measures mostly the caller's own time.
  static constexpr uint64_t kMinBytes = 1u << 20;
  static constexpr double kFade = 0.95;
  static constexpr double kPriorC = 12e-6, kPriorS = 0.5e-9;  // seconds per request, per byte

  struct Cost {
    double c, s;
  };

  Cost Solve() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A small pull towards the prior keeps the solution defined when all batches are alike.
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
