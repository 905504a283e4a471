// The histories of users: how long they are, and how much memory they take.
#include <malloc.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "check.h"
#include "library/users.h"

namespace {
size_t allocated = 0;  // bytes of the heap, with the allocator's 8 for each piece
}

void* operator new(size_t bytes) {
  void* const made = std::malloc(bytes);
  if (made == nullptr) throw std::bad_alloc();
  allocated += malloc_usable_size(made) + 8;
  return made;
}
void operator delete(void* made) noexcept {
  if (made != nullptr) allocated -= malloc_usable_size(made) + 8;
  std::free(made);
}
void operator delete(void* made, size_t /*bytes*/) noexcept { operator delete(made); }

namespace pbx {
namespace {

std::shared_ptr<const History> Of(size_t events) {
  auto history = std::make_shared<History>();
  history->times.assign(events, 1);
  history->features.assign(2 * events, 1.0f);
  return history;
}

TEST(the_place_of_the_cut_depends_on_the_count_alone) {
  const uint64_t expected[] = {0, 0, 0, 0, 0, 2, 2, 4, 4, 6};
  for (uint64_t count = 0; count < 10; ++count) CHECK_EQ(FirstSeen(count, 4), expected[count]);
  for (uint64_t most = 0; most < 40; ++most) {
    for (uint64_t count = 0; count < 300; ++count) {
      const uint64_t first = FirstSeen(count, most), seen = count - first;
      CHECK(first <= count);
      CHECK(seen <= most);
      CHECK(seen >= std::min(count, most / 2));
      CHECK(FirstSeen(count + 1, most) >= first);
    }
  }
  CHECK_EQ(FirstSeen(uint64_t{1} << 40, UINT64_MAX), 0u);
}

TEST(histories_drop_those_who_asked_longest_ago) {
  constexpr size_t kOf3 = 3 * (8 + 2 * 4);
  size_t fixed = 0;  // bytes of a user without events
  for (fixed = 1; fixed < 4096; ++fixed) {
    Histories one(fixed + kOf3);
    one.Put("a", Of(3));
    if (one.Get("a") != nullptr) break;
  }
  CHECK(fixed > 200);
  Histories histories(3 * (fixed + kOf3));
  histories.Put("a", Of(0));
  CHECK(histories.Get("a") == nullptr);  // nothing to keep
  for (const char* user : {"a", "b", "c"}) histories.Put(user, Of(3));
  CHECK(histories.Get("a") != nullptr);
  histories.Put("d", Of(3));
  CHECK(histories.Get("b") == nullptr);
  histories.Put("a", Of(2));
  CHECK_EQ(histories.Get("a")->times.size(), 2u);
  histories.Put("e", Of(3000));  // more than the budget
  CHECK(histories.Get("e") == nullptr);
  for (const char* user : {"a", "c", "d"}) CHECK(histories.Get(user) != nullptr);
  histories.Put("a", Of(0));
  CHECK(histories.Get("a") == nullptr);
}

TEST(the_budget_holds_for_names_and_objects_too) {
  constexpr size_t kBudget = 1 << 20;
  const size_t before = allocated;
  Histories histories(kBudget);
  size_t most = 0;
  for (size_t number = 0; number < 6000; ++number) {
    histories.Put(std::to_string(number) + std::string(number % 900, 'x'), Of(1));
    most = std::max(most, allocated - before);
  }
  CHECK(most > kBudget / 2);
  if (!test::kSanitized) CHECK(most < kBudget * 11 / 10);
  CHECK(histories.Get("5999" + std::string(5999 % 900, 'x')) != nullptr);
}

}  // namespace
}  // namespace pbx
