#include "base/async_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "../store/scratch.h"
#include "base/buffer.h"
#include "check.h"

namespace pbx {
namespace {

using Backend = AsyncReader::Backend;
constexpr size_t kPage = 4096;
constexpr size_t kPages = 300;

// A file whose page i is full of Mix(i), and readers of it.
struct Fixture {
  test::Scratch scratch;
  std::string path = scratch / "file";
  std::unique_ptr<RandomAccessFile> file;

  explicit Fixture(IoMode mode = IoMode::kDirect) {
    std::string content;
    for (uint64_t page = 0; page < kPages; ++page) {
      for (size_t i = 0; i < kPage / 8; ++i) {
        const uint64_t word = Mix(page + 1);
        content.append(reinterpret_cast<const char*>(&word), 8);
      }
    }
    test::WriteAll(path, content);
    auto opened = RandomAccessFile::Open(path, mode);
    CHECK_OK(opened.status());
    file = std::move(opened.value());
  }
  bool Right(const char* bytes, uint64_t page) const {
    const uint64_t word = Mix(page + 1);
    for (size_t i = 0; i < kPage; i += 8) {
      if (std::memcmp(bytes + i, &word, 8) != 0) return false;
    }
    return true;
  }
};

std::unique_ptr<AsyncReader> Reader(Backend backend, size_t depth = 16) {
  auto reader = AsyncReader::Create(depth, backend);
  CHECK_OK(reader.status());
  return std::move(reader.value());
}

// The backends that this kernel has: io_uring may be forbidden.
std::vector<Backend> Backends() {
  std::vector<Backend> backends = {Backend::kThreads};
  if (AsyncReader::Create(1, Backend::kIoUring).ok()) backends.push_back(Backend::kIoUring);
  return backends;
}

TEST(every_read_comes_back_once_with_its_tag_and_its_bytes) {
  for (const Backend backend : Backends()) {
    for (const IoMode mode : {IoMode::kDirect, IoMode::kBuffered}) {
      const Fixture fixture(mode);
      const auto reader = Reader(backend);
      auto memory = Buffer::Allocate(16 * kPage);
      CHECK_OK(memory.status());
      std::map<uint64_t, int> seen;
      std::vector<uint64_t> page_of_slot(16);
      std::vector<size_t> free;
      for (size_t slot = 0; slot < 16; ++slot) free.push_back(slot);
      for (uint64_t next = 0; next < kPages || reader->in_flight() > 0;) {
        while (next < kPages && !free.empty()) {
          const size_t slot = free.back();
          free.pop_back();
          page_of_slot[slot] = (next * 7) % kPages;
          CHECK_OK(reader->Submit({fixture.file.get(), page_of_slot[slot] * kPage, kPage,
                                   memory.value().data() + slot * kPage, slot}));
          ++next;
        }
        ReadDone done;
        CHECK_OK(reader->Wait(&done));
        CHECK_OK(done.status);
        CHECK(fixture.Right(memory.value().data() + done.tag * kPage, page_of_slot[done.tag]));
        ++seen[page_of_slot[done.tag]];
        free.push_back(done.tag);
      }
      CHECK_EQ(seen.size(), kPages);
    }
  }
}

TEST(a_reader_that_goes_waits_for_what_it_was_asked) {
  for (const Backend backend : Backends()) {
    const Fixture fixture;
    auto memory = Buffer::Allocate(8 * kPage);
    auto reader = Reader(backend);
    for (uint64_t page = 0; page < 8; ++page) {
      CHECK_OK(reader->Submit(
          {fixture.file.get(), page * kPage, kPage, memory.value().data() + page * kPage, page}));
    }
    CHECK_EQ(reader->in_flight(), size_t{8});
    reader = nullptr;  // the buffers may go now
  }
}

TEST(a_read_past_the_end_is_corruption_that_names_the_file) {
  for (const Backend backend : Backends()) {
    const Fixture fixture;
    const auto reader = Reader(backend);
    auto memory = Buffer::Allocate(2 * kPage);
    CHECK_OK(reader->Submit(
        {fixture.file.get(), (kPages - 1) * kPage, 2 * kPage, memory.value().data(), 5}));
    ReadDone done;
    CHECK_OK(reader->Wait(&done));
    CHECK_EQ(done.tag, 5u);
    CHECK_CODE(done.status, Code::kCorruption);
    CHECK(test::Contains(done.status.message(), fixture.path));
  }
}

TEST(interrupted_and_short_reads_are_finished_and_errors_are_told) {
  for (const Backend backend : Backends()) {
    const Fixture fixture;
    const auto reader = Reader(backend);
    auto memory = Buffer::Allocate(8 * kPage);
    char* out = memory.value().data();
    const auto read = [&] {
      CHECK_OK(reader->Submit({fixture.file.get(), kPage, 8 * kPage, out, 0}));
      ReadDone done;
      CHECK_OK(reader->Wait(&done));
      return done.status;
    };
    for (const ReadFault fault : {ReadFault::kInterrupted, ReadFault::kShort}) {
      std::fill_n(out, 8 * kPage, 'x');
      InjectReadFault(fault);
      CHECK_OK(read());
      for (uint64_t page = 0; page < 8; ++page) CHECK(fixture.Right(out + page * kPage, page + 1));
    }
    InjectReadFault(ReadFault::kIoError);
    CHECK_CODE(read(), Code::kIOError);
    CHECK_CODE(read(), Code::kIOError);
    InjectReadFault(ReadFault::kFlippedBit);
    CHECK_OK(read());
    size_t wrong = 0;
    for (uint64_t page = 0; page < 8; ++page) {
      wrong += fixture.Right(out + page * kPage, page + 1) ? 0 : 1;
    }
    CHECK_EQ(wrong, size_t{1});
    InjectReadFault(ReadFault::kNone);
    CHECK_OK(read());
  }
}

TEST(a_depth_that_makes_no_sense_is_refused) {
  CHECK_CODE(AsyncReader::Create(0).status(), Code::kInvalidArgument);
  CHECK_CODE(AsyncReader::Create(5000).status(), Code::kInvalidArgument);
  const auto reader = AsyncReader::Create(1);
  CHECK_OK(reader.status());
  const std::string backend = reader.value()->backend();
  CHECK(backend == "io_uring" || backend == "threads");
}

}  // namespace
}  // namespace pbx
