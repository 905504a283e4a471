#include "base/async_reader.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads.h"

namespace pbx {
namespace {

constexpr size_t kMaxDepth = 4096;
constexpr size_t kMaxThreads = 32;

class ThreadReader : public AsyncReader {
 public:
  explicit ThreadReader(size_t threads) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ThreadReader() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    asked_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Submit(const ReadRequest& request) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(request);
    }
    ++in_flight_;
    asked_.notify_one();
    return Status::Ok();
  }
  Status Wait(ReadDone* done) override {
    std::unique_lock<std::mutex> lock(mutex_);
    answered_.wait(lock, [&] { return !done_.empty(); });
    *done = std::move(done_.front());
    done_.pop_front();
    --in_flight_;
    return Status::Ok();
  }
  size_t in_flight() const override { return in_flight_; }
  const char* backend() const override { return "threads"; }

 private:
  void Work() {
    ReleaseThreadAffinity();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      // Queued reads are done even after stop_: the destructor finishes them before it returns.
      asked_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const ReadRequest request = queue_.front();
      queue_.pop_front();
      lock.unlock();
      ReadDone done{request.tag, request.file->Read(request.offset, request.size, request.out)};
      lock.lock();
      done_.push_back(std::move(done));
      answered_.notify_one();
    }
  }

  std::mutex mutex_;  // guards queue_, done_ and stop_
  std::condition_variable asked_, answered_;
  std::deque<ReadRequest> queue_;
  std::deque<ReadDone> done_;
  bool stop_ = false;
  size_t in_flight_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<AsyncReader>> CreateThreadReader(size_t depth) {
  return std::unique_ptr<AsyncReader>(new ThreadReader(std::min(depth, kMaxThreads)));
}

Result<std::unique_ptr<AsyncReader>> AsyncReader::Create(size_t depth, Backend backend) {
  if (depth == 0 || depth > kMaxDepth) {
    return Error(Code::kInvalidArgument, "async reader: depth must be 1 to %zu, found %zu",
                 kMaxDepth, depth);
  }
  if (backend == Backend::kThreads) return CreateThreadReader(depth);
  auto reader = CreateIoUringReader(depth);
  if (reader.ok() || backend == Backend::kIoUring) return reader;
  return CreateThreadReader(depth);
}

}  // namespace pbx
