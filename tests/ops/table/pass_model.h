// A plain model of a table: one map of rows, one thread, no tiers; and passes of random batches to
// give to both. What the model ends as, a table must end as, whatever its settings.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "row/feasign.h"
#include "rule/accessor.h"
#include "table/table.h"

namespace pbx::test {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;
using Keys = std::vector<uint64_t>;

struct Batch {
  size_t instances = 0, slots = 0;
  bool use_cvm = true;
  Keys feasigns;
  Ints offsets;       // (instances * slots + 1)
  Floats show_click;  // (instances, 2)
  Floats grad;        // (instances, slots * width)
};

struct Pass {
  uint32_t day = 0;
  Keys keys;                    // ascending
  std::vector<uint16_t> slots;  // of rows made new
  std::vector<Batch> batches;
};

// Embedx comes early (score 1), so that rows of both kinds meet; two rules with different states.
inline TableConfig SmallConfig() {
  TableConfig config;
  config.accessor.layout.embedx_dim = 5;
  config.accessor.embedx_threshold = 1.0f;
  config.accessor.embedx.kind = RuleKind::kAdam;
  config.accessor.embedx.initial_range = 0.1f;
  config.hbm_budget_bytes = 64 << 20;
  return config;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }
  uint64_t Below(uint64_t n) { return Next() % n; }
  float Uniform() { return static_cast<float>(Next() >> 40) * (2.0f / 16777216.0f) - 1.0f; }

 private:
  uint64_t state_;
};

// Pass `number` of a job over feasigns 1 .. population: half of its keys are of the hot tenth, so
// passes overlap; a fifth of its keys is in no batch.
inline Pass MakePass(uint64_t number, uint64_t population, size_t size, int dim) {
  Random random(number + 1);
  Pass pass;
  pass.day = static_cast<uint32_t>(20000 + number);
  std::set<uint64_t> chosen;
  for (size_t i = 0; i < size; ++i) {
    chosen.insert(1 + random.Below(i % 2 == 0 ? population : population / 10));
  }
  const Keys feasigns(chosen.begin(), chosen.end());
  for (const uint64_t feasign : feasigns) pass.keys.push_back(KeyOf(feasign));
  std::sort(pass.keys.begin(), pass.keys.end());
  for (const uint64_t key : pass.keys) {
    pass.slots.push_back(static_cast<uint16_t>((FeasignOf(key) + number) % 7));
  }
  for (int b = 0; b < 4; ++b) {
    Batch batch;
    batch.instances = 400 + random.Below(50);
    batch.slots = 3;
    batch.use_cvm = b % 2 == 0;
    batch.offsets.push_back(0);
    for (size_t segment = 0; segment < batch.instances * batch.slots; ++segment) {
      for (uint64_t n = random.Below(6); n > 0; --n) {
        const uint64_t draw = random.Below(feasigns.size());
        const bool padding = random.Below(20) == 0;
        batch.feasigns.push_back(padding ? 0 : feasigns[draw - (draw % 5 == 4)]);
      }
      batch.offsets.push_back(static_cast<int32_t>(batch.feasigns.size()));
    }
    for (size_t i = 0; i < batch.instances; ++i) {
      batch.show_click.push_back(static_cast<float>(random.Below(3)));
      batch.show_click.push_back(static_cast<float>(random.Below(2)));
    }
    const size_t width = static_cast<size_t>(dim) + (batch.use_cvm ? 3 : 1);
    batch.grad.resize(batch.instances * batch.slots * width);
    for (float& g : batch.grad) g = random.Uniform() * 0.01f;
    pass.batches.push_back(std::move(batch));
  }
  return pass;
}

class Model {
 public:
  explicit Model(const TableConfig& config)
      : config_(config.accessor), precision_(config.precision) {
    config_.layout.embed_state = rule::StateSize(config_.embed.kind, 1);
    config_.layout.embedx_state = rule::StateSize(config_.embedx.kind, Dim());
  }

  int Dim() const { return config_.layout.embedx_dim; }

  void Train(const Pass& pass) {
    for (const Batch& batch : pass.batches) Push(pass, batch);
  }

  void Push(const Pass& pass, const Batch& batch) {
    const size_t columns = 1 + static_cast<size_t>(Dim());
    const size_t weights_at = batch.use_cvm ? 2 : 0;
    struct Merged {
      float show = 0, click = 0;
      Floats g;
    };
    std::map<uint64_t, Merged> merged;
    for (size_t segment = 0; segment + 1 < batch.offsets.size(); ++segment) {
      for (int32_t i = batch.offsets[segment]; i < batch.offsets[segment + 1]; ++i) {
        const uint64_t feasign = batch.feasigns[static_cast<size_t>(i)];
        if (feasign == 0) continue;
        Merged& sum = merged[KeyOf(feasign)];
        sum.g.resize(columns, 0.0f);
        sum.show += batch.show_click[segment / batch.slots * 2];
        sum.click += batch.show_click[segment / batch.slots * 2 + 1];
        const float* from = &batch.grad[segment * (weights_at + columns) + weights_at];
        for (size_t c = 0; c < columns; ++c) sum.g[c] += from[c];
      }
    }
    for (auto& [key, sum] : merged) {
      for (float& g : sum.g) g *= static_cast<float>(batch.instances);
      auto it = rows_.find(key);
      if (it == rows_.end()) {
        it = rows_.emplace(key, Created(pass, key)).first;
        step_of_[key] = products_.size() - 1;
      }
      Decay(key, &it->second);
      accessor::Push(config_, key, sum.show, sum.click, sum.g.data(), pass.day, it->second.data());
      touched_.insert(key);
      step_of_[key] = products_.size() - 1;
    }
    const auto next = [&](long double product, const RuleConfig& rule) {
      const double rate = double{rule.learning_rate} * double{config_.rate};
      return product * (1.0 - rate * double{config_.weight_decay});
    };
    products_.push_back({next(products_.back().first, config_.embed),
                         next(products_.back().second, config_.embedx)});
  }

  // Multiplies all weights, as a table without a clock would do it in each step. The factors are
  // not rounded: the error of a rounded factor would grow with each step.
  void Scale(double embed, double embedx) {
    const RowLayout& layout = config_.layout;
    for (auto& [key, row] : rows_) {
      const auto scale = [&row = row](int word, double factor) {
        float& w = row[static_cast<size_t>(word)];
        w = static_cast<float>(w * factor);
      };
      scale(RowLayout::kEmbed, embed);
      for (int i = 0; i < layout.embedx_dim; ++i) scale(layout.embedx_at() + i, embedx);
    }
  }
  void SetRate(float rate) { config_.rate = rate; }

  void EndPass(uint64_t number) {
    const RowCodec codec(config_.layout, precision_);
    if (config_.weight_decay > 0) {
      LifeEvent event;
      event.seq = static_cast<uint32_t>(events_.size()) + 1;
      event.kind = LifeKind::kWeightDecay;
      event.embed_decay = static_cast<float>(products_.back().first);
      event.embedx_decay = static_cast<float>(products_.back().second);
      for (const uint64_t key : touched_) {
        Floats& row = rows_.at(key);
        Decay(key, &row);
        SetWord(row.data(), RowLayout::kLifeSeq, event.seq);
      }
      Happen(event);
    }
    products_ = {{1, 1}};
    step_of_.clear();
    for (const uint64_t key : touched_) {
      codec.Round(config_.seed, key, number, rows_.at(key).data());
    }
    touched_.clear();
  }

  // The event happens to every row now. Returns how many it deleted.
  size_t Happen(const LifeEvent& event) {
    events_.push_back(event);
    const size_t before = rows_.size();
    const RowCodec codec(config_.layout, precision_);
    for (auto it = rows_.begin(); it != rows_.end();) {
      it = life::Apply(config_, codec, events_.data(), events_.size(), it->first, it->second.data())
               ? std::next(it)
               : rows_.erase(it);
    }
    return before - rows_.size();
  }
  const std::vector<LifeEvent>& events() const { return events_; }

  // What a pull of the key gives: (3 + D) columns. pass null: an evaluation, absent rows are zeros.
  Floats Pulled(const Pass* pass, uint64_t feasign) const {
    Floats out(3 + static_cast<size_t>(Dim()), 0.0f);
    const auto it = rows_.find(KeyOf(feasign));
    if (feasign == 0 || (it == rows_.end() && pass == nullptr)) return out;
    Floats row = it != rows_.end() ? it->second : Created(*pass, KeyOf(feasign));
    if (it != rows_.end()) Decay(KeyOf(feasign), &row);
    out[0] = row[RowLayout::kShow];
    out[1] = row[RowLayout::kClick];
    out[2] = row[RowLayout::kEmbed];
    for (int c = 0; c < Dim(); ++c) {
      out[3 + static_cast<size_t>(c)] = row[static_cast<size_t>(config_.layout.embedx_at() + c)];
    }
    return out;
  }

  std::string Digest() const {
    uint64_t sums[2] = {0, 0};
    for (const auto& [key, row] : rows_) {
      for (uint64_t seed = 0; seed < 2; ++seed) {
        sums[seed] +=
            HashBytes(row.data(), config_.layout.bytes(), Mix(key + seed * 0x9e3779b97f4a7c15ULL));
      }
    }
    char text[33];
    std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, Mix(sums[0] + rows_.size()),
                  sums[1]);
    return text;
  }

  size_t rows() const { return rows_.size(); }

 private:
  Floats Created(const Pass& pass, uint64_t key) const {
    const auto at = std::lower_bound(pass.keys.begin(), pass.keys.end(), key) - pass.keys.begin();
    Floats row(static_cast<size_t>(config_.layout.words()));
    accessor::Create(config_, key, pass.slots[static_cast<size_t>(at)], row.data());
    SetWord(row.data(), RowLayout::kLifeSeq, static_cast<uint32_t>(events_.size()));
    return row;
  }

  // The decay since the last push of the row in this pass, or since the pass began.
  void Decay(uint64_t key, Floats* row) const {
    const auto found = step_of_.find(key);
    const auto& from = products_[found == step_of_.end() ? 0 : found->second];
    const auto& now = products_.back();
    accessor::ScaleWeights(config_.layout, static_cast<float>(now.first / from.first),
                           static_cast<float>(now.second / from.second), row->data());
  }

  AccessorConfig config_;
  Precision precision_;
  std::vector<std::pair<long double, long double>> products_ = {{1, 1}};  // of embed_w, of embedx
  std::map<uint64_t, size_t> step_of_;  // of the rows that were pushed in this pass
  std::map<uint64_t, Floats> rows_;
  std::set<uint64_t> touched_;  // since the last EndPass
  std::vector<LifeEvent> events_;
};

// ---- The same with a table

inline std::unique_ptr<Table> OpenTable(const TableConfig& config,
                                        const std::vector<SegmentDescriptor>& segments = {}) {
  auto table = Table::Open(config, segments);
  CHECK_OK(table.status());
  return std::move(table.value());
}

inline StagedPass StageTrain(Table* table, const Pass& pass) {
  auto staged = table->Stage(pass.keys.data(), pass.slots.data(), pass.keys.size(), Purpose::kTrain,
                             pass.day);
  CHECK_OK(staged.status());
  return staged.value();
}

inline Ints Translated(Table* table, const Keys& feasigns) {
  Ints ids(feasigns.size(), -7);
  CHECK_OK(table->Translate(feasigns.data(), feasigns.size(), ids.data()));
  return ids;
}

inline void PushBatch(Table* table, const Batch& batch) {
  const Ints ids = Translated(table, batch.feasigns);
  CHECK_OK(table->PushPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                             batch.slots, batch.use_cvm, batch.show_click.data(), nullptr, 0,
                             batch.grad.data()));
}

// What a pull of the feasigns gives; pass null: of an evaluation.
inline Floats PulledOf(const Model& model, const Pass* pass, const Keys& feasigns) {
  Floats all;
  for (const uint64_t feasign : feasigns) {
    const Floats one = model.Pulled(pass, feasign);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// The open pass pulls what is expected.
inline void CheckPull(Table* table, const Floats& expected, const Keys& feasigns) {
  const Ints ids = Translated(table, feasigns);
  const size_t width = expected.size() / feasigns.size();
  Floats out(expected.size(), -1.0f);
  CHECK_OK(table->Pull(ids.data(), ids.size(), out.data()));
  size_t wrong = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    wrong += !std::equal(&expected[i * width], &expected[i * width] + width, &out[i * width]);
  }
  CHECK_EQ(wrong, 0u);
}
inline void CheckPull(Table* table, const Model& model, const Pass* pass, const Keys& feasigns) {
  CheckPull(table, PulledOf(model, pass, feasigns), feasigns);
}

inline std::vector<SegmentDescriptor> Commit(Table* table) {
  const auto written = table->WriteFrozen();
  CHECK_OK(written.status());
  CHECK_OK(table->Publish(written.value().segments));
  return written.value().segments;
}

inline std::string DigestOf(Table* table) {
  const auto digest = table->Digest();
  CHECK_OK(digest.status());
  return digest.value();
}

}  // namespace pbx::test
