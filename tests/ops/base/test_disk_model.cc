#include "base/disk_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "check.h"

namespace pbx {
namespace {

// Batches of two kinds on a disk that takes `c` seconds a request and `s` a byte.
void Learn(DiskModel* model, double c, double s, int batches) {
  for (int i = 0; i < batches; ++i) {
    const uint64_t requests = i % 2 == 0 ? 20000 : 1000;
    const uint64_t bytes = i % 2 == 0 ? 20000 * 4096ull : 1000 * 262144ull;
    model->Observe(requests, bytes,
                   static_cast<double>(requests) * c + static_cast<double>(bytes) * s);
  }
}

bool Near(double found, double expected) { return std::abs(found - expected) < 0.1 * expected; }

TEST(it_learns_what_a_request_and_a_byte_cost) {
  for (const auto& [c, s] : {std::pair{10e-6, 1e-9}, {2e-6, 0.2e-9}, {100e-6, 5e-9}}) {
    DiskModel model;
    Learn(&model, c, s, 40);
    CHECK(Near(model.request_seconds(), c));
    CHECK(Near(model.bytes_per_second(), 1 / s));
    CHECK(Near(static_cast<double>(model.gap_bytes()), std::max(4096.0, c / s)));
  }
}

TEST(it_follows_a_disk_that_changes) {
  DiskModel model;
  Learn(&model, 10e-6, 1e-9, 100);
  Learn(&model, 40e-6, 1e-9, 200);
  CHECK(Near(model.request_seconds(), 40e-6));
}

TEST(batches_of_one_kind_tell_no_nonsense) {
  DiskModel model;
  for (int i = 0; i < 1000; ++i) model.Observe(1000, 1000 * 4096, 0.02);
  CHECK(model.request_seconds() > 1e-6);
  CHECK(model.request_seconds() <= 21e-6);
  CHECK(model.bytes_per_second() > 5e7);
  CHECK(model.gap_bytes() >= 4096);
  CHECK(model.gap_bytes() <= 1u << 20);
}

TEST(small_empty_and_impossible_batches_are_not_believed) {
  DiskModel model;
  const uint64_t before = model.gap_bytes();
  model.Observe(0, 1 << 30, 1);
  model.Observe(5, 4096, 100);
  model.Observe(5, 1 << 30, 0);
  model.Observe(5, 1 << 30, -1);
  CHECK_EQ(model.gap_bytes(), before);
}

}  // namespace
}  // namespace pbx
