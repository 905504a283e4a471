#include "base/threads.h"

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

using Counts = std::vector<std::atomic<int>>;

size_t NotOnce(const Counts& counts) {
  size_t wrong = 0;
  for (const auto& count : counts) wrong += count.load() != 1;
  return wrong;
}

TEST(a_pool_has_the_threads_it_was_asked_for) {
  for (const int threads : {1, 2, 5}) CHECK_EQ(ThreadPool(threads).threads(), threads);
}

TEST(parallel_for_calls_each_task_once) {
  for (const int threads : {1, 2, 4, 9}) {
    ThreadPool pool(threads);
    for (const size_t tasks : {0u, 1u, 2u, 3u, 17u, 1000u}) {
      Counts counts(tasks);
      pool.ParallelFor(tasks, [&](size_t i) { ++counts[i]; });
      CHECK_EQ(NotOnce(counts), 0u);
    }
  }
}

// What a task wrote without any lock is there when ParallelFor returns.
TEST(parallel_for_returns_when_all_is_done) {
  ThreadPool pool(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> plain(8, 0);
    pool.ParallelFor(plain.size(), [&](size_t i) { plain[i] = round; });
    int sum = 0;
    for (const int value : plain) sum += value;
    CHECK_EQ(sum, 8 * round);
  }
}

TEST(one_thread_runs_in_order_on_the_caller) {
  ThreadPool pool(1);
  std::vector<size_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(5, [&](size_t i) {
    CHECK(std::this_thread::get_id() == caller);
    order.push_back(i);
  });
  CHECK((order == std::vector<size_t>{0, 1, 2, 3, 4}));
}

TEST(parallel_ranges_cover_everything_once_and_keep_the_smallest_size) {
  for (const int threads : {1, 3, 4}) {
    ThreadPool pool(threads);
    for (const size_t n : {0u, 1u, 5u, 64u, 1001u, 50000u}) {
      for (const size_t least : {0u, 1u, 10u, 512u, 100000u}) {
        Counts counts(n);
        std::atomic<size_t> small{0}, ranges{0};
        pool.ParallelRanges(n, least, [&](size_t begin, size_t end) {
          ++ranges;
          if (end - begin < least) ++small;
          for (size_t i = begin; i < end; ++i) ++counts[i];
        });
        CHECK_EQ(NotOnce(counts), 0u);
        CHECK(small == 0 || ranges == 1);  // fewer items than a range in all
        CHECK_EQ(ranges == 0, n == 0);
      }
    }
  }
}

TEST(callers_on_several_threads_are_all_served) {
  ThreadPool pool(3);
  constexpr size_t kCallers = 4, kRounds = 200, kTasks = 50;
  std::vector<Counts> counts;
  for (size_t c = 0; c < kCallers * kRounds; ++c) counts.emplace_back(kTasks);
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t round = 0; round < kRounds; ++round) {
        Counts& mine = counts[caller * kRounds + round];
        pool.ParallelFor(kTasks, [&](size_t i) { ++mine[i]; });
        if (NotOnce(mine) != 0) ++mine[0];  // it returned too early: told below
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const Counts& of_call : counts) CHECK_EQ(NotOnce(of_call), 0u);
}

TEST(a_pool_that_was_never_used_and_one_just_used_end_cleanly) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool unused(4);
    ThreadPool used(4);
    used.ParallelFor(4, [](size_t) {});
  }
}

}  // namespace
}  // namespace pbx
