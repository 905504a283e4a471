#include "table/registry.h"

#include <map>
#include <mutex>

namespace pbx {
namespace {

std::mutex mutex;
std::map<std::string, std::weak_ptr<RowAccess>>& Tables() {
  static std::map<std::string, std::weak_ptr<RowAccess>> tables;
  return tables;
}

}  // namespace

Status RegisterTable(const std::shared_ptr<RowAccess>& table) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<RowAccess>& entry = Tables()[table->name()];
  if (!entry.expired()) {
    return Error(Code::kInvalidArgument,
                 "a table named '%s' is open already: close it, or choose another name",
                 table->name().c_str());
  }
  entry = table;
  return Status::Ok();
}

void UnregisterTable(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex);
  Tables().erase(name);
}

Result<std::shared_ptr<RowAccess>> FindTable(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<RowAccess> found;
  std::string names;
  size_t candidates = 0;
  for (const auto& [other, entry] : Tables()) {
    std::shared_ptr<RowAccess> table = entry.lock();
    if (table == nullptr) continue;
    names += (names.empty() ? "'" : ", '") + other + "'";
    if (!name.empty() && other != name) continue;
    found = std::move(table);
    ++candidates;
  }
  if (candidates == 1) return Result<std::shared_ptr<RowAccess>>(std::move(found));
  return Error(Code::kFailedPrecondition, "operator wants table '%s'; open tables: %s",
               name.c_str(),
               names.empty() ? "none (open one with paddlebox.Table)" : names.c_str());
}

}  // namespace pbx
