// The bounds of the benchmarks: loops that show what the memory allows, without the work of a
// table. Compiled by peers/compiled.py with -O3 -march=native -fopenmp, -DWIDTH (floats gathered
// per row) and -DROW_FLOATS (floats read and written per row).
#include <omp.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kLine = 64;

// Prefetches every cache line that [at, at + bytes) may touch, into the second-level cache
// (ops/table/kernels.inl).
template <size_t kBytes>
inline void Prefetch(const char* at) {
  for (size_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(at + line, 0, 2);
  __builtin_prefetch(at + kBytes - 1, 0, 2);
}

// One cache line of 8 keys. 0 is an empty place.
struct alignas(kLine) Bucket {
  uint64_t keys[8];
};

inline size_t Home(uint64_t key, size_t buckets) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<size_t>((static_cast<Wide>(key) * buckets) >> 64);
}

inline bool Holds(const Bucket& bucket, uint64_t key) {
  bool here = false;
  for (const uint64_t held : bucket.keys) here |= held == key;
  return here;
}

}  // namespace

extern "C" {

// Memory on huge pages, set to zero; null if there is none.
void* HugeAllocate(size_t bytes) {
  const size_t size = (bytes + kHugePage) / kHugePage * kHugePage;
  void* at =
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) + kHugePage - 1) /
                                          kHugePage * kHugePage);
  madvise(aligned, size, MADV_HUGEPAGE);
  std::memset(aligned, 0, size);
  return aligned;
}

void HugeFree(void* at, size_t bytes) { munmap(at, (bytes + kHugePage) / kHugePage * kHugePage); }

// rows: (any, WIDTH). ids: (n), each >= 0. out: (n, WIDTH).
void Gather(const float* rows, const int32_t* ids, int64_t n, float* out, int64_t ahead,
            int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) {
      Prefetch<WIDTH * 4>(reinterpret_cast<const char*>(rows + int64_t{ids[i + ahead]} * WIDTH));
    }
    std::memcpy(out + i * WIDTH, rows + int64_t{ids[i]} * WIDTH, WIDTH * 4);
  }
}

// Adds 1 to each float of the rows. rows: (any, ROW_FLOATS). ids: (n), unique.
void Update(float* rows, const int32_t* ids, int64_t n, int64_t ahead, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) {
      Prefetch<ROW_FLOATS * 4>(
          reinterpret_cast<const char*>(rows + int64_t{ids[i + ahead]} * ROW_FLOATS));
    }
    float* row = rows + int64_t{ids[i]} * ROW_FLOATS;
    for (int j = 0; j < ROW_FLOATS; ++j) row[j] += 1.0f;
  }
}

// Like Update, but adds the gradients of each row's occurrences. This is what a push must read and
// write, without accessor and rule. grad: (segments, WIDTH). starts: (n + 1), indices of segments.
void UpdateMerged(float* rows, const int32_t* ids, const int32_t* starts, const int32_t* segments,
                  int64_t n, const float* grad, int64_t ahead, int threads) {
  constexpr int kBoth = WIDTH < ROW_FLOATS ? WIDTH : ROW_FLOATS;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    if (i + ahead < n) {
      Prefetch<ROW_FLOATS * 4>(
          reinterpret_cast<const char*>(rows + int64_t{ids[i + ahead]} * ROW_FLOATS));
    }
    float sum[ROW_FLOATS] = {};
    for (int32_t at = starts[i]; at < starts[i + 1]; ++at) {
      if (at + ahead < starts[n]) {
        const float* later = grad + int64_t{segments[at + ahead]} * WIDTH;
        Prefetch<WIDTH * 4>(reinterpret_cast<const char*>(later));
      }
      const float* one = grad + int64_t{segments[at]} * WIDTH;
      for (int j = 0; j < kBoth; ++j) sum[j] += one[j];
    }
    float* row = rows + int64_t{ids[i]} * ROW_FLOATS;
    for (int j = 0; j < ROW_FLOATS; ++j) row[j] += sum[j];
  }
}

// Places each of keys (n) in its bucket of buckets (count, zeroed), or in the next one if that is
// full. Returns false if all are full.
bool FillBuckets(Bucket* buckets, size_t count, const uint64_t* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    size_t at = Home(keys[i], count);
    size_t tries = 0;
    uint64_t* free = nullptr;
    while (free == nullptr) {
      for (uint64_t& held : buckets[at].keys) {
        if (held == 0) {
          free = &held;
          break;
        }
      }
      at = at + 1 == count ? 0 : at + 1;
      if (++tries > count) return false;
    }
    *free = keys[i];
  }
  return true;
}

// Counts the keys (n) that are in their home bucket; reads one cache line for each.
size_t ProbeBuckets(const Bucket* buckets, size_t count, const uint64_t* keys, size_t n,
                    size_t ahead) {
  size_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + ahead < n) __builtin_prefetch(buckets + Home(keys[i + ahead], count), 0, 2);
    found += Holds(buckets[Home(keys[i], count)], keys[i]) ? 1 : 0;
  }
  return found;
}

}  // extern "C"
