// ServeTables: the pooled slots of several tables, one behind the other as a program over them
// (nn.PooledTables) has them, from requests whose slots stand in the order of slots.yaml.
//
// Letters as in serve_table.h; S_t, width_t = those of table t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "serve/serve_table.h"

namespace pbx {

class ServeTables {
 public:
  // tables: borrowed, at most 256. table_of_slot: (S) number of each slot's table. InvalidArgument
  // unless each table has as many slots there as it was made for.
  static Result<std::unique_ptr<ServeTables>> Of(std::vector<const ServeTable*> tables,
                                                 std::vector<uint8_t> table_of_slot,
                                                 size_t dense_width);

  // feasigns (nnz), offsets (B * S + 1), dense (B, W); out (B, sum of S_t * width_t + W): the slots
  // of table 0, those of table 1 and so on, and the dense features. Otherwise as ServeTable::Pull.
  Status Pull(const uint64_t* feasigns, const int32_t* offsets, size_t instances,
              const float* dense, float* out) const;

  size_t slots() const { return table_of_slot_.size(); }
  size_t dense_width() const { return dense_width_; }
  size_t output_width() const { return width_; }

 private:
  ServeTables(std::vector<const ServeTable*> tables, std::vector<uint8_t> table_of_slot,
              size_t dense_width);

  std::vector<const ServeTable*> tables_;
  std::vector<uint8_t> table_of_slot_;
  size_t dense_width_, width_;
};

}  // namespace pbx
