#include "serve/lmdb_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace pbx {
namespace {

constexpr size_t kHeader = 16, kMetaBytes = 152, kNodeHeader = 8;
constexpr uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr uint16_t kBranch = 1, kLeaf = 2, kMetaPage = 8, kBig = 1, kFreeFlags = 0x4008;
constexpr uint64_t kNoRoot = ~uint64_t{0};
constexpr int kMostDepth = 32;
constexpr size_t kMostKey = 511;
constexpr size_t kLeastMap = size_t{64} << 20;
constexpr off_t kLeases = off_t{1} << 60;

template <typename T>
T At(const char* data, size_t offset) {
  T value;
  std::memcpy(&value, data + offset, sizeof(T));
  return value;
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

struct flock LockOf(short type, uint64_t generation) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLeases + static_cast<off_t>(generation);
  lock.l_len = 1;
  return lock;
}

}  // namespace

LmdbReader::Map::~Map() {
  guard_.reset();
  if (data_ != nullptr) (void)munmap(const_cast<char*>(data_), bytes_);
}

Result<std::shared_ptr<LmdbReader>> LmdbReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) {
      return Error(Code::kNotFound,
                   "%s: expected an export file, found none: `paddlebox export RUN_DIR --out FILE` "
                   "makes one",
                   path.c_str());
    }
    return Error(Code::kIOError, "%s: cannot open: %s", path.c_str(), strerror(errno));
  }
  std::shared_ptr<LmdbReader> reader(new LmdbReader(path, fd));
  struct stat about = {};
  if (fstat(fd, &about) != 0) {
    return Error(Code::kIOError, "%s: cannot read: %s", path.c_str(), strerror(errno));
  }
  reader->device_ = about.st_dev;
  reader->inode_ = about.st_ino;
  const Result<State> newest = reader->Newest();
  PBX_RETURN_IF_ERROR(newest.status());
  return reader;
}

LmdbReader::~LmdbReader() { (void)close(fd_); }

bool LmdbReader::IsAt(const std::string& path) const {
  struct stat about = {};
  return stat(path.c_str(), &about) == 0 && about.st_dev == device_ && about.st_ino == inode_;
}

uint64_t LmdbReader::bytes() const {
  struct stat about = {};
  return fstat(fd_, &about) == 0 ? static_cast<uint64_t>(about.st_size) : 0;
}

bool LmdbReader::ReadMeta(uint64_t number, uint64_t page_bytes, State* state) const {
  char data[kMetaBytes];
  const auto at = static_cast<off_t>(number * page_bytes);
  if (pread(fd_, data, kMetaBytes, at) != static_cast<ssize_t>(kMetaBytes)) return false;
  const auto found = At<uint32_t>(data, 40);
  state->page_bytes = found;
  state->root = At<uint64_t>(data, 128);
  state->transaction = At<uint64_t>(data, 144);
  const bool sized = found >= 4096 && found <= 65536 && (found & (found - 1)) == 0;
  if (!sized || (number != 0 && found != page_bytes)) return false;
  state->free = At<uint64_t>(data, 80);
  state->pages = std::min(At<uint64_t>(data, 136) + 1, bytes() / found);
  return At<uint64_t>(data, 0) == number && At<uint16_t>(data, 10) == kMetaPage &&
         At<uint32_t>(data, 16) == kMagic && At<uint32_t>(data, 20) == kVersion &&
         At<uint16_t>(data, 44) == kFreeFlags && At<uint16_t>(data, 92) == 0;
}

Result<std::pair<LmdbReader::State, LmdbReader::State>> LmdbReader::States() const {
  for (int tries = 0; tries < 5; ++tries) {  // a writer may come between
    State first, second;
    if (!ReadMeta(0, 0, &first) || !ReadMeta(1, first.page_bytes, &second)) continue;
    const uint64_t a = first.transaction, b = second.transaction;
    // Each transaction overwrites the older of the two, the even ones the first.
    if ((a != 0 || b != 0) && (a % 2 != 0 || (a > b ? a - b : b - a) != 1)) continue;
    return std::pair(first, second);
  }
  return Error(Code::kCorruption,
               "%s: expected an export file, found first pages that no export file has: `paddlebox "
               "export RUN_DIR --out FILE` makes one",
               path_.c_str());
}

Result<LmdbReader::State> LmdbReader::Newest() const {
  const Result<std::pair<State, State>> states = States();
  PBX_RETURN_IF_ERROR(states.status());
  const auto& [first, second] = states.value();
  return first.transaction > second.transaction ? first : second;
}

bool LmdbReader::Holds(const State& state) const {
  State now;
  return ReadMeta(state.transaction % 2, state.page_bytes, &now) && now == state;
}

Result<std::shared_ptr<const LmdbReader::Map>> LmdbReader::MapOf(const State& state) {
  const size_t wanted = state.pages * state.page_bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (map_ != nullptr && map_->bytes_ >= wanted) return map_;
  const size_t bytes = std::max(kLeastMap, 2 * wanted) / 65536 * 65536;
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (data == MAP_FAILED) {
    return Error(Code::kIOError, "%s: cannot map %zu bytes: %s", path_.c_str(), bytes,
                 strerror(errno));
  }
  std::shared_ptr<Map> map(new Map());
  map->data_ = static_cast<const char*>(data);
  map->bytes_ = bytes;
  (void)madvise(data, bytes, MADV_RANDOM);  // lookups are random
  Result<std::unique_ptr<MapGuard>> guard = MapGuard::Of(reinterpret_cast<uintptr_t>(data), bytes);
  PBX_RETURN_IF_ERROR(guard.status());
  map->guard_ = std::move(guard.value());
  map_ = std::move(map);
  return map_;
}

Status LmdbReader::Damaged(uint64_t page, const char* found) const {
  return Error(Code::kCorruption,
               "%s: page %" PRIu64
               " is damaged: %s; expected the file as it was written: export it again, or copy it "
               "again",
               path_.c_str(), page, found);
}

struct LmdbReader::Walk {
  const Map& map;
  const State& state;
  std::string_view prefix;
  const Visit& visit;

  const char* page(uint64_t number) const { return map.data_ + number * state.page_bytes; }
};

Status LmdbReader::ForEach(const Map& map, const State& state, std::string_view prefix,
                           const Visit& visit) const {
  if (state.root == kNoRoot) return Status::Ok();
  return Page({map, state, prefix, visit}, state.root, 0);
}

// Numbers are read from a page once, because a writer may change the page meanwhile.
Status LmdbReader::Page(const Walk& walk, uint64_t number, int depth) const {
  if (depth > kMostDepth) return Damaged(number, "it is below 32 levels");
  if (number < 2 || number >= walk.state.pages) return Damaged(number, "the file has no such page");
  const std::string_view page(walk.page(number), walk.state.page_bytes);
  const char* const data = page.data();
  const auto kind = At<uint16_t>(data, 10), lower = At<uint16_t>(data, 12);
  if (At<uint64_t>(data, 0) != number || (kind != kBranch && kind != kLeaf) ||
      lower < kHeader + 2 || lower > page.size()) {
    return Damaged(number, "it is no page of a tree");
  }
  const size_t count = (lower - kHeader) / 2;
  if (kind == kLeaf) return Leaf(walk, page, number, count);
  uint64_t before = 0;  // the child whose range may hold the prefix
  for (size_t i = 0; i <= count; ++i) {
    std::string_view key;
    uint64_t child = 0;
    if (i < count) {
      const size_t at = At<uint16_t>(data, kHeader + 2 * i);
      if (at < lower || at + kNodeHeader > page.size()) return Damaged(number, "a node leaves it");
      const size_t key_bytes = At<uint16_t>(data, at + 6);
      if (at + kNodeHeader + key_bytes > page.size()) return Damaged(number, "a key leaves it");
      if (i != 0) key = page.substr(at + kNodeHeader, key_bytes);
      child = At<uint32_t>(data, at) | uint64_t{At<uint16_t>(data, at + 4)} << 32;
    }
    // Child i - 1 has the keys up to this one.
    if (i != 0 && (i == count || key > walk.prefix)) {
      PBX_RETURN_IF_ERROR(Page(walk, before, depth + 1));
      if (i < count && !StartsWith(key, walk.prefix)) break;
    }
    before = child;
  }
  return Status::Ok();
}

Status LmdbReader::Leaf(const Walk& walk, std::string_view page, uint64_t number,
                        size_t count) const {
  const char* const data = page.data();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = At<uint16_t>(data, kHeader + 2 * i);
    if (at < kHeader || at + kNodeHeader > page.size()) return Damaged(number, "a node leaves it");
    const size_t key_bytes = At<uint16_t>(data, at + 6);
    if (at + kNodeHeader + key_bytes > page.size()) return Damaged(number, "a key leaves it");
    const std::string_view key = page.substr(at + kNodeHeader, key_bytes);
    if (!StartsWith(key, walk.prefix)) {
      if (key > walk.prefix) break;
      continue;
    }
    PBX_RETURN_IF_ERROR(Node(walk, page, at, key_bytes, key, number));
  }
  return Status::Ok();
}

Status LmdbReader::Node(const Walk& walk, std::string_view page, size_t at, size_t key_bytes,
                        std::string_view key, uint64_t number) const {
  const char* const data = page.data();
  const size_t size = At<uint32_t>(data, at), value = at + kNodeHeader + key_bytes;
  const auto flags = At<uint16_t>(data, at + 4);
  if (flags == 0) {
    if (value + size > page.size()) return Damaged(number, "a value leaves it");
    return walk.visit(key, {page.substr(value, size), false});
  }
  if (flags != kBig || value + 8 > page.size()) return Damaged(number, "a value leaves it");
  const auto first = At<uint64_t>(data, value);
  const uint64_t own = (kHeader + size + walk.state.page_bytes - 1) / walk.state.page_bytes;
  if (first < 2 || first >= walk.state.pages || own > walk.state.pages - first) {
    return Damaged(number, "a value leaves the file");
  }
  return walk.visit(key, {{walk.page(first) + kHeader, size}, true});
}

// ---- checks

// A tree of pages while it is checked.
struct LmdbReader::Tree {
  const State& state;
  const bool integers;                                  // of the keys
  std::vector<bool>* used;                              // by page
  const std::function<Status(std::string_view)> visit;  // gets the values; null: no one does
  std::string floor;                                    // of the next key
  bool inclusive = true;                                // whether that may be the next key

  // Whether a key follows those before it. Integers are little-endian.
  bool Follows(std::string_view key, bool may_be_equal) const {
    std::string low = floor, high(key);
    if (integers) std::reverse(low.begin(), low.end());
    if (integers) std::reverse(high.begin(), high.end());
    return low < high || (may_be_equal && low == high);
  }
};

Status LmdbReader::Take(std::vector<bool>* used, uint64_t first, uint64_t count) const {
  if (first < 2 || first >= used->size() || count > used->size() - first) {
    return Damaged(first, "the file ends before it");
  }
  for (uint64_t page = first; page < first + count; ++page) {
    if ((*used)[page]) return Damaged(page, "it is used twice");
    (*used)[page] = true;
  }
  return Status::Ok();
}

// separator: the key of the page in the one above; empty for the first page there.
Status LmdbReader::CheckPage(Tree* tree, uint64_t number, std::string_view separator,
                             int depth) const {
  if (depth > kMostDepth) return Damaged(number, "it is below 32 levels");
  PBX_RETURN_IF_ERROR(Take(tree->used, number, 1));
  const size_t bytes = tree->state.page_bytes;
  std::string own(bytes, '\0');
  const char* const data = own.data();
  if (pread(fd_, own.data(), bytes, static_cast<off_t>(number * bytes)) !=
      static_cast<ssize_t>(bytes)) {
    return Damaged(number, "it cannot be read");
  }
  const auto kind = At<uint16_t>(data, 10);
  const size_t lower = At<uint16_t>(data, 12), upper = At<uint16_t>(data, 14);
  if (At<uint64_t>(data, 0) != number || (kind != kBranch && kind != kLeaf) ||
      lower < kHeader + 2 || lower > upper || upper > bytes) {
    return Damaged(number, "it is no page of a tree");
  }
  if (!separator.empty()) {
    if (!tree->Follows(separator, false)) return Damaged(number, "keys are out of order");
    tree->floor = separator;
    tree->inclusive = true;
  }
  for (size_t i = 0; i < (lower - kHeader) / 2; ++i) {
    const size_t at = At<uint16_t>(data, kHeader + 2 * i);
    if (at < upper || at + kNodeHeader > bytes) return Damaged(number, "a node leaves it");
    const size_t key_bytes = At<uint16_t>(data, at + 6);
    const bool has_key = kind == kLeaf || i != 0;
    if (at + kNodeHeader + key_bytes > bytes ||
        (has_key && (key_bytes == 0 || key_bytes > kMostKey)) ||
        (has_key && tree->integers && key_bytes != sizeof(uint64_t))) {
      return Damaged(number, "a key leaves it");
    }
    if (kind == kLeaf) {
      PBX_RETURN_IF_ERROR(CheckLeaf(tree, own, number, at));
      continue;
    }
    const uint64_t child = At<uint32_t>(data, at) | uint64_t{At<uint16_t>(data, at + 4)} << 32;
    const std::string key(data + at + kNodeHeader, has_key ? key_bytes : 0);
    PBX_RETURN_IF_ERROR(CheckPage(tree, child, key, depth + 1));
  }
  return Status::Ok();
}

// at: of a node of a leaf, whose key is in the page.
Status LmdbReader::CheckLeaf(Tree* tree, std::string_view page, uint64_t number, size_t at) const {
  const char* const data = page.data();
  const size_t size = At<uint32_t>(data, at), key_bytes = At<uint16_t>(data, at + 6);
  const size_t value = at + kNodeHeader + key_bytes;
  const auto flags = At<uint16_t>(data, at + 4);
  const std::string_view key = page.substr(at + kNodeHeader, key_bytes);
  if (!tree->Follows(key, tree->inclusive)) return Damaged(number, "keys are out of order");
  tree->floor = key;
  tree->inclusive = false;
  if ((flags != 0 && flags != kBig) || value + (flags == 0 ? size : 8) > page.size()) {
    return Damaged(number, "a value leaves it");
  }
  if (flags == 0) return tree->visit ? tree->visit(page.substr(value, size)) : Status::Ok();
  const auto first = At<uint64_t>(data, value);
  const uint64_t page_bytes = tree->state.page_bytes;
  PBX_RETURN_IF_ERROR(Take(tree->used, first, (kHeader + size + page_bytes - 1) / page_bytes));
  if (!tree->visit) return Status::Ok();
  std::string own(size, '\0');
  if (pread(fd_, own.data(), size, static_cast<off_t>(first * page_bytes + kHeader)) !=
      static_cast<ssize_t>(size)) {
    return Damaged(first, "it cannot be read");
  }
  return tree->visit(own);
}

Status LmdbReader::Check(const State& state, bool free) const {
  std::vector<bool> used(std::max<uint64_t>(state.pages, 2));
  if (state.root != kNoRoot) {
    Tree tree{state, false, &used, nullptr, {}};
    PBX_RETURN_IF_ERROR(CheckPage(&tree, state.root, {}, 0));
  }
  return free && state.free != kNoRoot ? CheckFree(state, &used) : Status::Ok();
}

// A value of this tree is a list of free pages: their number, and their numbers.
Status LmdbReader::CheckFree(const State& state, std::vector<bool>* used) const {
  std::vector<uint64_t> listed;
  const auto add = [&](std::string_view list) {
    const char* const data = list.data();
    const uint64_t count = list.size() < 8 ? 0 : At<uint64_t>(data, 0);
    if (list.size() < 8 || count >= list.size() / 8) {
      return Damaged(0, "a list of free pages is longer than its value");
    }
    for (uint64_t i = 1; i <= count; ++i) listed.push_back(At<uint64_t>(data, 8 * i));
    return Status::Ok();
  };
  Tree tree{state, true, used, add, {}};
  PBX_RETURN_IF_ERROR(CheckPage(&tree, state.free, {}, 0));
  std::sort(listed.begin(), listed.end());
  for (size_t i = 0; i < listed.size(); ++i) {
    const uint64_t page = listed[i];
    if (page < 2 || (i != 0 && page == listed[i - 1]) || (page < used->size() && (*used)[page])) {
      return Damaged(page, "it is listed as free twice, or is in use");
    }
  }
  return Status::Ok();
}

Result<bool> LmdbReader::Lease(uint64_t generation) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (leases_.count(generation) == 0) {
    struct flock lock = LockOf(F_RDLCK, generation);
    if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) return false;
      return Error(Code::kIOError, "%s: cannot lock: %s", path_.c_str(), strerror(errno));
    }
  }
  ++leases_[generation];
  return true;
}

void LmdbReader::EndLease(uint64_t generation) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (--leases_[generation] != 0) return;
  leases_.erase(generation);
  struct flock lock = LockOf(F_UNLCK, generation);
  (void)fcntl(fd_, F_OFD_SETLK, &lock);
}

}  // namespace pbx
