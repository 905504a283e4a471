// A small export file for tests: one table, slots user (hashed) and tags (weighted), a dense slot.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "check.h"
#include "library/lmdb_pages.h"
#include "row/feasign.h"
#include "serve/layer_writer.h"

namespace pbx::test {

constexpr int kDim = 2;

inline std::string Sealed(const std::string& payload) {
  const uint32_t crc = Crc32c(payload.data(), payload.size());
  return std::string(reinterpret_cast<const char*>(&crc), 4) + payload;
}

inline const char* const kFeed = R"({"model": "small", "tasks": ["click"], "users": null,
  "format": "csv", "per_slot_keys": false, "max_line_bytes": 1000, "csv": "\u001f\u001e",
  "slots": [
    {"name": "click", "type": "label", "dim": 1, "column": ""},
    {"name": "age", "type": "dense", "dim": 1, "column": "", "default": 3, "log1p": false},
    {"name": "user", "type": "sparse", "dim": 1, "column": "", "hash": true},
    {"name": "tags", "type": "sparse", "dim": 1, "column": "", "weighted": true,
     "weight_column": null}],
  "fields": {"columns": ["click", "age", "user", "tags"],
    "uses": ["number", "number", "text", "id"],
    "lists": [2, 3], "places": {"click": 0, "age": 1, "user": 2, "tags": 3}, "ignored": ["late"],
    "label": 0, "columnar": false, "nulls": ["NULL"], "list_separator": "|", "tabs": false},
  "poolings": ["plain", "mean"], "tables": [0, 0], "sequences": [0, 0], "clicks": [],
  "cvm": false})";

// The same for a model that reads the histories of users, of which a candidate sees 4 events.
inline std::string FeedOfUsers() {
  std::string feed = kFeed;
  const auto replace = [&](const std::string& old, const char* with) {
    feed.replace(feed.find(old), old.size(), with);
  };
  replace(R"("users": null)", R"("users": {"known_width": 2, "max_length": 5, "time": "ts",
    "labels": ["click"]})");
  replace(R"(["late"])", R"(["late", "ts"])");
  return feed;
}

// The bytes of a file whose version v has weight v in the row of user "u" and in that of tag 7, and
// twice that in the row of tag 8. Rows have no counts, so the pooled slot is embed_w and embedx.
inline std::map<std::string, std::string> Values(uint64_t version, bool big = false) {
  const ServeCodec codec(kDim, false, ServePrecision::kFloat32);
  LayerWriter writer(codec, 1, false);
  const RowLayout layout{kDim, 1, 1, 0, 0};
  std::map<uint64_t, float> rows;  // by key
  const auto weight = static_cast<float>(version);
  rows[KeyOf(FeasignOfString("u", 1))] = weight;
  rows[KeyOf(7)] = weight;
  rows[KeyOf(8)] = 2 * weight;
  for (uint64_t other = 1000; other < (big ? 3000u : 1000u); ++other) rows[KeyOf(other)] = 5;
  for (const auto& [key, value] : rows) {
    std::vector<float> row(static_cast<size_t>(layout.words()));
    row[RowLayout::kEmbed] = value;
    const uint64_t feasign = FeasignOf(key);
    CHECK_OK(writer.Add(&feasign, row.data(), 1, row.size()));
  }
  CHECK_OK(writer.Finish());
  const std::string v = std::to_string(version);
  std::map<std::string, std::string> values;
  values["head"] =
      Sealed(R"({"format": 6, "current": 1, "newest": 1, "pinned": false, "next": 4})");
  values["generation/000000000001"] =
      Sealed(R"({"generation": 1, "version": )" + v + R"(, "day": 5, "pass_number": 6, "model": 2,
      "created_at": "2024-01-01", "embedx_dim": 2, "counts": false, "more_counts": 0,
      "precision": "float32", "slots": 2, "dense_width": 1, "layers": [3], "tables": [],
      "members": []})");
  values["model/000000000002/feed"] = Sealed(kFeed);
  values["model/000000000002/onnx"] = Sealed("model " + v);
  const std::string layer = "layer/000000000003/";
  values[layer + "about"] = Sealed(R"({"rows": 3, "deleted": 0, "bits": )" +
                                   std::to_string(writer.bits()) + R"(, "filter":
      {"bits": 0, "window_log2": 0, "windows": 0, "seed": 0, "by_hash": 0, "min_key": 0,
       "max_key": 18446744073709551615}})");
  values[layer + "filter"] = Sealed("");
  for (const auto& [number, bytes] : writer.TakeBlocks()) {
    char name[32];
    (void)std::snprintf(name, sizeof(name), "block/%012u", number);
    values[layer + name] = bytes;
  }
  return values;
}

}  // namespace pbx::test
