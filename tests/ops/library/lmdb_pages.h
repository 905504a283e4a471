// Writes small LMDB files for tests: all of a file at once, from its keys and values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"

namespace pbx::test {

class LmdbPages {
 public:
  static constexpr size_t kPage = 4096;

  // transaction: of the newest state, above 0.
  static std::string File(const std::map<std::string, std::string>& values, uint64_t transaction) {
    LmdbPages pages;
    const uint64_t root = pages.Tree(values);
    pages.Meta(transaction % 2, transaction, root);
    pages.Meta((transaction - 1) % 2, transaction - 1, ~uint64_t{0});
    return pages.bytes_;
  }

 private:
  LmdbPages() : bytes_(2 * kPage, '\0') {}

  template <typename T>
  void Put(size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  uint64_t Next() const { return bytes_.size() / kPage; }

  void Meta(uint64_t page, uint64_t transaction, uint64_t root) {
    const size_t at = page * kPage;
    Put<uint64_t>(at, page);
    Put<uint16_t>(at + 10, 8);
    Put<uint32_t>(at + 16, 0xBEEFC0DE);
    Put<uint32_t>(at + 20, 1);
    Put<uint32_t>(at + 40, kPage);
    Put<uint16_t>(at + 44, 0x4008);
    Put<uint64_t>(at + 80, ~uint64_t{0});
    Put<uint64_t>(at + 128, root);
    Put<uint64_t>(at + 136, Next() - 1);
    Put<uint64_t>(at + 144, transaction);
  }

  struct Node {
    std::string head, key, data;  // head: 8 bytes
    size_t bytes() const { return (head.size() + key.size() + data.size() + 1) / 2 * 2; }
  };

  template <typename T>
  static std::string Bytes(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }

  Node Leaf(const std::string& key, const std::string& value) {
    const auto size = static_cast<uint32_t>(value.size());
    const auto key_bytes = static_cast<uint16_t>(key.size());
    if (value.size() <= 1000) {
      return {Bytes(size) + Bytes<uint16_t>(0) + Bytes(key_bytes), key, value};
    }
    const uint64_t first = Next(), count = (16 + value.size() + kPage - 1) / kPage;
    bytes_.resize(bytes_.size() + count * kPage);
    Put<uint64_t>(first * kPage, first);
    Put<uint16_t>(first * kPage + 10, 4);
    Put<uint32_t>(first * kPage + 12, static_cast<uint32_t>(count));
    std::memcpy(bytes_.data() + first * kPage + 16, value.data(), value.size());
    return {Bytes(size) + Bytes<uint16_t>(1) + Bytes(key_bytes), key, Bytes(first)};
  }

  uint64_t Page(uint16_t kind, const std::vector<Node>& nodes) {
    const uint64_t number = Next();
    bytes_.resize(bytes_.size() + kPage);
    const size_t at = number * kPage;
    size_t upper = kPage;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const std::string all = nodes[i].head + nodes[i].key + nodes[i].data;
      upper -= nodes[i].bytes();
      std::memcpy(bytes_.data() + at + upper, all.data(), all.size());
      Put<uint16_t>(at + 16 + 2 * i, static_cast<uint16_t>(upper));
    }
    Put<uint64_t>(at, number);
    Put<uint16_t>(at + 10, kind);
    Put<uint16_t>(at + 12, static_cast<uint16_t>(16 + 2 * nodes.size()));
    Put<uint16_t>(at + 14, static_cast<uint16_t>(upper));
    return number;
  }

  // Leaves of at most four keys, so that a few keys make a tree of some levels.
  uint64_t Tree(const std::map<std::string, std::string>& values) {
    std::vector<std::pair<std::string, uint64_t>> level;  // first key, page
    std::vector<Node> nodes;
    std::string first;
    const auto flush = [&] {
      if (!nodes.empty()) level.emplace_back(first, Page(2, nodes));
      nodes.clear();
    };
    for (const auto& [key, value] : values) {
      size_t bytes = 0;
      for (const Node& node : nodes) bytes += node.bytes() + 2;
      if (nodes.size() == 4 || bytes > 2500) flush();
      if (nodes.empty()) first = key;
      nodes.push_back(Leaf(key, value));
    }
    flush();
    while (level.size() > 1) {
      std::vector<std::pair<std::string, uint64_t>> above;
      for (size_t i = 0; i < level.size(); i += 3) {
        std::vector<Node> children;
        for (size_t j = i; j < std::min(i + 3, level.size()); ++j) {
          const std::string key = j == i ? "" : level[j].first;
          const uint64_t page = level[j].second;
          children.push_back({Bytes(static_cast<uint32_t>(page)) +
                                  Bytes(static_cast<uint16_t>(page >> 32)) +
                                  Bytes(static_cast<uint16_t>(key.size())),
                              key, ""});
        }
        above.emplace_back(level[i].first, Page(1, children));
      }
      level = std::move(above);
    }
    return level.empty() ? ~uint64_t{0} : level[0].second;
  }

  std::string bytes_;
};

// Writes a file beside path and renames it onto it.
inline void Replace(const std::string& path, const std::string& bytes) {
  const std::string made = path + ".new";
  std::FILE* const file = std::fopen(made.c_str(), "wb");
  CHECK(file != nullptr);
  CHECK_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
  CHECK_EQ(std::fclose(file), 0);
  CHECK_EQ(std::rename(made.c_str(), path.c_str()), 0);
}

}  // namespace pbx::test
