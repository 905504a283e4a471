#include "base/buffer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "check.h"

namespace pbx {
namespace {

constexpr size_t kHuge = 2u << 20;

TEST(a_buffer_is_zeroed_writable_to_its_last_byte_and_aligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{5000}, kHuge - 1, kHuge, kHuge + 1, 3 * kHuge - 7}) {
    Result<Buffer> buffer = Buffer::Allocate(bytes);
    CHECK_OK(buffer.status());
    char* data = buffer.value().data();
    CHECK_EQ(buffer.value().size(), bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % (bytes >= kHuge ? kHuge : 4096), 0u);
    CHECK(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
    std::fill(data, data + bytes, 'x');
    CHECK_EQ(data[bytes - 1], 'x');
  }
}

TEST(nothing_is_a_legal_size) {
  const Result<Buffer> buffer = Buffer::Allocate(0);
  CHECK_OK(buffer.status());
  CHECK_EQ(buffer.value().size(), 0u);
}

TEST(a_moved_buffer_keeps_its_bytes_and_leaves_an_empty_one) {
  Result<Buffer> made = Buffer::Allocate(100);
  made.value().data()[99] = 'y';
  const char* const where = made.value().data();
  Buffer moved(std::move(made.value()));
  CHECK(moved.data() == where);
  CHECK_EQ(moved.data()[99], 'y');
  CHECK_EQ(moved.size(), 100u);
  Buffer other;
  other = std::move(moved);
  CHECK(other.data() == where);
}

TEST(more_than_there_is_is_out_of_space_and_says_how_much) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - kHuge, SIZE_MAX / 2}) {
    const Status status = Buffer::Allocate(bytes).status();
    CHECK_CODE(status, Code::kOutOfSpace);
    CHECK(status.message().find(std::to_string(bytes)) != std::string::npos);
  }
}

}  // namespace
}  // namespace pbx
