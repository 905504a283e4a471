// Members of a HostGroup for tests: each is a process, made by fork.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/host_group.h"
#include "check.h"

namespace pbx {

using Member = std::function<int(HostGroup*, int)>;  // 0: all is well
constexpr size_t kWindow = 4096;

inline std::vector<std::string> Names(int members) {
  std::vector<std::string> names;
  for (int member = 0; member < members; ++member)
    names.push_back("rank " + std::to_string(member));
  return names;
}

// Each member in a process of its own; what each returned, or 128 + the signal that ended it.
inline std::vector<int> RunMembers(int members, const Member& body) {
  std::unique_ptr<HostGroup> made =
      std::move(HostGroup::Create(2, Names(members), kWindow).value());
  const std::string where = made->where();
  int ready[2], go[2];
  if (::pipe(ready) != 0 || ::pipe(go) != 0) return {};
  std::vector<pid_t> children;
  for (int member = 1; member < members; ++member) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    Result<std::unique_ptr<HostGroup>> group =
        HostGroup::Open(where, member, 2, Names(members), kWindow);
    char token = 0;
    if (!group.ok() || ::write(ready[1], &token, 1) != 1 || ::read(go[0], &token, 1) != 1 ||
        !group.value()->Watch().ok()) {
      ::_exit(100);
    }
    ::_exit(body(group.value().get(), member));
  }
  char token = 0;
  for (size_t i = 0; i < children.size(); ++i) CHECK_EQ(::read(ready[0], &token, 1), 1);
  CHECK_OK(made->Watch());
  for (size_t i = 0; i < children.size(); ++i) CHECK_EQ(::write(go[1], &token, 1), 1);
  std::vector<int> outcomes = {body(made.get(), 0)};
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    outcomes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  for (const int end : {ready[0], ready[1], go[0], go[1]}) ::close(end);
  return outcomes;
}

}  // namespace pbx
