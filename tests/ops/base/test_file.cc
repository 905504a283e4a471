#include "base/file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "../store/scratch.h"
#include "base/buffer.h"
#include "base/hash.h"
#include "check.h"

namespace pbx {
namespace {

using test::ReadAll;
using test::Scratch;

TEST(a_file_appears_whole_at_commit_and_not_before) {
  const Scratch scratch;
  auto writer = AtomicFileWriter::Create(scratch / "a");
  CHECK_OK(writer.status());
  CHECK_OK(writer.value()->Append("hello ", 6));
  CHECK_OK(writer.value()->Append("world", 5));
  CHECK_EQ(std::filesystem::exists(scratch / "a"), false);
  CHECK_OK(writer.value()->Commit());
  CHECK_EQ(writer.value()->written(), 11u);
  CHECK_EQ(ReadAll(scratch / "a"), std::string("hello world"));
  CHECK_EQ(scratch.files(), 1u);
  CHECK_OK(SyncFolder(scratch.path()));
  CHECK_CODE(writer.value()->Commit(), Code::kFailedPrecondition);
  CHECK_CODE(writer.value()->Append("x", 1), Code::kFailedPrecondition);
}

TEST(a_dropped_writer_leaves_nothing_and_the_old_file_alone) {
  const Scratch scratch;
  test::WriteAll(scratch / "a", "old");
  {
    auto writer = AtomicFileWriter::Create(scratch / "a");
    CHECK_OK(writer.value()->Append("new", 3));
  }
  CHECK_EQ(ReadAll(scratch / "a"), std::string("old"));
  CHECK_EQ(scratch.files(), 1u);
}

TEST(a_full_disk_is_out_of_space_and_names_the_file) {
  const Scratch scratch;
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EIO}) {
    auto writer = AtomicFileWriter::Create(scratch / "a");
    InjectWriteFault(4, error);
    CHECK_OK(writer.value()->Append("123", 3));
    const Status status = writer.value()->Append("456", 3);
    InjectWriteFault(-1, 0);
    CHECK_CODE(status, error == EIO ? Code::kIOError : Code::kOutOfSpace);
    CHECK(test::Contains(status.message(), scratch / "a"));
    CHECK_EQ(writer.value()->written(), 4u);  // a torn write, as a real disk leaves it
  }
  CHECK_EQ(scratch.files(), 0u);
}

TEST(reads_are_exact_and_past_the_end_is_corruption) {
  const Scratch scratch;
  test::WriteAll(scratch / "a", "0123456789");
  auto file = RandomAccessFile::Open(scratch / "a");
  CHECK_OK(file.status());
  CHECK_EQ(file.value()->size(), 10u);
  char out[10];
  CHECK_OK(file.value()->Read(3, 4, out));
  CHECK_EQ(std::string(out, 4), std::string("3456"));
  CHECK_OK(file.value()->Read(10, 0, out));
  CHECK_CODE(file.value()->Read(7, 4, out), Code::kCorruption);
  CHECK_CODE(file.value()->Read(100, 1, out), Code::kCorruption);
}

TEST(absent_files_and_folders_are_told_apart_from_other_errors) {
  const Scratch scratch;
  CHECK_CODE(RandomAccessFile::Open(scratch / "none").status(), Code::kNotFound);
  CHECK_CODE(RandomAccessFile::Open(scratch.path()).status(), Code::kIOError);
  CHECK_CODE(AtomicFileWriter::Create(scratch / "none/a").status(), Code::kNotFound);
  CHECK_CODE(SyncFolder(scratch / "none"), Code::kNotFound);
}

TEST(a_direct_file_reads_any_range) {
  const test::Scratch scratch;
  std::string content;
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t word = Mix(i);
    content.append(reinterpret_cast<const char*>(&word), 8);
  }
  content += "tail";  // no multiple of a page
  const std::string path = scratch / "file";
  test::WriteAll(path, content);
  const auto file = RandomAccessFile::Open(path, IoMode::kDirect);
  CHECK_OK(file.status());
  for (const auto& [offset, size] : {std::pair<size_t, size_t>{0, 4096},
                                     {1, 1},
                                     {4095, 2},
                                     {4096, 8192},
                                     {5000, 15000},
                                     {content.size() - 4, 4},
                                     {0, content.size()},
                                     {content.size(), 0}}) {
    std::string out(size, 'x');
    CHECK_OK(file.value()->Read(offset, size, out.data()));
    CHECK(out == content.substr(offset, size));
  }
  char out[64];
  CHECK_CODE(file.value()->Read(content.size() - 10, 11, out), Code::kCorruption);
}

TEST(direct_writes_go_by_whole_pages) {
  const test::Scratch scratch;
  auto file = AtomicFileWriter::Create(scratch / "file", IoMode::kDirect);
  CHECK_OK(file.status());
  auto memory = Buffer::Allocate(8192);
  std::fill_n(memory.value().data(), 8192, 'd');
  CHECK_OK(file.value()->Append(memory.value().data(), 8192));
  if (RandomAccessFile::Open(scratch / "file.tmp", IoMode::kDirect).value()->direct()) {
    CHECK_CODE(file.value()->Append(memory.value().data(), 100), Code::kInvalidArgument);
    CHECK_CODE(file.value()->Append(memory.value().data() + 1, 4096), Code::kInvalidArgument);
  }
  CHECK_OK(file.value()->Commit());
  CHECK(test::ReadAll(scratch / "file") == std::string(8192, 'd'));
}

TEST(reads_survive_interruptions_and_tell_errors) {
  const test::Scratch scratch;
  test::WriteAll(scratch / "file", std::string(20000, 'r'));
  const auto file = RandomAccessFile::Open(scratch / "file");
  std::string out(20000, 'x');
  for (const ReadFault fault : {ReadFault::kInterrupted, ReadFault::kShort}) {
    out.assign(20000, 'x');
    InjectReadFault(fault);
    CHECK_OK(file.value()->Read(0, 20000, out.data()));
    CHECK(out == std::string(20000, 'r'));
  }
  InjectReadFault(ReadFault::kIoError, 1);
  CHECK_OK(file.value()->Read(0, 10, out.data()));
  CHECK_CODE(file.value()->Read(0, 10, out.data()), Code::kIOError);
  InjectReadFault(ReadFault::kNone);
  CHECK_OK(file.value()->Read(0, 10, out.data()));
}

TEST(more_open_files_than_the_hard_limit_are_refused_with_advice) {
  CHECK_OK(EnsureOpenFiles(1));
  const Status status = EnsureOpenFiles(size_t{1} << 40);
  CHECK_CODE(status, Code::kIOError);
  CHECK(test::Contains(status.message(), "ulimit -Hn"));
}

}  // namespace
}  // namespace pbx
