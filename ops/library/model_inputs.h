// ModelInputs: what a model of an export file does with an instance before its dense part: raw
// fields to feasigns and dense features, their rows, and the input of the dense part. Python's
// Predictor and the serving library share it.
//
// Letters: B = instances, S = sparse slots, C = cells: one for each pooled slot, max_length for
// each sequence, W = dense width, Q = sequences, nnz = feasigns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "feed/text/parser.h"
#include "library/fields.h"
#include "row/pooling.h"
#include "serve/serve_table.h"
#include "serve/serve_tables.h"

namespace pbx {

class ModelInputs {
 public:
  // feed: the record `model/<m>/feed` of an export file (docs/formats/export.md). InvalidArgument
  // if its members contradict each other.
  static Result<std::unique_ptr<ModelInputs>> Of(const Json& feed);

  // tables: one for each table of the model, in their order; must outlive this object.
  // InvalidArgument if they were made for other slots.
  Status SetTables(const std::vector<const ServeTable*>& tables);

  const FeedSchema& schema() const { return schema_; }
  const Fields& fields() const { return fields_; }
  size_t slots() const { return schema_.sparse_slots(); }       // S
  size_t dense_width() const { return schema_.dense_width(); }  // W
  size_t sequences() const { return sequences_; }               // Q
  bool weighted() const { return schema_.weighted(); }
  const std::vector<size_t>& clicks() const { return clicks_; }  // cells
  bool cvm() const { return cvm_; }
  // Null: the model reads instances, not the histories of users.
  const UserForm* users() const { return users_.has_value() ? &*users_ : nullptr; }
  // Floats of an instance: the pooled slots of each table, W, Q, and the click priors.
  size_t width() const { return width_; }

  // What a pull reads. The memory belongs to the caller.
  struct Lists {
    const uint64_t* feasigns;  // (nnz)
    const int32_t* offsets;    // (B * S + 1), ascending from 0 to nnz
    const float* weights;      // (nnz), 1 for feasigns of slots without weights; null: all are 1
    const float* dense;        // (B, W)
  };
  // InvalidArgument unless the lists fit the slots, and weights are in [0, 2^32], 1 for slots
  // without weights, and there exactly if a slot is weighted. Those of feasign 0 are not read.
  Status Check(const Lists& lists, size_t instances, size_t nnz) const;
  // out: (B, width()). REQUIRES: Check, for the first. Both are thread safe after SetTables.
  // Corruption names a damaged block;
  Status Fill(const Lists& lists, size_t instances, float* out) const;
  Status Fill(const ParsedChunk& chunk, float* out) const;

 private:
  ModelInputs() = default;
  Status CheckWeights(const Lists& lists, size_t instances, size_t nnz) const;
  Status SetSequences(const Json& feed, JsonReader* reader);
  void SetUsers(const Json& feed, JsonReader* reader);
  Status SetPoolings(const Json& feed, JsonReader* reader);
  // Appends the offsets of the cells (B * C + 1), and dense features with the lengths (B, W + Q).
  Status Part(const Lists& lists, size_t instances, std::vector<int32_t>* offsets,
              std::vector<float>* dense) const;

  FeedSchema schema_;
  Fields fields_;
  std::optional<UserForm> users_;
  std::vector<ListPooling> poolings_;  // (S); empty: no factors
  std::vector<uint32_t> cells_;        // (S) cells of each sequence; 0: a pooled slot
  std::vector<uint8_t> table_of_slot_;
  std::vector<size_t> clicks_;
  size_t sequences_ = 0, width_ = 0;
  bool cvm_ = false;
  const ServeTable* first_ = nullptr;
  std::unique_ptr<ServeTables> several_;  // null: one table
};

// The pooling of a name: plain, sum, mean or sqrtn. InvalidArgument for another.
Result<ListPooling> ListPoolingOf(const std::string& name);

}  // namespace pbx
