// The vector paths against the plain one: Parse() of feed_util.h compares them on every text.
#include <cmath>
#include <cstdio>

#include "base/hash.h"
#include "feed/feed_util.h"

using namespace pbx;
using namespace pbx::test;

namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }
  size_t Below(size_t bound) { return static_cast<size_t>(Next() % bound); }

 private:
  uint64_t state_;
};

std::string Digits(Random* random, size_t n) {
  std::string digits;
  for (size_t i = 0; i < n; ++i) digits += static_cast<char>('0' + random->Below(10));
  return digits;
}

FeedSchema Mixed() {
  return Schema(Format::kMultiSlot,
                {Label("y"), Sparse("a"), Dense("x", 3), Sparse("b"), Dense("z", 1)});
}

std::string Feasign(Random* random) {
  switch (random->Below(8)) {
    case 0: return "0";
    case 1: return std::to_string(random->Next());
    case 2: return "18446744073709551615";
    case 3: return "1844674407370955161" + Digits(random, 1);  // up to 4 beyond 2^64 - 1
    case 4: return Digits(random, 1 + random->Below(40));
    default: return Digits(random, 1 + random->Below(20));
  }
}

std::string Float(Random* random) {
  const char* const signs[] = {"", "", "-", "+"};
  std::string text = signs[random->Below(4)] + Digits(random, random->Below(12));
  if (random->Below(4) != 0) text += "." + Digits(random, random->Below(12));
  if (random->Below(16) == 0) text += "e-" + Digits(random, 2);
  return text;
}

std::string Slot(Random* random, std::string (*value)(Random*), size_t n) {
  std::string text = std::to_string(n);
  for (size_t i = 0; i < n; ++i) text += (random->Below(50) == 0 ? "  " : " ") + value(random);
  return text;
}

std::string MixedLine(Random* random) {
  return "1 " + std::to_string(random->Below(2)) + " " +
         Slot(random, Feasign, 1 + random->Below(7)) + " " + Slot(random, Float, 3) + " " +
         Slot(random, Feasign, 1 + random->Below(3)) + "\t" + Slot(random, Float, 1);
}

// One byte of some lines is another.
void Damage(Random* random, std::string* line) {
  constexpr char kBytes[] = "0179 \t-+.:eEafg/\r\0\xff";
  if (random->Below(4) != 0) return;
  (*line)[random->Below(line->size())] = kBytes[random->Below(sizeof(kBytes) - 1)];
}

}  // namespace

TEST(every_path_gives_the_same_multislot) {
  Random random(1);
  size_t good = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) {
      std::string line = MixedLine(&random);
      Damage(&random, &line);
      text += line + (random.Below(4) == 0 ? "\r\n" : "\n");
    }
    FeedSchema schema = Mixed();
    schema.per_slot_keys = round % 2 == 1;
    if (round % 4 == 3) schema.key_slots.assign(schema.sparse_slots(), 0);
    good += Parse(schema, text).instances;
  }
  CHECK(good > 1000);  // not all of it is malformed
}

TEST(every_path_gives_the_same_criteo) {
  std::vector<SlotSpec> slots = {Label("label")};
  for (int i = 1; i <= 13; ++i) {
    slots.push_back({"d" + std::to_string(i), SlotKind::kDense, 1, "I" + std::to_string(i)});
    slots.push_back(Sparse("I" + std::to_string(i)));
  }
  for (int i = 1; i <= 26; ++i) slots.push_back(Sparse("C" + std::to_string(i)));
  const FeedSchema schema = Schema(Format::kCriteoTsv, slots);
  Random random(2);
  size_t good = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 10; ++i) {
      std::string line = std::to_string(random.Below(2));
      for (int c = 0; c < 13; ++c) {
        line += '\t';
        if (random.Below(8) == 0) line += '-';
        if (line.back() == '-' || random.Below(5) != 0)
          line += Digits(&random, 1 + random.Below(18));
      }
      for (int c = 0; c < 26; ++c) {
        char token[17] = "";
        if (random.Below(5) != 0) {
          std::snprintf(token, sizeof(token), random.Below(2) != 0 ? "%llx" : "%llX",
                        static_cast<unsigned long long>(random.Next() >> random.Below(64)));
        }
        line += std::string("\t") + token;
      }
      Damage(&random, &line);
      text += line + "\n";
    }
    good += Parse(schema, text).instances;
  }
  CHECK(good > 1000);
}

TEST(a_decimal_is_the_float_that_strtod_rounds_to) {
  const FeedSchema schema = Schema(Format::kMultiSlot, {Label("y"), Dense("x", 1)});
  Random random(3);
  std::string text;
  std::vector<float> expected;
  for (int i = 0; i < 20000; ++i) {
    std::string number = random.Below(2) != 0 ? "-" : "";
    number += Digits(&random, 1 + random.Below(8)) + "." + Digits(&random, random.Below(14));
    text += "1 0 1 " + number + "\n";
    expected.push_back(static_cast<float>(std::strtod(number.c_str(), nullptr)));
  }
  CHECK(SameBytes(Parse(schema, text).dense, expected));
}

TEST(lines_of_every_length_around_a_vector_are_the_same) {
  std::string text;
  for (size_t blanks = 0; blanks < 200; ++blanks) {
    text += "1 1 2 7 " + std::string(blanks, ' ') + "8 3 .5 -1 2. 1 " + std::string(blanks, '0') +
            "9 1 0\n";
  }
  const ParsedChunk chunk = Parse(Mixed(), text);
  CHECK_EQ(chunk.instances, 200u);
  for (size_t i = 0; i < 200; ++i) CHECK_EQ(chunk.feasigns[3 * i + 2], 9u);
}

TEST(a_path_that_is_not_there_is_refused) {
  CHECK_CODE(feed::SelectTokenKernels("sse9"), Code::kInvalidArgument);
  CHECK_OK(feed::SelectTokenKernels("plain"));
  CHECK(feed::ActiveTokenKernels() == nullptr);
  CHECK_OK(feed::SelectTokenKernels("auto"));
}
