#include "base/threads.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace pbx {
namespace {

// Read before main, so before any OpenMP runtime has pinned the main thread.
cpu_set_t ReadAffinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return set;
}
const cpu_set_t process_affinity = ReadAffinity();

}  // namespace

void ReleaseThreadAffinity() { sched_setaffinity(0, sizeof(process_affinity), &process_affinity); }

struct ThreadPool::Impl {
  // One ParallelFor. It lives on the caller's stack; workers_inside is 0 when no worker uses it.
  struct Job {
    const std::function<void(size_t)>* fn = nullptr;
    size_t tasks = 0;
    std::atomic<size_t> next{0};
    int workers_inside = 0;  // guarded by mutex
  };

  static void Run(Job* job) {
    for (size_t task; (task = job->next.fetch_add(1, std::memory_order_relaxed)) < job->tasks;) {
      (*job->fn)(task);
    }
  }

  void Work() {
    ReleaseThreadAffinity();
    std::unique_lock<std::mutex> lock(mutex);
    uint64_t seen = 0;
    for (;;) {
      wake.wait(lock, [&] { return stop || (job != nullptr && generation != seen); });
      if (stop) return;
      seen = generation;
      Job* mine = job;
      ++mine->workers_inside;
      lock.unlock();
      Run(mine);
      lock.lock();
      if (--mine->workers_inside == 0) done.notify_all();
    }
  }

  std::mutex serve;  // one ParallelFor at a time
  std::mutex mutex;
  std::condition_variable wake, done;
  Job* job = nullptr;
  uint64_t generation = 0;
  bool stop = false;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads, int nice) : impl_(std::make_unique<Impl>()) {
  for (int i = 1; i < threads; ++i) {
    impl_->workers.emplace_back([this, nice] {
      // On Linux each thread has its own nice value. If the call is refused, only the priority is
      // wrong.
      if (nice != 0) (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
      impl_->Work();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::ParallelFor(size_t tasks, const std::function<void(size_t)>& fn) {
  if (impl_->workers.empty() || tasks <= 1) {
    for (size_t task = 0; task < tasks; ++task) fn(task);
    return;
  }
  const std::lock_guard<std::mutex> serve(impl_->serve);
  Impl::Job job;
  job.fn = &fn;
  job.tasks = tasks;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->job = &job;
    ++impl_->generation;
  }
  impl_->wake.notify_all();
  Impl::Run(&job);
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->job = nullptr;  // a worker that wakes only now finds no job and sleeps again
  impl_->done.wait(lock, [&] { return job.workers_inside == 0; });
}

void ThreadPool::ParallelRanges(size_t n, size_t min_chunk,
                                const std::function<void(size_t, size_t)>& fn) {
  if (n == 0) return;
  // Four ranges per thread balance the load when a thread is delayed.
  const size_t wanted = impl_->workers.empty() ? 1 : static_cast<size_t>(threads()) * 4;
  const size_t ranges = std::max<size_t>(1, std::min(wanted, n / std::max<size_t>(1, min_chunk)));
  ParallelFor(ranges, [&](size_t i) { fn(n * i / ranges, n * (i + 1) / ranges); });
}

}  // namespace pbx
