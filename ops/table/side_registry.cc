#include "table/side_registry.h"

#include <map>
#include <mutex>
#include <utility>

namespace pbx {
namespace {

std::mutex mutex;
// Weak pointers: a side table that Python has released must not stay in memory.
std::map<std::pair<bool, std::string>, std::weak_ptr<SideTable>>& Open() {
  static std::map<std::pair<bool, std::string>, std::weak_ptr<SideTable>> open;
  return open;
}

const char* KindOf(bool keyed) { return keyed ? "input table" : "replica cache"; }

}  // namespace

Status RegisterSideTable(const std::shared_ptr<SideTable>& table) {
  const std::lock_guard<std::mutex> lock(mutex);
  const SideTableConfig& config = table->config();
  std::weak_ptr<SideTable>& entry = Open()[{config.keyed, config.name}];
  if (!entry.expired()) {
    return Error(Code::kFailedPrecondition,
                 "%s '%s' is open in a pass already: end_pass is missing, or two have this name",
                 KindOf(config.keyed), config.name.c_str());
  }
  entry = table;
  return Status::Ok();
}

void UnregisterSideTable(const std::shared_ptr<SideTable>& table) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto entry = Open().find({table->config().keyed, table->config().name});
  if (entry != Open().end() && entry->second.lock() == table) Open().erase(entry);
}

Result<std::shared_ptr<SideTable>> FindSideTable(bool keyed, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<SideTable> found;
  std::string names;
  size_t candidates = 0;
  for (const auto& [key, entry] : Open()) {
    std::shared_ptr<SideTable> table = entry.lock();
    if (table == nullptr || key.first != keyed) continue;
    names += (names.empty() ? "'" : ", '") + key.second + "'";
    if (!name.empty() && key.second != name) continue;
    found = std::move(table);
    ++candidates;
  }
  if (candidates == 1) return found;
  return Error(Code::kFailedPrecondition, "operator wants %s '%s'; open in a pass: %s",
               KindOf(keyed), name.c_str(),
               names.empty() ? "none (its begin_pass is missing)" : names.c_str());
}

}  // namespace pbx
