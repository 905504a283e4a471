// The histories of users, for models that read them. A request has the newest events of a user, and
// candidates. The dense part predicts each candidate after the events, and makes keys and values of
// the events, which are kept for the next request of the user. Python's Predictor and the serving
// library share this.
//
// Letters: P = events whose keys and values are known, E = new events, G = candidates, I = floats
// of an instance (ModelInputs::width), K = floats of the keys and values of an event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "feed/text/parser.h"
#include "library/fields.h"
#include "library/model_inputs.h"
#include "library/paddlebox_serve.h"

namespace pbx {

constexpr size_t kMostName = 256;  // characters of a user's name

// The number of the first event that a candidate sees after `count` events. most: events that it
// sees at most. If there are more, the older half of `most` is left out, so that the cut depends on
// the count alone, and not on the requests that brought the events.
uint64_t FirstSeen(uint64_t count, uint64_t most);

// Events of a user that candidates see, in the order of time; n of them.
struct History {
  uint64_t first = 0;           // events before these
  std::vector<float> features;  // (n, I)
  std::vector<float> labels;    // (n)
  std::vector<int64_t> times;   // (n)
  std::vector<float> known;     // (P, K): keys and values of the first P, of all if it is kept

  uint64_t count() const { return first + times.size(); }
};

// The histories of the users who asked last, at most `budget_bytes` with their names and objects. A
// larger history is not kept. Thread safe.
class Histories {
 public:
  explicit Histories(size_t budget_bytes) : budget_(budget_bytes) {}

  std::shared_ptr<const History> Get(std::string_view user);  // null: none is kept
  // Replaces the history of a user, with none if it has no events.
  void Put(std::string user, std::shared_ptr<const History> history);

 private:
  struct User {
    std::string name;
    std::shared_ptr<const History> history;
    size_t bytes;
  };
  void Drop(std::string_view user);

  const size_t budget_;
  std::mutex mutex_;
  size_t bytes_ = 0;
  std::list<User> users_;  // those who asked last come first
  std::unordered_map<std::string_view, std::list<User>::iterator> places_;
};

// A request for one user. Of one thread at a time.
class UserRequest {
 public:
  // user: under which name the history is kept; empty: it is not. after: the number of events that
  // are kept from earlier requests, and that the new ones follow; 0: the new ones are the history.
  // NotFound: they are not kept. InvalidArgument: the name is too long. inputs, of a model with
  // users(), and histories must outlive the request.
  static Result<std::unique_ptr<UserRequest>> Begin(const ModelInputs& inputs, Histories* histories,
                                                    std::string user, uint64_t after);

  // Makes the tensors from new events and candidates. InvalidArgument for events that are not in
  // the order of time; Corruption names a damaged block. Call it once.
  Status Prepare(const ParsedChunk& events, const Stamps& of_events, const ParsedChunk& candidates,
                 const Stamps& of_candidates);

  // The inputs of the dense part (docs/formats/export.md), valid as long as this object.
  const std::vector<paddlebox_tensor>& tensors() const { return tensors_; }

  // Keeps the history. made: the second output of the dense part, of which the first (E, K) are
  // read. InvalidArgument if it has fewer floats; FailedPrecondition before Prepare or after Keep.
  Status Keep(const float* made, size_t floats);

 private:
  UserRequest(const ModelInputs& inputs, Histories* histories, std::string user, uint64_t after)
      : inputs_(inputs), histories_(histories), user_(std::move(user)), after_(after) {}
  void TakeKept(size_t more);
  Status Append(const ParsedChunk& chunk, const Stamps& stamps, std::vector<float>* features);
  Status CheckOrder(size_t before) const;
  void Cut();
  void MakeTensors();

  const ModelInputs& inputs_;
  Histories* const histories_;
  const std::string user_;
  const uint64_t after_;
  std::shared_ptr<const History> kept_;  // null if after_ is 0
  std::shared_ptr<History> history_ = std::make_shared<History>();
  bool can_keep_ = false;
  std::vector<float> candidates_;  // (G, I)
  std::vector<int64_t> times_;     // of the candidates, (G); then of all, (P + E + G)
  std::vector<int32_t> offsets_, target_offsets_, seen_, new_, asked_;
  std::vector<paddlebox_tensor> tensors_;
};

}  // namespace pbx
