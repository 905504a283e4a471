#include "base/file.h"

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "../store/scratch.h"
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

}  // namespace
}  // namespace pbx
