// Any Arrow batch that keeps what the interface promises (buffers as long as their lengths say,
// valid strings) and nothing else: list offsets, values and nulls are whatever comes. It parses to
// columns that fit each other, the same when it is cut in two, or it is refused.
//
// The input is read as: options, rows, cut, then per column its type, offset and null handling, and
// its values. Buffers have exactly their size, so that a sanitizer sees a read beyond them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>

#include "base/hash.h"
#include "feed/columns/columns.h"
#include "require.h"
#include "seeds.h"

namespace {

using pbx::FeedSchema;
using pbx::ParsedChunk;
using pbx::SlotKind;
using pbx::Status;

// The input, and zeros behind it.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t Byte() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }
  int64_t Below(int64_t n) { return Byte() % n; }

  std::unique_ptr<char[]> Block(size_t bytes) {
    std::unique_ptr<char[]> block(new char[bytes]);
    const size_t there = std::min(bytes, size_ - at_);
    if (there != 0) std::memcpy(block.get(), data_ + at_, there);
    if (there < bytes) std::memset(block.get() + there, 0, bytes - there);
    at_ += there;
    return block;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

struct Made {
  std::string format;
  ArrowSchema type = {};
  ArrowArray array = {};
  ArrowSchema* type_child = nullptr;
  ArrowArray* array_child = nullptr;
  std::deque<std::unique_ptr<char[]>> held;
  const void* buffers[3] = {nullptr, nullptr, nullptr};
};

class Batch {
 public:
  explicit Batch(Input* input) : input_(*input) {}

  // A column of strings for a tag, or of ids in another type; log keys mostly are some.
  void AddTag(const char* name, int64_t rows, const char* leaves, bool log_keys) {
    log_keys_ = log_keys;
    Add(name, rows, leaves, "0000", -1);
    log_keys_ = false;
  }

  // A column of at least `rows` rows. leaves: types that its slot can take, one of which it has
  // most often; now and then any. lists: the same for the kinds of list; a list has `steady`
  // values each, or any number if that is negative.
  void Add(const char* name, int64_t rows, const char* leaves, const char* lists, int steady) {
    const uint8_t choice = input_.Byte();
    const bool fits = choice < 240;
    const char* const all = "lLiIfgcCsSbuzUZn";
    leaves_ = fits ? leaves : all;
    steady_ = fits ? steady : -1;
    Made* made = Value(name, rows, fits ? lists[choice & 3] - '0' : choice & 3);
    types_.push_back(&made->type);
    arrays_.push_back(&made->array);
  }

  Status Parse(const FeedSchema& schema, int64_t begin, int64_t end, ParsedChunk* out) {
    ArrowSchema type = {};
    type.format = "+s";
    type.name = "";
    type.n_children = static_cast<int64_t>(types_.size());
    type.children = types_.data();
    ArrowArray array = {};
    array.offset = begin;
    array.length = end - begin;
    array.n_children = type.n_children;
    array.children = arrays_.data();
    return pbx::ParseColumns(schema, {{&type, &array}}, out);
  }

 private:
  // list: 0 a leaf, 1 list, 2 large_list, 3 fixed_size_list
  Made* Value(const char* name, int64_t length, int list) {
    Made* made = &made_.emplace_back();
    made->type.name = name;
    made->array.offset = input_.Below(4);
    made->array.length = length + input_.Below(3);
    const int64_t held = made->array.offset + made->array.length;
    Nulls(made, held);
    if (list == 0) {
      made->format =
          leaves_[static_cast<size_t>(input_.Below(static_cast<int64_t>(std::strlen(leaves_))))];
      Leaf(made, held);
    } else {
      List(made, name, held, list);
    }
    made->type.format = made->format.c_str();
    made->array.buffers = made->buffers;
    return made;
  }

  void Nulls(Made* made, int64_t held) {
    const uint8_t choice = input_.Byte();
    made->array.null_count = (choice & 1) != 0 ? -1 : 0;
    if ((choice & 1) == 0) return;
    if ((choice & 2) != 0) made->buffers[0] = Hold(made, static_cast<size_t>(held + 7) / 8);
  }

  void Leaf(Made* made, int64_t held) {
    const size_t n = static_cast<size_t>(held);
    const char format = made->format[0];
    made->array.n_buffers = 2;
    if (std::strchr("uzUZ", format) != nullptr) {
      made->array.n_buffers = 3;
      Strings(made, n, format == 'U' || format == 'Z');
      return;
    }
    const size_t bits = format == 'b'                           ? 1
                        : std::strchr("cC", format) != nullptr  ? 8
                        : std::strchr("sS", format) != nullptr  ? 16
                        : std::strchr("iIf", format) != nullptr ? 32
                        : format == 'n'                         ? 0
                                                                : 64;
    if (format == 'n') {
      made->array.n_buffers = 0;
      return;
    }
    made->buffers[1] = Hold(made, (n * bits + 7) / 8);
  }

  // Valid: the interface does not tell the size of the bytes.
  void Strings(Made* made, size_t n, bool large) {
    const size_t width = large ? 8 : 4;
    std::unique_ptr<char[]> offsets(new char[(n + 1) * width]);
    int64_t at = input_.Below(3);
    for (size_t i = 0; i <= n; ++i) {
      if (large) std::memcpy(offsets.get() + i * width, &at, width);
      const int32_t narrow = static_cast<int32_t>(at);
      if (!large) std::memcpy(offsets.get() + i * width, &narrow, width);
      if (i < n) at += log_keys_ && input_.Below(8) != 0 ? 32 : input_.Below(6);
    }
    made->buffers[1] = offsets.get();
    made->held.push_back(std::move(offsets));
    made->buffers[2] = Hold(made, static_cast<size_t>(at));
    if (!log_keys_) return;
    char* const text = made->held.back().get();
    for (int64_t i = 0; i < at; ++i) {
      const uint8_t byte = static_cast<uint8_t>(text[i]);
      if (byte < 250) text[i] = "0123456789abcdef"[byte & 15];
    }
  }

  void List(Made* made, const char* name, int64_t held, int list) {
    const uint8_t choice = input_.Byte();
    const int64_t each = steady_ < 0 ? choice & 3 : steady_;
    made->format = list == 1 ? "+l" : list == 2 ? "+L" : "+w:" + std::to_string(each);
    made->array.n_buffers = list == 3 ? 1 : 2;
    if (list != 3) {
      const size_t width = list == 2 ? 8 : 4, n = static_cast<size_t>(held) + 1;
      made->buffers[1] = Hold(made, n * width);
      if (choice < 200) {  // offsets that ascend; otherwise they are what comes
        char* const offsets = made->held.back().get();
        int64_t at = 0;
        for (size_t i = 0; i < n; ++i) {
          const int64_t step = steady_ < 0 ? static_cast<uint8_t>(offsets[i * width]) % 4 : steady_;
          const int32_t narrow = static_cast<int32_t>(at);
          std::memcpy(offsets + i * width, list == 2 ? static_cast<const void*>(&at) : &narrow,
                      width);
          at += step;
        }
      }
    }
    const int64_t items = list == 3 ? held * each : held * 2 + input_.Below(64);
    Made* child = Value(name, items, 0);
    made->type.n_children = made->array.n_children = 1;
    made->type_child = &child->type;
    made->array_child = &child->array;
    made->type.children = &made->type_child;
    made->array.children = &made->array_child;
  }

  const void* Hold(Made* made, size_t bytes) {
    made->held.push_back(input_.Block(bytes));
    return made->held.back().get();
  }

  Input& input_;
  const char* leaves_ = "";
  int steady_ = -1;
  bool log_keys_ = false;
  std::deque<Made> made_;
  std::vector<ArrowSchema*> types_;
  std::vector<ArrowArray*> arrays_;
};

FeedSchema SchemaOf(uint8_t options) {
  FeedSchema schema;
  schema.format = pbx::Format::kColumns;
  schema.per_slot_keys = (options & 1) != 0;
  schema.slots = {{"y", SlotKind::kLabel, 1, ""},
                  {"d", SlotKind::kDense, 1, ""},
                  {"v", SlotKind::kDense, 2, ""},
                  {"u", SlotKind::kSparse, 1, ""},
                  {"w", SlotKind::kSparse, 1, ""}};
  schema.slots[4].transform.hash = (options & 2) != 0;
  if ((options & 4) != 0) {
    schema.slots[1].transform.has_default = schema.slots[2].transform.has_default = true;
    schema.slots[1].transform.log1p = true;
    schema.slots[3].transform.max_length = 2;
    schema.slots[3].transform.has_default = true;
    schema.slots[3].transform.default_feasign = 9;
    pbx::SlotSpec cross = {"x", SlotKind::kSparse, 1, ""};
    cross.transform.cross = {"u", "w"};
    schema.slots.push_back(cross);
    pbx::SlotSpec bucket = {"b", SlotKind::kSparse, 1, ""};
    bucket.transform.bucket_of = "d";
    bucket.transform.boundaries = {1, 3};
    schema.slots.push_back(bucket);
    pbx::SlotSpec exact = {"e", SlotKind::kDense, pbx::kExactFloats, ""};
    exact.transform.exact_of = "v";
    schema.slots.push_back(exact);
  }
  schema.tags.ins_id = (options & 8) != 0;
  schema.tags.content = (options & 16) != 0;
  schema.tags.log_key = (options & 32) != 0;
  schema.tags.time = (options & 64) != 0;
  return schema;
}

void Check(const FeedSchema& schema, const ParsedChunk& chunk, int64_t rows) {
  uint64_t total = 0;
  for (const uint32_t length : chunk.lengths) total += length;
  REQUIRE(total == chunk.feasigns.size());
  REQUIRE(chunk.lengths.size() == chunk.instances * schema.sparse_slots());
  REQUIRE(chunk.labels.size() == chunk.instances);
  REQUIRE(chunk.dense.size() == chunk.instances * schema.dense_width());
  REQUIRE(chunk.lines == static_cast<uint64_t>(rows));
  REQUIRE(chunk.lines == chunk.instances + chunk.bad_lines);
  REQUIRE(chunk.first_bad.size() == std::min<uint64_t>(chunk.bad_lines, 8));
  REQUIRE(chunk.instances == 0 || chunk.tags.spec().has_ids() == schema.tags.has_ids());
  REQUIRE(chunk.tags.ins_ids.size() == (schema.tags.has_ids() ? chunk.instances : 0));
  REQUIRE(chunk.tags.contents.size() == (schema.tags.content ? chunk.instances : 0));
  REQUIRE(chunk.tags.log_keys.size() == (schema.tags.log_key ? chunk.instances : 0));
  REQUIRE(chunk.tags.times.size() == (schema.tags.time ? chunk.instances : 0));
  for (const int64_t time : chunk.tags.times) REQUIRE(time >= 0);
  for (size_t i = 0; i < chunk.tags.ins_ids.size(); ++i) REQUIRE(!chunk.tags.ins_ids[i].empty());
  for (const uint64_t feasign : chunk.feasigns) REQUIRE(feasign != 0);
  for (const float label : chunk.labels) REQUIRE(label >= 0 && label <= 1);
  for (const float value : chunk.dense) REQUIRE(value - value == 0);  // finite
}

template <typename T>
void RequireJoined(const std::vector<T>& whole, const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(whole.size() == a.size() + b.size());
  REQUIRE(a.empty() || std::memcmp(whole.data(), a.data(), a.size() * sizeof(T)) == 0);
  REQUIRE(b.empty() || std::memcmp(whole.data() + a.size(), b.data(), b.size() * sizeof(T)) == 0);
}

void RequireJoined(const pbx::StringColumn& whole, const pbx::StringColumn& a,
                   const pbx::StringColumn& b) {
  REQUIRE(whole.size() == a.size() + b.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    REQUIRE(whole[i] == (i < a.size() ? a[i] : b[i - a.size()]));
  }
}

void RequireJoined(const pbx::TagColumns& whole, const pbx::TagColumns& a,
                   const pbx::TagColumns& b) {
  RequireJoined(whole.ins_ids, a.ins_ids, b.ins_ids);
  RequireJoined(whole.contents, a.contents, b.contents);
  RequireJoined(whole.times, a.times, b.times);
  REQUIRE(whole.log_keys.size() == a.log_keys.size() + b.log_keys.size());
  for (size_t i = 0; i < whole.log_keys.size(); ++i) {
    const pbx::LogKey& one = whole.log_keys[i];
    const size_t split = a.log_keys.size();
    const pbx::LogKey& other = i < split ? a.log_keys[i] : b.log_keys[i - split];
    REQUIRE(one.search_id == other.search_id && one.cmatch == other.cmatch &&
            one.rank == other.rank);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const FeedSchema schema = SchemaOf(input.Byte());
  const int64_t rows = input.Byte(), cut = input.Below(rows + 1);
  Batch batch(&input);
  batch.Add("y", rows, "bbbf", "0000", -1);
  batch.Add("d", rows, "fgibc", "0001", 1);
  batch.Add("v", rows, "fgsb", "3312", 2);
  batch.Add("u", rows, "LlICi", "0123", -1);
  const bool hash = schema.slots[4].transform.hash;
  batch.Add("w", rows, hash ? "uUzZ" : "LlSs", "0123", -1);
  if (schema.tags.ins_id) batch.AddTag("ins_id", rows, "uUlzCiLZ", false);
  if (schema.tags.content) batch.AddTag("content", rows, "uUzZ", false);
  if (schema.tags.log_key) batch.AddTag("logkey", rows, "uUzZ", true);
  if (schema.tags.time) batch.AddTag("time", rows, "lLiIcC", false);
  ParsedChunk whole, first, second;
  const Status status = batch.Parse(schema, 0, rows, &whole);
  if (!status.ok()) {
    REQUIRE(status.code() == pbx::Code::kInvalidArgument ||
            status.code() == pbx::Code::kCorruption);
    REQUIRE(!status.message().empty());
    return 0;
  }
  Check(schema, whole, rows);
  REQUIRE(batch.Parse(schema, 0, cut, &first).ok());
  REQUIRE(batch.Parse(schema, cut, rows, &second).ok());
  Check(schema, first, cut);
  Check(schema, second, rows - cut);
  REQUIRE(whole.bad_lines == first.bad_lines + second.bad_lines);
  RequireJoined(whole.labels, first.labels, second.labels);
  RequireJoined(whole.dense, first.dense, second.dense);
  RequireJoined(whole.feasigns, first.feasigns, second.feasigns);
  RequireJoined(whole.lengths, first.lengths, second.lengths);
  RequireJoined(whole.tags, first.tags, second.tags);
  return 0;
}

// Columns that fit and are of one kind of list, with and without nulls, over 5 to 20 rows; those
// with tags have no zeros among their values.
void AddFuzzSeeds(std::vector<std::string>* seeds) {
  for (int options : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 40, 56, 64, 72}) {
    const int least = options < 8 ? 0 : 1;
    for (int list = 0; list < 4; ++list) {
      for (int nulls : {0, 1, 3}) {
        std::string seed = {static_cast<char>(options), static_cast<char>(5 * (list + 1)), 2};
        // As Add, Value, Nulls, List and Leaf take it; zeros and small numbers are their values.
        const std::string column = {static_cast<char>(16 | list), 1, 2, static_cast<char>(nulls)};
        for (int number = 0; number < 16; ++number) {
          seed += column;
          for (int i = 0; i < 60; ++i) seed += static_cast<char>(least + (i * 7 + list) % 5);
        }
        seeds->push_back(seed);
      }
    }
  }
}
