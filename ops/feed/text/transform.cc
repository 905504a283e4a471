#include "feed/text/transform.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "row/feasign.h"

namespace pbx {
namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

// The transform of one sparse slot, with names resolved.
struct SparsePlan {
  const SlotTransform* transform = nullptr;
  uint64_t default_feasign = 0;
  uint64_t seed = 0;             // computed slots: hash of the name
  size_t dense = kNone;          // bucket: the dense column
  size_t first = 0, second = 0;  // cross: numbers of sparse slots
  size_t max_length = SIZE_MAX;
};

struct Plan {
  std::vector<SparsePlan> sparse;  // (S)
  size_t read = 0;                 // number of sparse slots that are read; they come first
  size_t width = 0;                // number of floats that are read; they come first
  std::vector<size_t> exact;       // the dense column of each slot with exact_of
  bool changes_sparse = false;
};

size_t IndexOfKind(const FeedSchema& schema, SlotKind kind, const std::string& name) {
  size_t index = 0;
  for (const SlotSpec& slot : schema.slots) {
    if (slot.name == name) break;
    if (slot.kind == kind) index += kind == SlotKind::kDense ? static_cast<size_t>(slot.dim) : 1;
  }
  return index;
}

Plan PlanOf(const FeedSchema& schema) {
  Plan plan;
  for (const SlotSpec& slot : schema.slots) {
    const SlotTransform& t = slot.transform;
    if (slot.kind == SlotKind::kDense && !t.made()) plan.width += static_cast<size_t>(slot.dim);
    if (!t.exact_of.empty()) plan.exact.push_back(IndexOfKind(schema, slot.kind, t.exact_of));
    if (slot.kind != SlotKind::kSparse) continue;
    SparsePlan one;
    one.transform = &t;
    if (t.max_length != 0) one.max_length = t.max_length;
    if (t.has_default) {
      one.default_feasign =
          t.made() ? t.default_feasign : schema.Keyed(t.default_feasign, plan.sparse.size());
    }
    if (t.made()) one.seed = HashBytes(slot.name.data(), slot.name.size(), 0);
    if (!t.bucket_of.empty()) one.dense = IndexOfKind(schema, SlotKind::kDense, t.bucket_of);
    if (!t.cross.empty()) {
      one.first = IndexOfKind(schema, SlotKind::kSparse, t.cross[0]);
      one.second = IndexOfKind(schema, SlotKind::kSparse, t.cross[1]);
      if (t.max_length == 0) one.max_length = kMaxCrossed;
    }
    plan.read += !t.made();
    plan.changes_sparse |= t.made() || t.max_length != 0 || t.has_default;
    plan.sparse.push_back(one);
  }
  return plan;
}

// Writes the sparse slots of instance after instance.
class SparseWriter {
 public:
  // weighted: whether feasigns have weights.
  SparseWriter(const Plan& plan, size_t instances, bool weighted)
      : cut_lists(plan.sparse.size()),
        cut_values(plan.sparse.size()),
        plan_(plan),
        weighted_(weighted),
        starts_(plan.sparse.size() + 1) {
    lengths.reserve(instances * plan.sparse.size());
  }

  // read: the feasigns of this instance. read_weights: their weights, if they have any. exact: its
  // dense values as read, if there are buckets with boundaries. Returns where the feasigns of the
  // next one begin.
  const uint64_t* Add(const uint64_t* read, const float* read_weights, const uint32_t* read_lengths,
                      const long double* exact) {
    for (size_t s = 0; s < plan_.sparse.size(); ++s) {
      const SparsePlan& slot = plan_.sparse[s];
      starts_[s] = feasigns.size();
      if (s < plan_.read) {
        const size_t kept = std::min<size_t>(read_lengths[s], slot.max_length);
        Cut(s, read_lengths[s] - kept);
        feasigns.insert(feasigns.end(), read, read + kept);
        if (weighted_) {
          weights.insert(weights.end(), read_weights, read_weights + kept);
          read_weights += read_lengths[s];
        }
        read += read_lengths[s];
      } else if (slot.dense != kNone) {
        feasigns.push_back(FeasignOfPair(slot.seed, Bucket(slot, exact), 0));
      } else {
        const size_t pairs = (starts_[slot.first + 1] - starts_[slot.first]) *
                             (starts_[slot.second + 1] - starts_[slot.second]);
        Cross(slot);
        Cut(s, pairs - (feasigns.size() - starts_[s]));
      }
      if (feasigns.size() == starts_[s] && slot.default_feasign != 0) {
        feasigns.push_back(slot.default_feasign);
      }
      if (weighted_) weights.resize(feasigns.size(), 1.0f);  // of those made here
      lengths.push_back(static_cast<uint32_t>(feasigns.size() - starts_[s]));
      starts_[s + 1] = feasigns.size();
    }
    return read;
  }

  std::vector<uint64_t> feasigns;
  std::vector<float> weights;
  std::vector<uint32_t> lengths;
  std::vector<uint64_t> cut_lists, cut_values;  // (S)

 private:
  void Cut(size_t slot, size_t values) {
    cut_lists[slot] += values != 0;
    cut_values[slot] += values;
  }

  static uint64_t Bucket(const SparsePlan& slot, const long double* exact) {
    const std::vector<long double>& b = slot.transform->boundaries;
    if (b.empty()) return 0;
    return static_cast<uint64_t>(std::upper_bound(b.begin(), b.end(), exact[slot.dense]) -
                                 b.begin());
  }

  void Cross(const SparsePlan& slot) {
    size_t room = slot.max_length;
    for (size_t i = starts_[slot.first]; i < starts_[slot.first + 1]; ++i) {
      for (size_t j = starts_[slot.second]; j < starts_[slot.second + 1]; ++j) {
        if (room-- == 0) return;
        feasigns.push_back(FeasignOfPair(slot.seed, feasigns[i], feasigns[j]));
      }
    }
  }

  const Plan& plan_;
  const bool weighted_;
  std::vector<size_t> starts_;  // of the slots of the current instance
};

// Appends the floats of exact values to each row.
void AddExact(const Plan& plan, ParsedChunk* chunk) {
  std::vector<float> dense;
  dense.reserve(chunk->instances * (plan.width + plan.exact.size() * kExactFloats));
  for (size_t i = 0; i < chunk->instances; ++i) {
    const float* const row = chunk->dense.data() + i * plan.width;
    dense.insert(dense.end(), row, row + plan.width);
    for (const size_t column : plan.exact) {
      long double rest = chunk->exact[i * plan.width + column];
      for (int part = 0; part < kExactFloats; ++part) {
        dense.push_back(static_cast<float>(rest));
        rest -= static_cast<long double>(dense.back());
      }
    }
  }
  chunk->dense = std::move(dense);
}

void TransformDense(const FeedSchema& schema, size_t width, ParsedChunk* chunk) {
  size_t column = 0;
  for (const SlotSpec& slot : schema.slots) {
    if (slot.kind != SlotKind::kDense || slot.transform.made()) continue;
    const SlotTransform& t = slot.transform;
    for (const size_t end = column + static_cast<size_t>(slot.dim); column < end; ++column) {
      if (!t.clip && !t.log1p) continue;
      for (size_t at = column; at < chunk->dense.size(); at += width) {
        float v = chunk->dense[at];
        if (t.clip) v = std::min(std::max(v, t.clip_low), t.clip_high);
        // Computed in long double, for which glibc has one log for all x86-64 processors.
        if (t.log1p)
          v = static_cast<float>(std::log(1 + static_cast<long double>(std::max(v, 0.f))));
        chunk->dense[at] = v;
      }
    }
  }
}

}  // namespace

void Transform(const FeedSchema& schema, ParsedChunk* chunk) {
  const Plan plan = PlanOf(schema);
  if (plan.changes_sparse) {
    const bool weighted = schema.weighted();
    SparseWriter writer(plan, chunk->instances, weighted);
    writer.feasigns.reserve(chunk->feasigns.size() +
                            chunk->instances * (plan.sparse.size() - plan.read));
    const size_t of_row = chunk->exact.empty() ? 0 : plan.width;
    const uint64_t* const first = chunk->feasigns.data();
    const uint64_t* read = first;
    for (size_t i = 0; i < chunk->instances; ++i) {
      const float* const weights = weighted ? chunk->weights.data() + (read - first) : nullptr;
      read = writer.Add(read, weights, chunk->lengths.data() + i * plan.read,
                        chunk->exact.data() + i * of_row);
    }
    chunk->feasigns = std::move(writer.feasigns);
    chunk->weights = std::move(writer.weights);
    chunk->lengths = std::move(writer.lengths);
    if (std::any_of(writer.cut_lists.begin(), writer.cut_lists.end(),
                    [](uint64_t lists) { return lists != 0; })) {
      chunk->cut_lists = std::move(writer.cut_lists);
      chunk->cut_values = std::move(writer.cut_values);
    }
    chunk->nonzero = false;  // not checked
    chunk->single = false;
  }
  TransformDense(schema, plan.width, chunk);
  if (!plan.exact.empty()) AddExact(plan, chunk);
  chunk->exact = {};
}

}  // namespace pbx
