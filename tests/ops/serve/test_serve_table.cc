#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/log.h"
#include "check.h"
#include "row/feasign.h"
#include "serve/layer_writer.h"
#include "serve/serve_table.h"

namespace pbx {
namespace {

constexpr int kDim = 4;
const RowLayout kLayout{kDim, 1, 1, 0, 0};
using Rows = std::map<uint64_t, std::vector<float>>;  // by key

std::vector<float> MakeRow(float show, float weight, bool full) {
  std::vector<float> row(static_cast<size_t>(kLayout.words()));
  row[RowLayout::kShow] = show;
  row[RowLayout::kClick] = show / 4;
  row[RowLayout::kEmbed] = weight;
  if (full) SetFlag(row.data(), kHasEmbedx);
  for (int i = 0; full && i < kDim; ++i) {
    row[static_cast<size_t>(kLayout.embedx_at() + i)] = weight * static_cast<float>(i + 1);
  }
  return row;
}

// A layer's bytes, alive as long as the test wants them.
struct Made {
  LayerParts parts;
  std::vector<std::string> blocks;
  std::vector<char> filter;
  uint64_t rows = 0, deleted = 0;
};

void TakeAll(LayerWriter* writer, uint64_t number, Made* made) {
  CHECK_OK(writer->Finish());
  for (auto& [at, bytes] : writer->TakeBlocks()) {
    CHECK_EQ(at, made->blocks.size());
    made->blocks.push_back(std::move(bytes));
  }
  made->filter = writer->filter_table();
  made->rows = writer->rows();
  made->deleted = writer->deleted();
  LayerParts& parts = made->parts;
  parts.number = number;
  parts.bits = writer->bits();
  for (const std::string& bytes : made->blocks)
    parts.blocks.emplace_back(bytes.data(), bytes.size());
  parts.filter = writer->filter();
  parts.min_key = writer->min_key();
  parts.max_key = writer->max_key();
  parts.filter_table = {made->filter.data(), made->filter.size()};
}

void Write(LayerWriter* writer, const Rows& rows) {
  for (const auto& [key, row] : rows) {
    const uint64_t feasign = FeasignOf(key);
    CHECK_OK(writer->Add(&feasign, row.data(), 1, row.size()));
  }
}

Made MakeLayer(const ServeCodec& codec, const Rows& rows, uint64_t number, bool filtered,
               const std::vector<uint64_t>& deleted = {}) {
  Made made;
  LayerWriter writer(codec, kLayout.embed_state, filtered);
  writer.Delete(deleted.data(), deleted.size());
  Write(&writer, rows);
  TakeAll(&writer, number, &made);
  return made;
}

// One instance, one slot of one feasign: [log(show + 1), log(click + 1) - .., w, embedx].
std::vector<float> PullOne(const ServeTable& table, uint64_t feasign) {
  std::vector<float> out(table.output_width());
  const int32_t offsets[2] = {0, 1};
  CHECK_OK(table.Pull(&feasign, offsets, 1, nullptr, out.data()));
  return out;
}

TEST(every_row_is_found_in_each_precision_and_absent_feasigns_read_as_zeros) {
  std::mt19937_64 random(1);
  Rows rows;
  for (int i = 0; i < 90000; ++i) {  // more than wait for the choice of bits
    rows[KeyOf(random() | 1)] = MakeRow(static_cast<float>(i % 97), 0.25f, i % 3 == 0);
  }
  for (const auto& [precision, error] :
       {std::pair{ServePrecision::kFloat32, 0.0}, std::pair{ServePrecision::kFloat16, 1e-3},
        std::pair{ServePrecision::kInt8, 4e-3}}) {
    const ServeCodec codec(kDim, true, precision);
    const Made made = MakeLayer(codec, rows, 1, precision == ServePrecision::kInt8);
    CHECK(made.parts.bits >= 3);
    for (const std::string& bytes : made.blocks) CHECK(bytes.size() < 256 << 10);
    ServeTable table("test", codec, 1, 0);
    CHECK_OK(table.AddLayer(made.parts));
    for (const auto& [key, row] : rows) {
      const std::vector<float> out = PullOne(table, FeasignOf(key));
      if (out[2] != row[RowLayout::kEmbed]) test::Fail(__FILE__, __LINE__, "another embed_w");
      for (int i = 0; i < kDim; ++i) {
        const float wanted = row[static_cast<size_t>(kLayout.embedx_at() + i)];
        if (std::fabs(out[3 + static_cast<size_t>(i)] - wanted) > error) {
          test::Fail(__FILE__, __LINE__, "another embedx");
        }
      }
    }
    for (int i = 0; i < 10000; ++i) {
      const uint64_t feasign = random() & ~uint64_t{1};
      for (const float x : PullOne(table, feasign)) {
        if (x != 0 && rows.count(KeyOf(feasign)) == 0) test::Fail(__FILE__, __LINE__, "not zero");
      }
    }
  }
}

TEST(factors_multiply_rows_of_each_precision) {
  Rows rows;
  rows[KeyOf(3)] = MakeRow(0, 0.25f, true);
  rows[KeyOf(5)] = MakeRow(0, 0.5f, false);
  for (const ServePrecision precision :
       {ServePrecision::kFloat32, ServePrecision::kFloat16, ServePrecision::kInt8}) {
    const ServeCodec codec(kDim, false, precision);
    const Made made = MakeLayer(codec, rows, 1, false);
    ServeTable table("test", codec, 1, 0);
    CHECK_OK(table.AddLayer(made.parts));
    const uint64_t feasigns[] = {3, 5, 3};
    const int32_t offsets[] = {0, 2, 3};
    const float factors[] = {0.5f, 3, 2};
    std::vector<float> out(table.output_width() * 2), one = PullOne(table, 3);
    CHECK_OK(table.Pull(feasigns, offsets, factors, 2, nullptr, out.data()));
    CHECK_EQ(out[0], 0.125f + 1.5f);
    CHECK_EQ(out[one.size()], 0.5f);
    for (size_t c = 1; c < one.size(); ++c) {
      CHECK_EQ(out[c], one[c] * 0.5f);
      CHECK_EQ(out[one.size() + c], one[c] * 2);
    }
  }
}

// A copied row keeps the sign of a 0, which a sum with 0 loses.
TEST(lists_of_one_with_factors_of_1_are_copied_as_without_factors) {
  const ServeCodec codec(kDim, false, ServePrecision::kFloat32);
  const Made made = MakeLayer(codec, {{KeyOf(3), MakeRow(0, -0.0f, true)}}, 1, false);
  ServeTable table("test", codec, 1, 0);
  CHECK_OK(table.AddLayer(made.parts));
  CHECK(std::signbit(PullOne(table, 3)[0]));
  const uint64_t feasigns[] = {3, 3};
  const int32_t offsets[] = {0, 1, 2};
  for (const float factor : {1.0f, 2.0f}) {
    const float factors[] = {1, factor};
    std::vector<float> out(table.output_width() * 2);
    CHECK_OK(table.Pull(feasigns, offsets, factors, 2, nullptr, out.data()));
    CHECK_EQ(std::signbit(out[0]), factor == 1);
  }
}

TEST(shows_and_clicks_of_slots_follow_the_dense_features_with_and_without_cvm) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  Rows rows;
  for (const uint64_t feasign : {5, 6, 7}) {
    rows[KeyOf(feasign)] = MakeRow(static_cast<float>(8 * feasign), 0.5f, feasign != 6);
  }
  const Made made = MakeLayer(codec, rows, 1, false);
  // Two instances of three slots; feasign 9 has no row.
  const std::vector<uint64_t> feasigns = {5, 6, 7, 9, 7};
  const std::vector<int32_t> offsets = {0, 2, 2, 3, 4, 4, 5};
  const std::vector<float> dense = {-1, -2};
  for (const bool cvm : {false, true}) {
    ServeTable table("test", codec, 3, 1, 0, {cvm, {2, 0}});
    ServeTable plain("test", codec, 3, 1, 0, {cvm, {}});
    CHECK_OK(table.AddLayer(made.parts));
    CHECK_OK(plain.AddLayer(made.parts));
    CHECK_EQ(table.output_width(), static_cast<size_t>(3 * (kDim + (cvm ? 3 : 1)) + 1 + 4));
    std::vector<float> out(2 * table.output_width()), expected(2 * plain.output_width());
    CHECK_OK(table.Pull(feasigns.data(), offsets.data(), 2, dense.data(), out.data()));
    CHECK_OK(plain.Pull(feasigns.data(), offsets.data(), 2, dense.data(), expected.data()));
    const std::vector<float> counts[2] = {{56, 40 + 48, 14, 10 + 12}, {56, 0, 14, 0}};
    for (size_t b = 0; b < 2; ++b) {
      const float* const found = out.data() + b * table.output_width();
      const size_t width = plain.output_width();
      CHECK(std::equal(found, found + width, expected.data() + b * width));
      CHECK(std::equal(counts[b].begin(), counts[b].end(), found + width));
    }
  }
}

TEST(keys_in_a_cluster_and_at_both_ends_are_found) {
  Rows rows;
  for (uint64_t i = 0; i < 3000; ++i) rows[(uint64_t{1} << 40) + i * i] = MakeRow(1, 1, false);
  rows[1] = rows[UINT64_MAX] = rows[UINT64_MAX - 1] = MakeRow(2, 2, true);
  const ServeCodec codec(kDim, false, ServePrecision::kFloat32);
  const Made made = MakeLayer(codec, rows, 1, true);
  ServeTable table("test", codec, 1, 0);
  CHECK_OK(table.AddLayer(made.parts));
  for (const auto& [key, row] : rows) {
    CHECK_EQ(PullOne(table, FeasignOf(key))[0], row[RowLayout::kEmbed]);
  }
  CHECK_EQ(PullOne(table, FeasignOf(2))[0], 0.0f);
}

TEST(lists_of_one_are_copied_to_the_bits_that_pooling_gives) {
  const ServeCodec codec(kDim, false, ServePrecision::kFloat32);
  Rows rows;
  for (uint64_t f = 1; f <= 3000; ++f) {
    rows[KeyOf(f)] = MakeRow(1, static_cast<float>(f) / 7, f % 3 != 0);
  }
  const Made made = MakeLayer(codec, rows, 1, false);
  ServeTable table("test", codec, 2, 1);
  CHECK_OK(table.AddLayer(made.parts));
  constexpr size_t kInstances = 500;
  std::vector<uint64_t> feasigns;
  std::vector<float> dense;
  for (uint64_t i = 0; i < 2 * kInstances; ++i) feasigns.push_back(i * 4);  // 0 and absent ones too
  for (size_t i = 0; i < kInstances; ++i) dense.push_back(static_cast<float>(i));
  std::vector<int32_t> offsets(2 * kInstances + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int32_t>(i);
  std::vector<float> copied(kInstances * table.output_width()), pooled(copied.size() + 5 * 2 + 1);
  CHECK_OK(table.Pull(feasigns.data(), offsets.data(), kInstances, dense.data(), copied.data()));
  // An instance more, with an empty list, makes of the same lists those that are pooled.
  offsets.push_back(offsets.back());
  offsets.push_back(offsets.back());
  dense.push_back(0);
  CHECK_OK(
      table.Pull(feasigns.data(), offsets.data(), kInstances + 1, dense.data(), pooled.data()));
  CHECK(std::memcmp(copied.data(), pooled.data(), copied.size() * sizeof(float)) == 0);
}

TEST(copies_in_memory_serve_what_the_file_does_and_keep_their_bound) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  Rows rows;
  for (uint64_t f = 1; f <= 20000; ++f) rows[KeyOf(f)] = MakeRow(1, 1, f % 2 == 0);
  const Made made = MakeLayer(codec, rows, 1, false);
  size_t bytes = 0;
  for (const std::string& block : made.blocks) bytes += block.size();
  for (const size_t bound : {size_t{0}, bytes / 2, bytes}) {
    ServeTable table("test", codec, 1, 0, bound);
    CHECK_OK(table.AddLayer(made.parts));
    CHECK_EQ(table.ResidentBytes(), 0u);
    CHECK_OK(table.TestAll());
    CHECK(table.ResidentBytes() <= bound);
    CHECK(bound == 0 || table.ResidentBytes() + 2 * made.blocks[0].size() > bound);
    for (uint64_t f = 1; f <= 20000; ++f) {
      if (PullOne(table, f)[2] != 1.0f) test::Fail(__FILE__, __LINE__, "another row");
    }
    ServeTable next("test", codec, 1, 0, bound);
    CHECK_OK(next.AddLayer(made.parts));
    next.AdoptTests(table);
    CHECK_EQ(next.ResidentBytes(), table.ResidentBytes());
  }
}

TEST(keys_out_of_order_are_damage_whatever_the_crc_says) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  const std::string row(codec.full_bytes(), 'x');
  for (const auto& [first, second] : {std::pair<uint64_t, uint64_t>{9, 8}, {9, 9}}) {
    BlockBuilder builder(codec);
    builder.Add(first, true, row.data());
    builder.Add(second, true, row.data());
    const std::string bytes = builder.Finish(0);
    LayerParts parts;
    parts.blocks = {{bytes.data(), bytes.size()}};
    ServeTable table("file", codec, 1, 0);
    CHECK_OK(table.AddLayer(parts));
    CHECK_CODE(table.TestAll(), Code::kCorruption);
  }
}

TEST(newer_layers_hide_older_rows_and_deleted_ones_stay_away_through_a_merge) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  Rows base, delta;
  for (uint64_t f = 1; f <= 1000; ++f) base[KeyOf(f)] = MakeRow(1, 1, f % 2 == 0);
  for (uint64_t f = 500; f <= 1500; ++f) delta[KeyOf(f)] = MakeRow(2, 2, f % 2 == 1);
  const Made first = MakeLayer(codec, base, 1, false);
  const Made second = MakeLayer(codec, delta, 2, true, {7, 8, 4444});
  CHECK_EQ(second.deleted, 3u);
  ServeTable table("test", codec, 1, 0);
  CHECK_OK(table.AddLayer(second.parts));
  CHECK_OK(table.AddLayer(first.parts));

  Made merged;
  LayerWriter writer(codec, 0, false);
  ServeTable::Cursor cursor(table, 0, 2);
  CHECK_OK(cursor.Start());
  while (!cursor.done()) CHECK_OK(writer.Merge(&cursor, true, 1000));
  TakeAll(&writer, 3, &merged);
  CHECK_EQ(merged.rows, 1498u);
  CHECK_EQ(merged.deleted, 0u);
  ServeTable one("test", codec, 1, 0);
  CHECK_OK(one.AddLayer(merged.parts));
  for (uint64_t f = 1; f <= 1600; ++f) {
    const float wanted = f > 1500 || f == 7 || f == 8 ? 0.0f : (f < 500 ? 1.0f : 2.0f);
    CHECK_EQ(PullOne(table, f)[2], wanted);
    CHECK(PullOne(table, f) == PullOne(one, f));
  }
}

TEST(a_difference_makes_the_new_rows_of_the_old_and_holds_only_what_differs) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  Rows old, now;
  for (uint64_t f = 1; f <= 2000; ++f) old[KeyOf(f)] = MakeRow(1, 1, true);
  for (uint64_t f = 101; f <= 2010; ++f)
    now[KeyOf(f)] = MakeRow(1, f % 100 == 0 ? 3.0f : 1.0f, true);
  const Made base = MakeLayer(codec, old, 1, false);
  ServeTable before("test", codec, 1, 0);
  CHECK_OK(before.AddLayer(base.parts));
  Made delta;
  LayerWriter writer(codec, kLayout.embed_state, true);
  CHECK_OK(writer.Against(before));
  Write(&writer, now);
  TakeAll(&writer, 2, &delta);
  CHECK_EQ(delta.deleted, 100u);
  CHECK_EQ(delta.rows, 29u);  // 19 that changed and 10 new ones
  ServeTable after("test", codec, 1, 0);
  CHECK_OK(after.AddLayer(delta.parts));
  CHECK_OK(after.AddLayer(base.parts));
  for (uint64_t f = 1; f <= 2020; ++f) {
    const auto found = now.find(KeyOf(f));
    CHECK_EQ(PullOne(after, f)[2], found == now.end() ? 0.0f : found->second[RowLayout::kEmbed]);
  }
}

TEST(a_damaged_block_is_named_and_the_others_are_read) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  Rows rows;
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) rows[random()] = MakeRow(1, 1, true);
  Made made = MakeLayer(codec, rows, 5, false);
  CHECK(made.parts.bits >= 2);
  made.blocks[1][100] = static_cast<char>(made.blocks[1][100] ^ 4);
  ServeTable table("file", codec, 1, 0);
  CHECK_OK(table.AddLayer(made.parts));
  CHECK_CODE(table.TestAll(), Code::kCorruption);
  CHECK(table.TestAll().message().find("block 1 of layer 5") != std::string::npos);
  const uint64_t sound = FeasignOf(rows.begin()->first);
  CHECK_EQ(PullOne(table, sound)[2], 1.0f);
}

TEST(any_flipped_bit_of_a_block_is_found) {
  const ServeCodec codec(kDim, true, ServePrecision::kInt8);
  BlockBuilder builder(codec);
  const std::string row(codec.full_bytes(), 'x');
  for (uint64_t k = 1; k <= 70; ++k) builder.Add(k, k % 2 == 0, row.data());
  const std::string bytes = builder.Finish(3);
  uint32_t n = 0, full = 0;
  CHECK(BlockView::Sound(codec, bytes.data(), bytes.size(), 3, &n, &full));
  CHECK_EQ(n, 70u);
  CHECK_EQ(full, 35u);
  CHECK(!BlockView::Sound(codec, bytes.data(), bytes.size(), 4, &n, &full));
  for (size_t at = 0; at < bytes.size() * 8; ++at) {
    std::string bad = bytes;
    bad[at / 8] = static_cast<char>(bad[at / 8] ^ (1 << at % 8));
    if (BlockView::Sound(codec, bad.data(), bad.size(), 3, &n, &full)) {
      test::Fail(__FILE__, __LINE__, "bit " + std::to_string(at));
    }
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK(!BlockView::Sound(codec, bytes.data(), size, 3, &n, &full));
  }
}

TEST(rows_out_of_order_or_not_finite_are_refused) {
  const ServeCodec codec(kDim, true, ServePrecision::kFloat32);
  LayerWriter writer(codec, kLayout.embed_state, false);
  std::vector<float> row = MakeRow(1, 1, true);
  const uint64_t high = FeasignOf(9), low = FeasignOf(8), zero = 0;
  CHECK_OK(writer.Add(&high, row.data(), 1, row.size()));
  CHECK_CODE(writer.Add(&low, row.data(), 1, row.size()), Code::kInvalidArgument);
  CHECK_CODE(writer.Add(&zero, row.data(), 1, row.size()), Code::kInvalidArgument);
  row[static_cast<size_t>(kLayout.embedx_at())] = NAN;
  const uint64_t next = FeasignOf(10);
  CHECK_CODE(writer.Add(&next, row.data(), 1, row.size()), Code::kInvalidArgument);
}

TEST(further_counts_are_served_in_each_precision) {
  for (const ServePrecision precision :
       {ServePrecision::kFloat32, ServePrecision::kFloat16, ServePrecision::kInt8}) {
    Rows rows;
    for (uint64_t i = 1; i < 3000; ++i) {
      std::vector<float> row = MakeRow(static_cast<float>(i % 97), 0.25f, i % 3 == 0);
      row.insert(row.end(), {static_cast<float>(i % 5), static_cast<float>(i % 7)});
      rows[KeyOf(i)] = row;
    }
    const ServeCodec codec(kDim, true, precision, 2);
    const Made made = MakeLayer(codec, rows, 1, false);
    ServeTable table("test", codec, 1, 0);
    CHECK_OK(table.AddLayer(made.parts));
    CHECK_EQ(table.output_width(), size_t{3 + 2 + kDim});
    for (const auto& [key, row] : rows) {
      const std::vector<float> out = PullOne(table, FeasignOf(key));
      const float click = Log(row[RowLayout::kClick] + 1.0f);
      CHECK_EQ(out[0], Log(row[RowLayout::kShow] + 1.0f));
      CHECK_EQ(out[2], Log(row[row.size() - 2] + 1.0f) - click);
      CHECK_EQ(out[3], Log(row[row.size() - 1] + 1.0f) - click);
      CHECK_EQ(out[4], row[RowLayout::kEmbed]);
    }
    CHECK((PullOne(table, 999999) == std::vector<float>(table.output_width())));
    const uint64_t feasigns[] = {3, 4};
    const int32_t offsets[] = {0, 2};
    const float factors[] = {0.5f, 3};
    std::vector<float> out(table.output_width());
    CHECK_OK(table.Pull(feasigns, offsets, factors, 1, nullptr, out.data()));
    const auto sum = [&](size_t at) { return rows[KeyOf(3)][at] + rows[KeyOf(4)][at]; };
    const size_t first = rows[KeyOf(3)].size() - 2;
    CHECK_EQ(out[2], Log(sum(first) + 1.0f) - Log(sum(RowLayout::kClick) + 1.0f));
    CHECK_EQ(out[4],
             0.5f * rows[KeyOf(3)][RowLayout::kEmbed] + 3 * rows[KeyOf(4)][RowLayout::kEmbed]);
  }
}

}  // namespace
}  // namespace pbx
