// Index and PackBatch for instances whose slots belong to several tables.
#include <algorithm>
#include <limits>
#include <utility>

#include "feed/instances/instances_impl.h"
#include "feed/instances/unique_keys.h"

namespace pbx {

Status Instances::SetTables(const std::vector<uint8_t>& table_of_slot) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending || !self.chunks.empty()) {
    return Error(Code::kFailedPrecondition, "SetTables was called after Append; call it first");
  }
  if (table_of_slot.size() != self.slots) {
    return Error(Code::kInvalidArgument, "tables of %zu sparse slots, but there are %zu",
                 table_of_slot.size(), self.slots);
  }
  std::vector<uint8_t> sorted = table_of_slot;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (!sorted.empty() && sorted.back() != sorted.size() - 1) {
    return Error(Code::kInvalidArgument, "slots of tables up to %d, but only %zu tables have slots",
                 static_cast<int>(sorted.back()), sorted.size());
  }
  self.tables = std::max<size_t>(1, sorted.size());
  self.table_of_slot = table_of_slot;
  return Status::Ok();
}

void Instances::Impl::KeysByTable(ThreadPool* pool) {
  key_bounds.assign(1, 0);
  for (size_t t = 0; t < tables; ++t) {
    // The feasigns of a table are copied to one place, because in a chunk they are mixed with the
    // feasigns of other tables.
    std::vector<std::vector<uint64_t>> gathered(chunks.size());
    pool->ParallelFor(chunks.size(), [&](size_t c) {
      const Chunk& chunk = chunks[c];
      const uint64_t* const feasigns = chunk.columns.feasigns.data();
      const uint32_t* lengths = chunk.columns.lengths.data();
      const auto gather = [&](size_t s, size_t begin, size_t end) {
        if (table_of_slot[s] != t) return;
        gathered[c].insert(gathered[c].end(), feasigns + begin, feasigns + end);
      };
      for (size_t row = 0; row < chunk.columns.instances; ++row, lengths += slots) {
        feed::EachOwnList(chunk.shared, lengths, slots, chunk.starts[row], gather);
      }
      for (size_t d = 0; d < chunk.shared.slots.size(); ++d) {
        gather(chunk.shared.slots[d], chunk.shared.bounds[d], chunk.shared.bounds[d + 1]);
      }
    });
    std::vector<feed::FeasignSpan> spans;
    spans.reserve(gathered.size());
    for (const auto& feasigns : gathered) spans.push_back({feasigns.data(), feasigns.size()});
    const std::vector<uint64_t> of_table = feed::SortedUniqueKeys(spans, pool);
    keys.insert(keys.end(), of_table.begin(), of_table.end());
    key_bounds.push_back(keys.size());
  }
}

void Instances::Impl::FindByTable(const std::vector<SortedIndex>& indexes, size_t begin, size_t end,
                                  Chunk* chunk) const {
  constexpr size_t kBlock = 1024;  // keys of a table looked up together
  struct Asked {
    std::vector<uint64_t> keys;
    std::vector<size_t> places;
  };
  std::vector<Asked> asked(tables);
  std::vector<int32_t> found(kBlock);
  const auto answer = [&](size_t t) {
    Asked& of = asked[t];
    indexes[t].FindBatch(of.keys.data(), of.keys.size(), found.data());
    const int32_t base = static_cast<int32_t>(key_bounds[t]);
    for (size_t i = 0; i < of.places.size(); ++i) chunk->positions[of.places[i]] = base + found[i];
    of.keys.clear();
    of.places.clear();
  };
  const uint64_t* const feasigns = chunk->columns.feasigns.data();
  const uint32_t* lengths = chunk->columns.lengths.data() + begin * slots;
  for (size_t row = begin; row < end; ++row, lengths += slots) {
    const auto ask = [&](size_t s, size_t at, size_t stop) {
      const size_t t = table_of_slot[s];
      for (; at < stop; ++at) {
        asked[t].keys.push_back(KeyOf(feasigns[at]));
        asked[t].places.push_back(at);
        if (asked[t].keys.size() == kBlock) answer(t);
      }
    };
    feed::EachOwnList(chunk->shared, lengths, slots, chunk->starts[row], ask);
  }
  for (size_t t = 0; t < tables; ++t) answer(t);
}

Status Instances::PackTable(size_t table, size_t begin, size_t end, const int32_t* row_of_position,
                            int32_t stamp, SparseBatch* out) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("PackTable"));
  PBX_RETURN_IF_ERROR(self.CheckRange(begin, end));
  if (table >= self.tables) {
    return Error(Code::kInvalidArgument, "table %zu, but there are %zu", table, self.tables);
  }
  constexpr size_t kMost = static_cast<size_t>(std::numeric_limits<int32_t>::max());
  out->ids.clear();
  out->offsets.assign(1, 0);
  for (size_t i = begin; i < end; ++i) {
    self.EachFedList(i, [&](size_t s, const int32_t* positions, size_t n) {
      if (self.tables > 1 && self.table_of_slot[s] != table) return;
      for (size_t k = 0; k < n; ++k) out->ids.push_back(row_of_position[positions[k]]);
      out->offsets.push_back(static_cast<int32_t>(std::min(kMost, out->ids.size())));
    });
    if (out->ids.size() > kMost || out->offsets.size() > kMost) {
      return Error(
          Code::kInvalidArgument,
          "a batch of %zu instances has more than 2^31 - 1 feasigns or segments; lower the "
          "batch size",
          end - begin);
    }
  }
  self.MakePlan(table, begin, end, stamp, out);
  self.JoinRepeats(table, begin, end, out);
  return Status::Ok();
}

}  // namespace pbx
