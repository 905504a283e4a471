// Any bytes as a chunk of training data: parsing ends in columns that fit each other and in counted
// bad lines, the same on every vector path; what was parsed goes through indexing and packing
// unchanged; a plan that passes ViewPlan can be walked, whatever happened to it before.
//
// First byte: bits 0..1 the format, 2 per-slot keys, 3 a short limit of line bytes, 4 shuffle, 5
// CSV instead of the format, 6 transforms, 7 that the first line of CSV names its columns, and of
// MultiSlot tags before the slots.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/hash.h"
#include "feed/instances/instances.h"
#include "feed/text/parser.h"
#include "feed/text/tokens.h"
#include "require.h"
#include "row/plan.h"
#include "seeds.h"

namespace {

using pbx::Batch;
using pbx::FeedSchema;
using pbx::Format;
using pbx::Instances;
using pbx::ParsedChunk;
using pbx::SlotKind;

void AddTransforms(FeedSchema* schema) {
  const bool lists = schema->format != Format::kCriteoTsv;
  std::vector<std::string> sparse;
  for (pbx::SlotSpec& slot : schema->slots) {
    if (slot.kind == SlotKind::kDense) {
      slot.transform.has_default = slot.transform.clip = slot.transform.log1p = true;
      slot.transform.default_value = 2;
      slot.transform.clip_low = -1;
      slot.transform.clip_high = 1000;
    } else if (slot.kind == SlotKind::kSparse) {
      slot.transform.max_length = 3;
      slot.transform.has_default = true;
      slot.transform.default_feasign = 5;
      slot.transform.hash = lists && sparse.size() == 1;
      sparse.push_back(slot.name);
    }
  }
  pbx::SlotSpec cross = {"crossed", SlotKind::kSparse, 1, ""};
  cross.transform.cross = {sparse[0], sparse[1]};
  schema->slots.push_back(cross);
  if (lists) return;
  pbx::SlotSpec bucket = {"bucket", SlotKind::kSparse, 1, ""};
  bucket.transform.bucket_of = "d1";
  bucket.transform.boundaries = {0.5f, 2};
  schema->slots.push_back(bucket);
  pbx::SlotSpec exact = {"exact", SlotKind::kDense, pbx::kExactFloats, ""};
  exact.transform.exact_of = "d1";
  schema->slots.push_back(exact);
}

FeedSchema SchemaOf(uint8_t choice) {
  FeedSchema schema;
  schema.format = static_cast<Format>(choice & 3);
  schema.per_slot_keys = (choice & 4) != 0;
  if ((choice & 8) != 0) schema.max_line_bytes = 100;
  if (schema.format == Format::kCriteoTsv) {
    schema.slots = {{"label", SlotKind::kLabel, 1, ""},
                    {"d1", SlotKind::kDense, 1, "I1"},
                    {"d2", SlotKind::kDense, 1, "I2"},
                    {"d13", SlotKind::kDense, 1, "I13"}};
    for (int i = 1; i <= 13; ++i) {
      schema.slots.push_back({"I" + std::to_string(i), SlotKind::kSparse, 1, ""});
    }
    for (int i = 1; i <= 26; ++i) {
      schema.slots.push_back({"C" + std::to_string(i), SlotKind::kSparse, 1, ""});
    }
  } else {
    schema.slots = {{"y", SlotKind::kLabel, 1, ""},
                    {"1", SlotKind::kSparse, 1, ""},
                    {"d", SlotKind::kDense, 3, ""},
                    {"2", SlotKind::kSparse, 1, ""},
                    {"33", SlotKind::kSparse, 1, ""}};
    if ((choice & 32) != 0) schema.format = Format::kCsv;
  }
  if ((choice & 64) != 0) AddTransforms(&schema);
  if (schema.format == Format::kMultiSlot && (choice & 128) != 0) {
    schema.tags = {true, true, (choice & 64) != 0, (choice & 16) != 0};
  }
  return schema;
}

ParsedChunk Parse(const FeedSchema& schema, const char* data, size_t size) {
  ParsedChunk chunk;
  REQUIRE(pbx::ParseChunk(schema, data, size, &chunk).ok());
  const size_t slots = schema.sparse_slots();
  uint64_t total = 0;
  for (const uint32_t length : chunk.lengths) total += length;
  REQUIRE(total == chunk.feasigns.size());
  REQUIRE(chunk.lengths.size() == chunk.instances * slots);
  REQUIRE(chunk.labels.size() == chunk.instances);
  REQUIRE(chunk.dense.size() == chunk.instances * schema.dense_width());
  REQUIRE(chunk.lines >= chunk.instances + chunk.bad_lines);
  REQUIRE(chunk.tags.Fits(chunk.instances));
  if (chunk.instances > 0) {
    REQUIRE(chunk.tags.spec().ins_id == schema.tags.has_ids());
    REQUIRE(chunk.tags.spec().log_key == schema.tags.log_key);
    REQUIRE(chunk.tags.spec().time == schema.tags.time);
  }
  REQUIRE(chunk.first_bad.size() == std::min<uint64_t>(chunk.bad_lines, 8));
  for (const uint64_t feasign : chunk.feasigns) REQUIRE(feasign != 0);
  for (const float label : chunk.labels) REQUIRE(label >= 0 && label <= 1);
  for (const float value : chunk.dense) REQUIRE(value - value == 0);  // finite
  for (const pbx::BadLine& bad : chunk.first_bad) {
    REQUIRE(bad.line < chunk.lines && !bad.reason.empty() && bad.excerpt.size() <= 4 * 80);
  }
  return chunk;
}

template <typename T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The vector paths look at lines with bytes around them only.
void CheckEveryPath(const FeedSchema& schema, const char* data, size_t size) {
  const std::string around(pbx::feed::TokenKernels::kReach, '\n');
  const std::string text = around + std::string(data, size) + around;
  REQUIRE(pbx::feed::SelectTokenKernels("plain").ok());
  const ParsedChunk plain = Parse(schema, text.data(), text.size());
  for (const char* path : {"avx2", "avx512"}) {
    if (!pbx::feed::SelectTokenKernels(path).ok()) continue;
    const ParsedChunk chunk = Parse(schema, text.data(), text.size());
    REQUIRE(chunk.instances == plain.instances && chunk.lines == plain.lines);
    REQUIRE(SameBytes(chunk.labels, plain.labels));
    REQUIRE(SameBytes(chunk.dense, plain.dense));
    REQUIRE(SameBytes(chunk.feasigns, plain.feasigns));
    REQUIRE(SameBytes(chunk.lengths, plain.lengths));
    REQUIRE(chunk.bad_lines == plain.bad_lines);
    for (size_t i = 0; i < plain.tags.ins_ids.size(); ++i) {
      REQUIRE(chunk.tags.ins_ids[i] == plain.tags.ins_ids[i]);
    }
    REQUIRE(SameBytes(chunk.tags.times, plain.tags.times));
    for (size_t i = 0; i < plain.first_bad.size(); ++i) {
      REQUIRE(chunk.first_bad[i].line == plain.first_bad[i].line);
      REQUIRE(chunk.first_bad[i].reason == plain.first_bad[i].reason);
      REQUIRE(chunk.first_bad[i].excerpt == plain.first_bad[i].excerpt);
    }
  }
  REQUIRE(pbx::feed::SelectTokenKernels("auto").ok());
}

// Merging, sampling and every order keep the columns together.
void CheckArranged(const FeedSchema& schema, const ParsedChunk& whole, uint64_t seed) {
  Instances instances(schema.sparse_slots(), schema.dense_width());
  REQUIRE(instances.SetSampling(seed % 4 == 0 ? 0.5 : 1, seed).ok());
  REQUIRE(instances.Append(ParsedChunk(whole)).ok());
  if (seed % 3 == 0 && schema.tags.has_ids()) {
    REQUIRE(instances.MergeByInsId(seed % 2 * 2, {1, schema.dense_width() - 1}).ok());
  }
  pbx::ThreadPool pool(1);
  if (seed % 5 == 0) REQUIRE(instances.ArrangeBy(pbx::Order::kSlot, seed, 1).ok());
  REQUIRE(instances.Index(&pool).ok());
  for (const pbx::Order order : {pbx::Order::kShuffled, pbx::Order::kSlot, pbx::Order::kInsId,
                                 pbx::Order::kSearchId, pbx::Order::kPageViews}) {
    const bool by_log_key = order == pbx::Order::kSearchId || order == pbx::Order::kPageViews;
    if (by_log_key && !schema.tags.log_key) continue;
    if (order == pbx::Order::kInsId && !schema.tags.has_ids()) continue;
    REQUIRE(instances.ArrangeBy(order, seed, 2).ok());
    REQUIRE(instances.ReplaceSlots({0, 2}, 1 + seed % 7, seed).ok());
    std::vector<uint64_t> feasigns;
    std::vector<int32_t> offsets;
    REQUIRE(instances.PackFeasigns(0, instances.size(), &feasigns, &offsets).ok());
    for (const uint64_t feasign : feasigns) REQUIRE(feasign != 0);
  }
  if (!schema.tags.log_key) return;
  const std::vector<size_t> views = instances.PageViewStarts().value();
  REQUIRE(views.back() == instances.size());
  std::vector<int32_t> ranks;
  REQUIRE(instances.RankOffsets(0, instances.size(), 3, &ranks).ok());
}

void CheckDamagedPlan(std::vector<int32_t> plan, size_t rows, size_t segments, uint64_t random) {
  for (int i = 0; i < 4; ++i) {
    random = pbx::Mix(random + 1);
    const bool small = (random & 1) != 0;
    plan[(random >> 8) % plan.size()] =
        static_cast<int32_t>(small ? (random >> 40) % 16 : random >> 32);
    const auto view = pbx::ViewPlan(plan.data(), plan.size(), rows, segments);
    if (!view.ok()) continue;
    const pbx::PlanView& v = view.value();
    for (size_t u = 0; u < v.unique; ++u) {
      REQUIRE(static_cast<size_t>(v.rows[u]) < rows);
      for (int32_t at = v.starts[u]; at < v.starts[u + 1]; ++at) {
        REQUIRE(static_cast<size_t>(v.segments[at] & INT32_MAX) < segments);  // without kFirst
      }
    }
  }
}

void CheckIndexed(const Instances& instances, size_t slots, uint64_t random) {
  const size_t n = instances.size();
  const size_t unique = instances.unique_keys();
  std::vector<int32_t> rows(unique);
  for (size_t i = 0; i < unique; ++i) rows[i] = i % 5 == 4 ? -1 : static_cast<int32_t>(i);
  Batch batch;
  REQUIRE(instances.PackBatch(0, n, rows.data(), 7, &batch).ok());
  REQUIRE(batch.ids.size() == instances.occurrences());
  REQUIRE(pbx::ViewPlan(batch.plan.data(), batch.plan.size(), unique, n * slots).ok());
  CheckDamagedPlan(batch.plan, unique, n * slots, random);

  const size_t max_rows = unique / 2 + 1;
  const auto ranges = instances.Split(max_rows, 2);
  if (!ranges.ok()) return;  // one batch needs more
  size_t next = 0;
  for (const pbx::InstanceRange range : ranges.value()) {
    REQUIRE(range.begin == next && range.end > range.begin);
    next = range.end;
    const auto keys = instances.SelectRange(range);
    REQUIRE(keys.ok() && keys.value().keys.size() <= max_rows);
    REQUIRE(std::is_sorted(keys.value().keys.begin(), keys.value().keys.end()));
    for (const uint16_t slot : keys.value().slots) REQUIRE(slot < slots);
  }
  REQUIRE(next == n);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static pbx::ThreadPool pool(2);
  if (size == 0) return 0;
  FeedSchema schema = SchemaOf(bytes[0]);
  const char* data = reinterpret_cast<const char*>(bytes) + 1;
  --size;
  if (schema.format == Format::kCsv && (bytes[0] & 128) != 0) {
    const void* found = size == 0 ? nullptr : std::memchr(data, '\n', size);
    const size_t line =
        found == nullptr ? size : static_cast<size_t>(static_cast<const char*>(found) - data);
    if (!pbx::SetCsvHeader(data, line, &schema).ok()) return 0;
    data += line;  // what is left begins with an empty line
    size -= line;
  }
  CheckEveryPath(schema, data, size);
  const ParsedChunk whole = Parse(schema, data, size);

  CheckArranged(schema, whole, pbx::HashBytes(data, size, 2));

  // Cut at a line break the two parts are the whole.
  size_t cut = size / 2;
  while (cut < size && (cut == 0 || data[cut - 1] != '\n')) ++cut;
  ParsedChunk first = Parse(schema, data, cut);
  ParsedChunk second = Parse(schema, data + cut, size - cut);
  REQUIRE(first.lines + second.lines == whole.lines);
  REQUIRE(first.bad_lines + second.bad_lines == whole.bad_lines);

  Instances instances(schema.sparse_slots(), schema.dense_width());
  REQUIRE(instances.Append(std::move(first)).ok());
  REQUIRE(instances.Append(std::move(second)).ok());
  const bool shuffle = (bytes[0] & 16) != 0;
  if (shuffle) REQUIRE(instances.Shuffle(size).ok());
  REQUIRE(instances.Index(&pool).ok());
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  REQUIRE(instances.PackFeasigns(0, instances.size(), &feasigns, &offsets).ok());
  if (shuffle) {
    std::vector<uint64_t> expected = whole.feasigns;
    std::sort(expected.begin(), expected.end());
    std::sort(feasigns.begin(), feasigns.end());
    REQUIRE(feasigns == expected);
  } else {
    REQUIRE(feasigns == whole.feasigns);
    REQUIRE(instances.labels() == whole.labels);
  }
  CheckIndexed(instances, schema.sparse_slots(), pbx::HashBytes(data, size, 1));
  return 0;
}

void AddFuzzSeeds(std::vector<std::string>* seeds) {
  const std::string lines[] = {
      "1 1 2 17 18 3 0.5 -2e3 1 1 7 3 5 0 18446744073709551615\n1 0 1 17 3 0 0 0 1 7 1 9\n",
      "1:y 17:1 0.5:d -2e3:d 1:d 18446744073709551615:33 18:1 7:2 5:x\n0:y 0:d 0:d 0:d 17:1 9:33\n",
      "y:1 1:17 d:0.5 d:-2e3 d:1 33:18446744073709551615 1:18 2:7 x:5\ny:0 d:0 d:0 d:0 1:17 33:9\n",
      "1\t1\t-"
      "1\t\t5000\t0\t2\t3\t\t\t99999\t1\t\t7\ta1b2c3d4\t\t0\tffffffffffffffff\tF\t1\t2\t3\t4\t5"
      "\t6\t7\t8\t9\ta\tb\tc\td\te\tf\t10\t11\t12\t\t\tabc\n"
      "0\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\n"};
  const std::string csv =
      "1,17|18,0.5|-2e3|1,7,5|18446744073709551615\n\"0\",\"a,\"\"b\",0|0|0,,9\n0,,,,\n";
  const std::string header = "33,d,\"y\",unused,1,2\n1|2,0|0|0,1,\"x,\",3,4\n";
  const std::string key = "1 0123456789a0de010123456789abcdef ";
  const std::string ids[] = {"1 a 1 b ", "1 a 1 b " + key};
  for (int tags = 0; tags < 2; ++tags) {
    std::string text(1, static_cast<char>(128 + tags * 64));
    for (size_t at = 0; at < lines[0].size();) {
      const size_t end = lines[0].find('\n', at) + 1;
      text += ids[tags] + lines[0].substr(at, end - at);
      at = end;
    }
    seeds->push_back(text);
  }
  for (int options = 0; options < 8; ++options) {
    for (int format = 0; format < 4; ++format) {
      for (int transforms : {0, 64}) {
        const int choice = options * 4 + format + transforms;
        seeds->push_back(static_cast<char>(choice) + lines[format]);
        if (format == 3) continue;  // 32 says CSV to the others
        seeds->push_back(static_cast<char>(choice + 32) + csv);
        seeds->push_back(static_cast<char>(choice + 32 + 128) + header);
      }
    }
  }
}
