// Weights and factors of the ids of a batch.
#include <algorithm>

#include "feed/instances/instances_impl.h"
#include "row/plan.h"

namespace pbx {

Status Instances::SetPoolings(const std::vector<ListPooling>& poolings) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending || !self.chunks.empty()) {
    return Error(Code::kFailedPrecondition, "SetPoolings was called after Append; call it first");
  }
  if (poolings.size() != self.slots) {
    return Error(Code::kInvalidArgument, "poolings of %zu sparse slots, but there are %zu",
                 poolings.size(), self.slots);
  }
  if (self.sharing != feed::Sharing::kOff) {
    return Error(Code::kFailedPrecondition,
                 "slots that share lists cannot be weighted or pooled by mean or sqrtn");
  }
  self.poolings = poolings;
  return Status::Ok();
}

Status Instances::Impl::CheckWeights(const ParsedChunk& chunk) const {
  const size_t n = chunk.weights.size();
  if (n == 0) return Status::Ok();
  if (n != chunk.feasigns.size()) {
    return Error(Code::kInvalidArgument, "chunk has %zu weights of %zu feasigns", n,
                 chunk.feasigns.size());
  }
  if (sharing == feed::Sharing::kOff) return Status::Ok();
  return Error(Code::kFailedPrecondition, "feasigns with weights cannot be in shared lists");
}

void Instances::Impl::MakePlan(size_t table, size_t begin, size_t end, int32_t stamp,
                               SparseBatch* out) const {
  const auto own = [&](size_t s) { return tables == 1 || table_of_slot[s] == table; };
  bool any = false;
  for (size_t s = 0; s < poolings.size(); ++s) {
    any = any || (own(s) && poolings[s] != ListPooling::kPlain);
  }
  thread_local std::vector<float> factors;
  factors.clear();
  for (size_t i = begin; any && i < end; ++i) {
    EachFedSpan(i, [&](size_t s, const Chunk& chunk, size_t first, size_t n) {
      if (!own(s)) return;
      const std::vector<float>& weights = chunk.columns.weights;
      AppendFactors(poolings[s], weights.empty() ? nullptr : weights.data() + first, n, &factors);
    });
  }
  BuildPlan(out->ids.data(), out->offsets.data(), out->offsets.size() - 1, stamp, &out->plan,
            any ? factors.data() : nullptr);
}

Status Instances::PackWeights(size_t begin, size_t end, std::vector<float>* weights) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("PackWeights"));
  PBX_RETURN_IF_ERROR(self.CheckRange(begin, end));
  weights->clear();
  for (size_t i = begin; i < end; ++i) {
    self.EachFedSpan(i, [&](size_t, const Chunk& chunk, size_t first, size_t n) {
      const std::vector<float>& of = chunk.columns.weights;
      if (of.empty()) {
        weights->resize(weights->size() + n, 1.0f);
      } else {
        weights->insert(weights->end(), of.data() + first, of.data() + first + n);
      }
    });
  }
  return Status::Ok();
}

}  // namespace pbx
