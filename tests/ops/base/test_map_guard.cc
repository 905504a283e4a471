#include "base/map_guard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "../store/scratch.h"
#include "check.h"

namespace pbx {
namespace {

using test::Scratch;

constexpr size_t kPage = 4096;

// A file of 4 pages of 'x', mapped.
struct Mapped {
  explicit Mapped(std::string name) : path(std::move(name)) {
    test::WriteAll(path, std::string(4 * kPage, 'x'));
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    at = static_cast<const char*>(mmap(nullptr, 4 * kPage, PROT_READ, MAP_SHARED, fd, 0));
    close(fd);
  }
  ~Mapped() { munmap(const_cast<char*>(at), 4 * kPage); }
  std::string path;
  const volatile char* at;
};

TEST(a_file_that_is_cut_short_reads_as_zeros_and_the_guard_says_so) {
  const Scratch scratch;
  const Mapped cut(scratch / "cut"), whole(scratch / "whole");
  auto guard = MapGuard::Of(reinterpret_cast<uintptr_t>(cut.at), 4 * kPage);
  auto other = MapGuard::Of(reinterpret_cast<uintptr_t>(whole.at), 4 * kPage);
  CHECK_OK(guard.status());
  CHECK_OK(other.status());
  CHECK_EQ(truncate(cut.path.c_str(), kPage), 0);
  CHECK_EQ(cut.at[0], 'x');
  CHECK_EQ(guard.value()->shrunk(), false);
  CHECK_EQ(cut.at[2 * kPage + 5], '\0');
  CHECK_EQ(cut.at[3 * kPage], '\0');
  CHECK_EQ(guard.value()->shrunk(), true);
  CHECK_EQ(whole.at[3 * kPage], 'x');
  CHECK_EQ(other.value()->shrunk(), false);
}

TEST(a_map_without_a_guard_ends_the_process_as_before) {
  const Scratch scratch;
  const Mapped mapped(scratch / "a");
  (void)MapGuard::Of(reinterpret_cast<uintptr_t>(mapped.at), 4 * kPage);  // destroyed at once
  CHECK_EQ(truncate(mapped.path.c_str(), 0), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)signal(SIGALRM, SIG_DFL);
    alarm(10);
    _exit(mapped.at[0]);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(WIFSIGNALED(status), true);
  CHECK_EQ(WTERMSIG(status), SIGBUS);
}

}  // namespace
}  // namespace pbx
