// ThreadPool: a fixed set of worker threads for ParallelFor. Work is split by index only, never by
// which thread comes first, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace pbx {

class ThreadPool {
 public:
  // threads >= 1. With 1 everything runs on the caller's thread and no thread is started. nice: the
  // nice value of the worker threads.
  explicit ThreadPool(int threads, int nice = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls fn(task) once for each task in [0, tasks), on the workers and on the calling thread, and
  // returns when all are done. Tasks are handed out in order. fn must not throw. Thread safe, but
  // no order: calls from several threads that have one task each, or all calls if the pool has one
  // thread, run at the same time. Not re-entrant: fn must not call ParallelFor of the same pool.
  void ParallelFor(size_t tasks, const std::function<void(size_t task)>& fn);

  // The same for [0, n), cut into contiguous ranges of at least min_chunk items: fn(begin, end). A
  // small n runs on the caller's thread alone.
  void ParallelRanges(size_t n, size_t min_chunk,
                      const std::function<void(size_t begin, size_t end)>& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lets the calling thread run on every processor that the process had when the library was loaded.
// An OpenMP runtime with KMP_AFFINITY set pins the main thread to a processor, and threads started
// later inherit this. Without the call all workers would share one core with the trainer.
void ReleaseThreadAffinity();

}  // namespace pbx
