// AsyncReader through the system calls of io_uring, because pip cannot install liburing. One
// submission ring and one completion ring are shared with the kernel. The side that fills a ring
// stores its tail with release, and the other side loads the tail with acquire.
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/async_reader.h"

namespace pbx {
namespace {

constexpr unsigned kBatch = 4;  // this many queued requests are worth a system call

class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (at_ != nullptr) munmap(at_, size_);
  }
  bool Map(int fd, size_t size, uint64_t offset) {
    void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                    static_cast<off_t>(offset));
    if (at == MAP_FAILED) return false;
    at_ = static_cast<char*>(at);
    size_ = size;
    return true;
  }
  template <typename T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(at_ + offset);
  }

 private:
  char* at_ = nullptr;
  size_t size_ = 0;
};

class IoUringReader : public AsyncReader {
 public:
  ~IoUringReader() override {
    ReadDone done;
    while (in_flight_ > 0 && Wait(&done).ok()) continue;
    if (fd_ >= 0) close(fd_);
  }

  Status Setup(size_t depth) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
    if (fd_ < 0) return Refused("set up");
    const size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    if (!sq_.Map(fd_, sq_bytes, IORING_OFF_SQ_RING) ||
        !cq_.Map(fd_, cq_bytes, IORING_OFF_CQ_RING) ||
        !entries_.Map(fd_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) {
      return Refused("map its rings");
    }
    sq_tail_ = sq_.At<unsigned>(params.sq_off.tail);
    sq_mask_ = *sq_.At<unsigned>(params.sq_off.ring_mask);
    sq_array_ = sq_.At<unsigned>(params.sq_off.array);
    cq_head_ = cq_.At<unsigned>(params.cq_off.head);
    cq_tail_ = cq_.At<unsigned>(params.cq_off.tail);
    cq_mask_ = *cq_.At<unsigned>(params.cq_off.ring_mask);
    cqes_ = cq_.At<io_uring_cqe>(params.cq_off.cqes);
    reads_.resize(depth);
    for (size_t i = depth; i > 0; --i) free_.push_back(i - 1);
    return Status::Ok();
  }

  Status Submit(const ReadRequest& request) override {
    const size_t slot = free_.back();
    free_.pop_back();
    reads_[slot] = {request, 0};
    ++in_flight_;
    Queue(slot);
    return Status::Ok();
  }

  Status Wait(ReadDone* done) override {
    for (;;) {
      const unsigned head = *cq_head_;
      const bool empty = head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
      // Queued requests are submitted also while results are waiting; otherwise the disk would be
      // idle until all results are taken.
      if (empty || queued_ >= kBatch) PBX_RETURN_IF_ERROR(Enter(empty ? 1u : 0u));
      if (empty) continue;
      io_uring_cqe cqe = cqes_[head & cq_mask_];
      __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
      const auto slot = static_cast<size_t>(cqe.user_data);
      Reading& reading = reads_[slot];
      Suffer(TakeReadFault(), reading, &cqe);
      if (cqe.res == -EINTR || cqe.res == -EAGAIN) {
        Queue(slot);
        continue;
      }
      const ReadRequest& request = reading.request;
      Status status;
      if (cqe.res > 0 && reading.done + static_cast<size_t>(cqe.res) < request.size) {
        reading.done += static_cast<size_t>(cqe.res);
        // The rest of a short read may not be aligned, but a direct file takes only aligned
        // requests. RandomAccessFile::Read handles that.
        status = request.file->Read(request.offset + reading.done, request.size - reading.done,
                                    request.out + reading.done);
      } else if (cqe.res <= 0) {
        // The file's own Read either meets the error again and writes its message, or succeeds.
        status = request.file->Read(request.offset, request.size, request.out);
      }
      free_.push_back(slot);
      --in_flight_;
      *done = {request.tag, std::move(status)};
      return Status::Ok();
    }
  }

  size_t in_flight() const override { return in_flight_; }
  const char* backend() const override { return "io_uring"; }

 private:
  struct Reading {
    ReadRequest request;
    size_t done = 0;
  };

  static void Suffer(ReadFault fault, const Reading& reading, io_uring_cqe* cqe) {
    if (fault == ReadFault::kNone || cqe->res <= 0) return;
    if (fault == ReadFault::kInterrupted) cqe->res = -EINTR;
    if (fault == ReadFault::kIoError) cqe->res = -EIO;
    if (fault == ReadFault::kShort) cqe->res /= 2;
    if (fault == ReadFault::kFlippedBit) reading.request.out[cqe->res / 2] ^= 4;
  }

  static Status Refused(const char* action) {
    return Error(Code::kIOError, "io_uring: the kernel refuses to %s: %s", action,
                 std::strerror(errno));
  }

  void Queue(size_t slot) {
    const ReadRequest& request = reads_[slot].request;
    const unsigned tail = *sq_tail_;
    const unsigned index = tail & sq_mask_;
    io_uring_sqe* sqe = entries_.At<io_uring_sqe>(index * sizeof(io_uring_sqe));
    std::memset(sqe, 0, sizeof(*sqe));
    sqe->opcode = IORING_OP_READ;
    sqe->fd = request.file->fd();
    sqe->off = request.offset;
    sqe->addr = reinterpret_cast<uintptr_t>(request.out);
    sqe->len = static_cast<unsigned>(request.size);
    sqe->user_data = slot;
    sq_array_[index] = index;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    ++queued_;
  }

  // Submits the queued requests and waits for `wait_for` completions.
  Status Enter(unsigned wait_for) {
    const long taken =
        syscall(__NR_io_uring_enter, fd_, queued_, wait_for, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (taken >= 0) {
      queued_ -= static_cast<unsigned>(taken);
      return Status::Ok();
    }
    if (errno == EINTR || errno == EAGAIN || errno == EBUSY) return Status::Ok();
    return Refused("read");
  }

  int fd_ = -1;
  Mapping sq_, cq_, entries_;
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
  io_uring_cqe* cqes_ = nullptr;
  unsigned queued_ = 0;
  size_t in_flight_ = 0;
  std::vector<Reading> reads_;
  std::vector<size_t> free_;
};

}  // namespace

Result<std::unique_ptr<AsyncReader>> CreateIoUringReader(size_t depth) {
  auto reader = std::make_unique<IoUringReader>();
  PBX_RETURN_IF_ERROR(reader->Setup(depth));
  return std::unique_ptr<AsyncReader>(std::move(reader));
}

}  // namespace pbx
