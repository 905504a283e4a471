// Both ways of transposing, of every number of columns and rows around a tile's.
#include "feed/columns/transpose.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "feed/text/tokens.h"

using namespace pbx;

namespace {

// Columns that each hold just their rows, so that the address sanitizer sees a read beyond them.
template <typename T>
struct Columns {
  Columns(size_t count, size_t n) : rows(n) {
    for (size_t c = 0; c < count; ++c) {
      held.emplace_back(new T[n]);
      for (size_t row = 0; row < n; ++row) {
        held[c][row] = static_cast<T>(Mix(c * 1000 + row) & 0x7f7fffff7f7fffffULL) | 1;
      }
      pointers.push_back(held[c].get());
    }
  }

  size_t rows;
  std::vector<std::unique_ptr<T[]>> held;
  std::vector<const T*> pointers;
};

bool Transposed(const Columns<uint64_t>& from, uint64_t* rows) {
  return feed::TransposeIds(from.pointers.data(), from.pointers.size(), from.rows, rows);
}

bool Transposed(const Columns<uint32_t>& from, uint32_t* rows) {
  const size_t values = from.pointers.size() * from.rows;
  std::unique_ptr<float[]> floats(new float[values]);
  const bool taken =
      feed::TransposeFloats(from.pointers.data(), from.pointers.size(), from.rows, floats.get());
  if (values > 0) std::memcpy(rows, floats.get(), values * sizeof(float));
  return taken;
}

// Calls visit(count, n) on each path.
template <typename Visit>
void EachShape(Visit visit) {
  for (const char* path : {"plain", "auto"}) {
    CHECK_OK(feed::SelectTokenKernels(path));
    for (size_t count = 0; count <= 20; ++count) {
      for (const size_t n : {0u, 1u, 3u, 4u, 7u, 8u, 9u, 17u}) visit(count, n);
    }
  }
}

template <typename T>
void CheckRows() {
  EachShape([](size_t count, size_t n) {
    const Columns<T> from(count, n);
    std::unique_ptr<T[]> rows(new T[count * n]);
    CHECK(Transposed(from, rows.get()));
    size_t wrong = 0;
    for (size_t row = 0; row < n; ++row) {
      for (size_t c = 0; c < count; ++c) wrong += rows[row * count + c] != from.held[c][row];
    }
    CHECK_EQ(wrong, size_t{0});
  });
}

// One value that is not taken, at any place, is found.
template <typename T>
void CheckFound(T bad) {
  EachShape([bad](size_t count, size_t n) {
    Columns<T> from(count, n);
    std::unique_ptr<T[]> rows(new T[count * n]);
    size_t missed = 0;
    for (size_t c = 0; c < count; ++c) {
      for (size_t row = 0; row < n; ++row) {
        const T good = from.held[c][row];
        from.held[c][row] = bad;
        missed += Transposed(from, rows.get());
        from.held[c][row] = good;
      }
    }
    CHECK_EQ(missed, size_t{0});
  });
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

TEST(a_row_is_the_ids_of_each_column) { CheckRows<uint64_t>(); }

TEST(a_row_is_the_bits_of_each_column_of_floats) { CheckRows<uint32_t>(); }

TEST(a_zero_among_ids_is_found_wherever_it_is) { CheckFound<uint64_t>(0); }

TEST(ids_of_any_bits_but_none_are_taken) {
  for (const uint64_t id : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    EachShape([id](size_t count, size_t n) {
      Columns<uint64_t> from(count, n);
      std::unique_ptr<uint64_t[]> rows(new uint64_t[count * n]);
      if (count * n > 0) from.held[count / 2][n / 2] = id;
      CHECK(Transposed(from, rows.get()));
    });
  }
}

TEST(a_float_that_is_not_finite_is_found_wherever_it_is) {
  using Limits = std::numeric_limits<float>;
  for (const float bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    CheckFound<uint32_t>(BitsOf(bad));
  }
}

TEST(the_largest_floats_and_signed_zeros_are_taken) {
  using Limits = std::numeric_limits<float>;
  for (const float good : {Limits::max(), Limits::lowest(), -0.0f, Limits::denorm_min()}) {
    EachShape([good](size_t count, size_t n) {
      Columns<uint32_t> from(count, n);
      std::unique_ptr<uint32_t[]> rows(new uint32_t[count * n]);
      if (count * n > 0) from.held[count - 1][n - 1] = BitsOf(good);
      CHECK(Transposed(from, rows.get()));
    });
  }
}

TEST(zeros_are_dropped_wherever_they_are) {
  for (const char* path : {"plain", "auto"}) {
    CHECK_OK(feed::SelectTokenKernels(path));
    for (size_t n = 0; n <= 40; ++n) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        std::unique_ptr<uint64_t[]> ids(new uint64_t[n]);
        std::unique_ptr<uint32_t[]> lengths(new uint32_t[n]);
        std::vector<uint64_t> kept;
        for (size_t i = 0; i < n; ++i) {
          ids[i] = Mix(seed * 100 + i) % 20 < seed ? 0 : i + 1;
          if (ids[i] != 0) kept.push_back(ids[i]);
        }
        const std::vector<uint64_t> before(ids.get(), ids.get() + n);
        CHECK_EQ(feed::DropZeros(ids.get(), n, lengths.get()), kept.size());
        CHECK(std::equal(kept.begin(), kept.end(), ids.get()));
        for (size_t i = 0; i < n; ++i) CHECK_EQ(lengths[i], before[i] != 0 ? 1u : 0u);
      }
    }
  }
}
