// ServeTables: the pooled slots of several tables, table after table as in programs that use
// nn.PooledTables, for requests whose slots are in the order of slots.yaml.
//
// Letters as in serve_table.h; S_t, width_t = S and width of table t.
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
  // tables: at most 256, must outlive this object. table_of_slot: (S), number of each slot's table.
  // InvalidArgument unless each table has as many slots as it was made for.
  static Result<std::unique_ptr<ServeTables>> Of(std::vector<const ServeTable*> tables,
                                                 std::vector<uint8_t> table_of_slot,
                                                 size_t dense_width);

  // feasigns (nnz), offsets (B * S + 1), dense (B, W); out (B, sum of S_t * width_t + W): the slots
  // of table 0, of table 1 and so on, then the dense features. Otherwise as ServeTable::Pull.
  Status Pull(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
              size_t instances, const float* dense, float* out) const;

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
