// LmdbReader: reads an export file, which is an LMDB environment in one file, without LMDB: it
// takes no part in LMDB's lock file. docs/formats/export.md, "Readers without LMDB", says why a
// leased generation stays where it is. For programs that read the file with LMDB, it checks the
// pages first.
//
// It trusts no number in the file: every page, offset and length is checked before it is used.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/map_guard.h"
#include "base/status.h"

namespace pbx {

class LmdbReader {
 public:
  // The map of the file, in pages that it has or may get. Its bytes may change, except for values
  // on pages of their own whose keys stay.
  class Map {
   public:
    ~Map();
    Map(const Map&) = delete;
    Map& operator=(const Map&) = delete;
    // Whether another process has cut the file short, so that bytes read may be zeros.
    bool shrunk() const { return guard_ != nullptr && guard_->shrunk(); }

   private:
    friend class LmdbReader;
    Map() = default;
    const char* data_ = nullptr;
    size_t bytes_ = 0;
    std::unique_ptr<MapGuard> guard_;
  };

  // The state after one transaction.
  struct State {
    uint64_t transaction = 0;
    uint64_t page_bytes = 0;
    uint64_t pages = 0;  // numbers of pages are below it
    uint64_t root = 0;
    uint64_t free = 0;  // root of the tree of free pages
    bool operator==(const State& other) const {
      return transaction == other.transaction && root == other.root;
    }
  };

  // own_pages: on pages of its own, so that the bytes stay as long as the key.
  struct Value {
    std::string_view bytes;
    bool own_pages = false;
  };
  using Visit = std::function<Status(std::string_view key, const Value& value)>;

  // NotFound, IOError; Corruption if it is no LMDB file.
  static Result<std::shared_ptr<LmdbReader>> Open(const std::string& path);
  ~LmdbReader();

  // The states after the last two transactions, in no order. Corruption.
  Result<std::pair<State, State>> States() const;
  Result<State> Newest() const;
  // Whether the pages of a state still are as they were: at most one transaction has ended since.
  // What was read before the call is valid then.
  bool Holds(const State& state) const;
  // A map of at least the pages of the state. The reader keeps one and maps again when the file has
  // outgrown it.
  Result<std::shared_ptr<const Map>> MapOf(const State& state);

  // Visits the keys that begin with prefix, in order. Stops at an error. Corruption names a page:
  // of the file, or of a state that does not hold any more.
  Status ForEach(const Map& map, const State& state, std::string_view prefix,
                 const Visit& visit) const;

  // Checks each page of a state, but not the values. LMDB follows numbers of pages, offsets and
  // lengths without checking them, so a damaged one can end the process. A read transaction of the
  // state must be open, or this process be the only writer. free: also checks the tree of free
  // pages, which only a writer reads. Corruption names the page.
  Status Check(const State& state, bool free) const;

  // Whether the file at a path is this one.
  bool IsAt(const std::string& path) const;
  uint64_t bytes() const;  // of the file

  // Takes part in a shared lock on one byte far behind the end of the file, which a writer that
  // removes the generation must lock alone. False: a writer removes it now. End each lease once.
  Result<bool> Lease(uint64_t generation);
  void EndLease(uint64_t generation);

  const std::string& path() const { return path_; }

 private:
  LmdbReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  struct Walk;
  struct Tree;
  Status CheckPage(Tree* tree, uint64_t number, std::string_view separator, int depth) const;
  Status CheckLeaf(Tree* tree, std::string_view page, uint64_t number, size_t at) const;
  Status CheckFree(const State& state, std::vector<bool>* used) const;
  Status Take(std::vector<bool>* used, uint64_t first, uint64_t count) const;
  Status Page(const Walk& walk, uint64_t number, int depth) const;
  Status Leaf(const Walk& walk, std::string_view page, uint64_t number, size_t count) const;
  Status Node(const Walk& walk, std::string_view page, size_t at, size_t key_bytes,
              std::string_view key, uint64_t number) const;
  Status Damaged(uint64_t page, const char* found) const;
  bool ReadMeta(uint64_t number, uint64_t page_bytes, State* state) const;

  const std::string path_;
  const int fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::mutex mutex_;
  std::shared_ptr<const Map> map_;
  std::map<uint64_t, int> leases_;  // the users of each
};

}  // namespace pbx
