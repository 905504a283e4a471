#include "base/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/numa.h"

namespace pbx {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Buffer::~Buffer() {
  if (mapped_ != 0) munmap(data_, mapped_);
}

Result<Buffer> Buffer::Allocate(size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return Result<Buffer>(std::move(buffer));
  const auto refused = [&](int error) {
    return Error(Code::kOutOfSpace, "cannot allocate %zu bytes of memory: %s", bytes,
                 std::strerror(error));
  };
  // A small block is not worth a huge page. A large one is cut so that it starts on a huge page.
  const bool huge = bytes >= kHugePage;
  if (bytes > SIZE_MAX - 2 * kHugePage) return refused(ENOMEM);
  // The end is not rounded up to a huge page, which could waste up to 2 MiB.
  const size_t rounded = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  const size_t reserve = huge ? rounded + kHugePage : rounded;
  void* p = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return refused(errno);
  char* start = static_cast<char*>(p);
  if (huge) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(start);
    const size_t head = (kHugePage - address % kHugePage) % kHugePage;
    if (head != 0) munmap(start, head);
    start += head;
    munmap(start + rounded, reserve - head - rounded);
    InterleaveOverNodes(start, rounded);
    madvise(start, rounded, MADV_HUGEPAGE);  // only advice: if the kernel refuses, pages are small
  }
  buffer.data_ = start;
  buffer.size_ = bytes;
  buffer.mapped_ = rounded;
  return Result<Buffer>(std::move(buffer));
}

}  // namespace pbx
