// ServedFile: the versions of an export file for readers without Python, and ServedVersion: one of
// them, open.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "library/model_inputs.h"
#include "serve/lmdb_reader.h"
#include "serve/serve_table.h"

namespace pbx {

// A version of an export file. It stays whole as long as the object lives: its generation is
// leased. Thread safe.
class ServedVersion {
 public:
  ~ServedVersion();
  ServedVersion(const ServedVersion&) = delete;
  ServedVersion& operator=(const ServedVersion&) = delete;

  uint64_t generation() const { return generation_; }
  uint64_t version() const { return version_; }
  uint64_t day() const { return day_; }
  uint64_t pass_number() const { return pass_number_; }
  const std::string& created_at() const { return created_at_; }
  const std::string& model() const { return model_; }               // name of the config
  const std::vector<std::string>& tasks() const { return tasks_; }  // names of the labels
  const ModelInputs& inputs() const { return *inputs_; }
  std::string_view onnx() const { return onnx_; }  // the dense part; empty: exported without

  Status TestAll() const;
  // Corruption if another process has cut the file short, so that what was read may be zeros. Call
  // it after reading.
  Status CheckMap() const;

 private:
  friend class ServedFile;
  ServedVersion() = default;
  Status Read(const LmdbReader::State& state, size_t resident_bytes, const ServedVersion* before);
  Status ReadModel(const LmdbReader::State& state, uint64_t model);
  Status AddTable(const LmdbReader::State& state, const Json& part, const Json& record,
                  size_t slots, size_t resident_bytes, const ServedVersion* before);
  Status AddLayer(const LmdbReader::State& state, uint64_t number, ServeTable* table);
  // The bytes, or a copy of those that the file may move.
  std::string_view Keep(const LmdbReader::Value& value);

  std::shared_ptr<LmdbReader> reader_;
  std::shared_ptr<const LmdbReader::Map> map_;
  std::string record_;  // as it is in the file
  uint64_t generation_ = 0, version_ = 0, day_ = 0, pass_number_ = 0;
  std::string created_at_, model_;
  std::vector<std::string> tasks_;
  std::vector<std::unique_ptr<std::string>> copies_;  // of values without pages of their own
  std::vector<std::unique_ptr<ServeTable>> tables_;
  std::unique_ptr<ModelInputs> inputs_;
  std::string_view onnx_;
};

class ServedFile {
 public:
  explicit ServedFile(std::string path, size_t resident_bytes)
      : path_(std::move(path)), resident_bytes_(resident_bytes) {}

  // Opens the version that the file shows, or version `pin`. Null if it is `before`. Of one thread
  // at a time. NotFound, Corruption; FailedPrecondition for a file of another format or an
  // ensemble; IOError.
  Result<std::shared_ptr<const ServedVersion>> OpenNewest(
      std::optional<uint64_t> pin, const std::shared_ptr<const ServedVersion>& before);

 private:
  // kAgain: a writer came between.
  enum class Step { kDone, kAgain };
  Result<Step> Try(std::optional<uint64_t> pin, const ServedVersion* before,
                   std::shared_ptr<const ServedVersion>* out);

  const std::string path_;
  const size_t resident_bytes_;
  std::shared_ptr<LmdbReader> reader_;
};

}  // namespace pbx
