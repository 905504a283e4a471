#include "serve/vector_index.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "base/crc32c.h"
#include "base/vector_clones.h"

namespace pbx {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMostWidth = 1 << 20;
constexpr char kMagic[8] = {'P', 'B', 'X', 'V', 'E', 'C', 'T', '1'};

// The last bytes of a file.
struct Trailer {
  uint64_t version;
  uint64_t rows;
  uint32_t width;
  uint32_t crc;  // of the blocks
  uint32_t zero[7];
  uint32_t trailer_crc;  // of the bytes before it
  char magic[8];
};
static_assert(sizeof(Trailer) == 64);
constexpr size_t kTrailerCrcAt = offsetof(Trailer, trailer_crc);

size_t BlocksOf(uint64_t rows) { return (rows + kIndexBlock - 1) / kIndexBlock; }

// Rounds to the nearest bfloat16, ties to even.
uint16_t ToBfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

bool StaysFinite(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (bits & 0x7fffffff) < 0x7f7f8000;  // what rounds to the largest bfloat16, or to less
}

typedef float Floats __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef int32_t Marks __attribute__((vector_size(32)));
constexpr size_t kLanes = 8, kPairs = kIndexBlock / (2 * kLanes);

// The products of a query with the vectors of a block, and whether one is above `least`. block: (D,
// kIndexBlock) bfloat16. Each product is a sum of its own, in the order of columns.
//
// A word has the values of two neighbours, so a shift and a mask make floats of 16 values. To widen
// them in their order takes four shuffles for 8 values; with vectors of 64 bytes, g++ 12 keeps the
// sums in memory if the processor has no AVX-512, and a search reads a fifth of what memory gives.
PBX_VECTOR_CLONES
bool Multiply(const uint16_t* block, const float* query, size_t width, float least,
              float* products) {
  Floats even[kPairs] = {}, odd[kPairs] = {};
  for (size_t column = 0; column < width; ++column) {
    const float factor = query[column];
    for (size_t pair = 0; pair < kPairs; ++pair) {
      Words words;
      std::memcpy(&words, block + column * kIndexBlock + pair * 2 * kLanes, sizeof(words));
      even[pair] += reinterpret_cast<Floats>(words << 16) * factor;
      odd[pair] += reinterpret_cast<Floats>(words & 0xffff0000u) * factor;
    }
  }
  Marks above = {};
  for (size_t pair = 0; pair < kPairs; ++pair) above |= (even[pair] > least) | (odd[pair] > least);
  int32_t any = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) any |= above[lane];
  for (size_t pair = 0; any != 0 && pair < kPairs; ++pair) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      products[(pair * kLanes + lane) * 2] = even[pair][lane];
      products[(pair * kLanes + lane) * 2 + 1] = odd[pair][lane];
    }
  }
  return any != 0;
}

struct Found {
  float product;
  uint64_t number;
  bool operator<(const Found& other) const {  // better
    if (product != other.product) return product > other.product;
    return number < other.number;
  }
};

// The K best of the vectors that were offered in the order of their numbers.
class Best {
 public:
  explicit Best(size_t k) : k_(k) { found_.reserve(k); }
  // What a later vector must exceed.
  float least() const {
    const bool full = found_.size() == k_;
    return full ? found_.front().product : -std::numeric_limits<float>::infinity();
  }
  void Offer(float product, uint64_t number) {
    if (found_.size() == k_) {
      if (!(product > found_.front().product)) return;
      std::pop_heap(found_.begin(), found_.end());
      found_.pop_back();
    }
    found_.push_back({product, number});
    std::push_heap(found_.begin(), found_.end());
  }
  const std::vector<Found>& found() const { return found_; }

 private:
  const size_t k_;
  std::vector<Found> found_;  // a heap, the worst first
};

constexpr size_t kTogether = 16;     // queries that share one read of a block
constexpr size_t kLeastBlocks = 64;  // of a thread

}  // namespace

VectorIndexWriter::VectorIndexWriter(std::unique_ptr<AtomicFileWriter> file, size_t width,
                                     uint64_t version)
    : file_(std::move(file)), width_(width), version_(version), block_(width * kIndexBlock) {}

Result<std::unique_ptr<VectorIndexWriter>> VectorIndexWriter::Create(const std::string& path,
                                                                     size_t width,
                                                                     uint64_t version) {
  if (width == 0 || width > kMostWidth) {
    return Error(Code::kInvalidArgument, "%s: vectors of %zu floats, expected 1 to %zu",
                 path.c_str(), width, kMostWidth);
  }
  auto file = AtomicFileWriter::Create(path);
  PBX_RETURN_IF_ERROR(file.status());
  return std::unique_ptr<VectorIndexWriter>(
      new VectorIndexWriter(std::move(file.value()), width, version));
}

Status VectorIndexWriter::Append(const float* vectors, size_t n) {
  for (size_t i = 0; i < n * width_; ++i) {
    if (StaysFinite(vectors[i])) continue;
    return Error(Code::kInvalidArgument,
                 "vector %zu has %g in column %zu, expected a finite number below 3.39e38",
                 static_cast<size_t>(rows_) + i / width_, static_cast<double>(vectors[i]),
                 i % width_);
  }
  for (size_t i = 0; i < n; ++i) {
    const size_t row = rows_ % kIndexBlock;
    for (size_t column = 0; column < width_; ++column) {
      block_[column * kIndexBlock + row] = ToBfloat(vectors[i * width_ + column]);
    }
    ++rows_;
    if (row + 1 == kIndexBlock) PBX_RETURN_IF_ERROR(WriteBlock());
  }
  return Status::Ok();
}

Status VectorIndexWriter::WriteBlock() {
  const size_t bytes = block_.size() * sizeof(uint16_t);
  crc_ = Crc32c(block_.data(), bytes, crc_);
  PBX_RETURN_IF_ERROR(file_->Append(reinterpret_cast<const char*>(block_.data()), bytes));
  std::fill(block_.begin(), block_.end(), uint16_t{0});
  return Status::Ok();
}

Status VectorIndexWriter::Finish() {
  if (rows_ % kIndexBlock != 0) PBX_RETURN_IF_ERROR(WriteBlock());
  Trailer trailer = {};
  trailer.version = version_;
  trailer.rows = rows_;
  trailer.width = static_cast<uint32_t>(width_);
  trailer.crc = crc_;
  trailer.trailer_crc = Crc32c(&trailer, kTrailerCrcAt);
  std::memcpy(trailer.magic, kMagic, sizeof(kMagic));
  PBX_RETURN_IF_ERROR(file_->Append(reinterpret_cast<const char*>(&trailer), sizeof(trailer)));
  return file_->Commit();
}

Result<std::unique_ptr<VectorIndex>> VectorIndex::Open(const std::string& path) {
  std::unique_ptr<VectorIndex> index(new VectorIndex());
  PBX_RETURN_IF_ERROR(index->Map(path));
  PBX_RETURN_IF_ERROR(index->ReadTrailer());
  return index;
}

VectorIndex::~VectorIndex() {
  guard_.reset();
  if (bytes_ != nullptr) ::munmap(const_cast<char*>(bytes_), size_);
}

Status VectorIndex::Map(const std::string& path) {
  path_ = path;
  auto file = RandomAccessFile::Open(path);
  PBX_RETURN_IF_ERROR(file.status());
  size_ = file.value()->size();
  if (size_ < sizeof(Trailer)) {
    return Error(Code::kCorruption, "%s: has %zu bytes, expected an index, which has at least %zu",
                 path_.c_str(), size_, sizeof(Trailer));
  }
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.value()->fd(), 0);
  if (map == MAP_FAILED) {
    return Error(Code::kIOError, "%s: cannot be mapped: %s", path_.c_str(), std::strerror(errno));
  }
  bytes_ = static_cast<const char*>(map);
  ::madvise(map, size_, MADV_WILLNEED);
  auto guard = MapGuard::Of(reinterpret_cast<uintptr_t>(map), (size_ + kPage - 1) / kPage * kPage);
  PBX_RETURN_IF_ERROR(guard.status());
  guard_ = std::move(guard.value());
  return Status::Ok();
}

Status VectorIndex::ReadTrailer() {
  Trailer trailer;
  const size_t data = size_ - sizeof(trailer);
  std::memcpy(&trailer, bytes_ + data, sizeof(trailer));
  if (std::memcmp(trailer.magic, kMagic, sizeof(kMagic)) != 0 ||
      trailer.trailer_crc != Crc32c(&trailer, kTrailerCrcAt)) {
    return Error(Code::kCorruption,
                 "%s: expected an index of vectors, whose last 64 bytes are its trailer, found "
                 "other bytes: the file is cut short, damaged, or no index. Write it again",
                 path_.c_str());
  }
  rows_ = trailer.rows;
  width_ = trailer.width;
  version_ = trailer.version;
  const size_t block_bytes = width_ * kIndexBlock * sizeof(uint16_t);
  const bool fits = width_ != 0 && width_ <= kMostWidth && data % block_bytes == 0 &&
                    data / block_bytes == BlocksOf(rows_);
  const uint32_t crc = fits ? Crc32c(bytes_, data) : 0;
  if (!fits || crc != trailer.crc) {
    return Error(Code::kCorruption,
                 "%s: expected %llu vectors of %zu floats with CRC32C 0x%08x, found %zu bytes with "
                 "0x%08x: write it again",
                 path_.c_str(), static_cast<unsigned long long>(rows_), width_, trailer.crc, data,
                 crc);
  }
  return Status::Ok();
}

Status VectorIndex::Search(const float* queries, size_t q, size_t k, ThreadPool* pool,
                           uint64_t* numbers, float* products) const {
  const auto* blocks = reinterpret_cast<const uint16_t*>(bytes_);
  const size_t count = BlocksOf(rows_), block_values = width_ * kIndexBlock;
  const size_t tasks =
      std::clamp(count / kLeastBlocks, size_t{1}, static_cast<size_t>(pool->threads()));
  for (size_t first = 0; first < q; first += kTogether) {
    const size_t together = std::min(kTogether, q - first);
    std::vector<std::vector<Best>> best(tasks, std::vector<Best>(together, Best(k)));
    pool->ParallelFor(tasks, [&](size_t task) {
      float made[kIndexBlock];
      for (size_t b = count * task / tasks; b < count * (task + 1) / tasks; ++b) {
        const size_t valid = std::min(kIndexBlock, static_cast<size_t>(rows_) - b * kIndexBlock);
        for (size_t i = 0; i < together; ++i) {
          Best& mine = best[task][i];
          const float* query = queries + (first + i) * width_;
          if (!Multiply(blocks + b * block_values, query, width_, mine.least(), made)) continue;
          for (size_t row = 0; row < valid; ++row) mine.Offer(made[row], b * kIndexBlock + row);
        }
      }
    });
    for (size_t i = 0; i < together; ++i) {
      std::vector<Found> all;
      for (const std::vector<Best>& part : best) {
        all.insert(all.end(), part[i].found().begin(), part[i].found().end());
      }
      std::sort(all.begin(), all.end());
      for (size_t place = 0; place < k; ++place) {
        numbers[(first + i) * k + place] = all[place].number;
        products[(first + i) * k + place] = all[place].product;
      }
    }
  }
  if (guard_->shrunk()) {
    return Error(Code::kCorruption, "%s: another process has cut the file short: write it again",
                 path_.c_str());
  }
  return Status::Ok();
}

}  // namespace pbx
