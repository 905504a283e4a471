// The same promises for the three tiers, in the shapes in which each behaves differently.
#include <memory>
#include <utility>

#include "check.h"
#include "scratch.h"
#include "store/hbm_tier.h"
#include "store/mem_tier.h"
#include "store/ssd_tier.h"
#include "tier_suite.h"

namespace pbx {
namespace {

using test::Scratch;
using test::TierSuite;

template <typename T>
std::unique_ptr<Tier> Opened(Result<std::unique_ptr<T>> made) {
  CHECK_OK(made.status());
  return std::move(made.value());
}

TEST(the_hbm_tier_keeps_the_promises_of_a_tier) {
  TierSuite([] { return std::make_unique<HbmTier>(TierSuite::kRowBytes); }).Run();
}

TEST(the_mem_tier_keeps_the_promises_of_a_tier) {
  // Just above the suite's largest batch, so that chunks and regions fill up; and far above it.
  for (const uint64_t budget : {uint64_t{7} << 20, uint64_t{256} << 20}) {
    TierSuite([=] { return Opened(MemTier::Open(TierSuite::kRowBytes, budget)); }).Run();
  }
}

TEST(the_ssd_tier_keeps_the_promises_of_a_tier) {
  for (const int threads : {1, 4}) {
    for (const uint64_t segment_bytes : {uint64_t{50000}, uint64_t{256} << 20}) {
      const Scratch scratch;
      ThreadPool pool(threads);
      int folders = 0;
      TierSuite([&] {
        SsdOptions options;
        options.folder = scratch / std::to_string(++folders);
        options.row_bytes = TierSuite::kRowBytes;
        options.layout_fingerprint = 42;
        options.max_segment_bytes = segment_bytes;
        std::filesystem::create_directory(options.folder);
        return Opened(SsdTier::Open(options, {}, &pool));
      }).Run();
    }
  }
}

}  // namespace
}  // namespace pbx
