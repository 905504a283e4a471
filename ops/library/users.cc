#include "library/users.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <numeric>
#include <type_traits>

namespace pbx {
namespace {

// Of a user besides the name and the arrays: nodes of the list and the map, and what the allocator
// adds to each piece. Measured with glibc 2.36.
constexpr size_t kObjectBytes = 384;

size_t BytesOf(const std::string& user, const History& history) {
  const size_t floats =
      history.features.capacity() + history.labels.capacity() + history.known.capacity();
  return kObjectBytes + user.capacity() + floats * sizeof(float) +
         history.times.capacity() * sizeof(int64_t);
}

size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a further byte of UTF-8
  }));
}

// Leaves out the first n elements, and their memory.
template <typename T>
void DropFirst(std::vector<T>* values, size_t n) {
  *values = std::vector<T>(values->begin() + static_cast<std::ptrdiff_t>(n), values->end());
}

// columns 0: the tensor is a vector.
template <typename T>
paddlebox_tensor TensorOf(const char* name, const T* data, size_t rows, size_t columns = 0) {
  static const T kNone{};  // has an address
  const size_t bytes = rows * std::max<size_t>(columns, 1) * sizeof(T);
  const auto type = std::is_same_v<T, float>     ? PADDLEBOX_FLOAT32
                    : std::is_same_v<T, int32_t> ? PADDLEBOX_INT32
                                                 : PADDLEBOX_INT64;
  return {name,
          type,
          columns == 0 ? 1u : 2u,
          {static_cast<int64_t>(rows), static_cast<int64_t>(columns)},
          bytes == 0 ? &kNone : data,
          bytes};
}

}  // namespace

uint64_t FirstSeen(uint64_t count, uint64_t most) {
  if (count <= most) return 0;
  const uint64_t half = std::max<uint64_t>(1, most / 2 + most % 2);
  return (count - most + half - 1) / half * half;
}

std::shared_ptr<const History> Histories::Get(std::string_view user) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = places_.find(user);
  if (found == places_.end()) return nullptr;
  users_.splice(users_.begin(), users_, found->second);
  return found->second->history;
}

void Histories::Drop(std::string_view user) {
  const auto found = places_.find(user);
  if (found == places_.end()) return;
  const auto place = found->second;
  bytes_ -= place->bytes;
  places_.erase(found);  // before the name
  users_.erase(place);
}

void Histories::Put(std::string user, std::shared_ptr<const History> history) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Drop(user);
  const size_t bytes = BytesOf(user, *history);
  if (history->count() == 0 || bytes > budget_) return;
  users_.push_front({std::move(user), std::move(history), bytes});
  places_[users_.front().name] = users_.begin();
  bytes_ += bytes;
  while (bytes_ > budget_) Drop(users_.back().name);
}

Result<std::unique_ptr<UserRequest>> UserRequest::Begin(const ModelInputs& inputs,
                                                        Histories* histories, std::string user,
                                                        uint64_t after) {
  if (const size_t characters = Characters(user); characters > kMostName) {
    return Error(Code::kInvalidArgument,
                 "user: expected a name of at most %zu characters, found %zu: send a shorter one, "
                 "such as a hash of it",
                 kMostName, characters);
  }
  std::unique_ptr<UserRequest> request(new UserRequest(inputs, histories, std::move(user), after));
  if (after == 0) return request;
  const std::string& name = request->user_;
  std::shared_ptr<const History>& kept = request->kept_;
  kept = histories->Get(name);  // none under an empty name
  const uint64_t count = kept != nullptr ? kept->count() : 0;
  if (count < after || FirstSeen(after, inputs.users()->most) != kept->first) {
    return Error(Code::kNotFound,
                 "after: expected at most %" PRIu64
                 ", the events of user %s that are kept here, "
                 "found %" PRIu64 ": send the whole history, and after 0",
                 count, Quoted(name, kMostName).c_str(), after);
  }
  return request;
}

// Copies the first events that are kept, with room for more.
void UserRequest::TakeKept(size_t more) {
  const size_t n = kept_ != nullptr ? static_cast<size_t>(after_ - kept_->first) : 0;
  const auto take = [&](auto member, size_t width) {
    auto& to = (*history_).*member;
    to.reserve((n + more) * width);
    if (n == 0) return;
    const auto from = ((*kept_).*member).begin();
    to.assign(from, from + static_cast<std::ptrdiff_t>(n * width));
  };
  take(&History::features, inputs_.width());
  take(&History::labels, 1);
  take(&History::times, 1);
  take(&History::known, inputs_.users()->known_width);
  history_->first = kept_ != nullptr ? kept_->first : 0;
}

Status UserRequest::Append(const ParsedChunk& chunk, const Stamps& stamps,
                           std::vector<float>* features) {
  if (chunk.instances != stamps.times().size()) {
    return Error(Code::kInvalidArgument, "%zu instances have %zu times", chunk.instances,
                 stamps.times().size());
  }
  const size_t at = features->size();
  features->resize(at + chunk.instances * inputs_.width());
  return chunk.instances == 0 ? Status::Ok() : inputs_.Fill(chunk, features->data() + at);
}

// before: events that were kept.
Status UserRequest::CheckOrder(size_t before) const {
  const std::vector<int64_t>& times = history_->times;
  for (size_t i = std::max<size_t>(before, 1); i < times.size(); ++i) {
    if (times[i] >= times[i - 1]) continue;
    return Error(Code::kInvalidArgument,
                 "history %zu: expected events in the order of time, found time %" PRId64
                 " after %" PRId64,
                 i - before, times[i], times[i - 1]);
  }
  return Status::Ok();
}

void UserRequest::Cut() {
  History& history = *history_;
  const uint64_t first = FirstSeen(history.count(), inputs_.users()->most);
  if (first == history.first) return;
  const auto gone = static_cast<size_t>(first - history.first);
  DropFirst(&history.features, gone * inputs_.width());
  DropFirst(&history.labels, gone);
  DropFirst(&history.times, gone);
  // The events left out have changed the keys and values of the others in all layers but one.
  history.known = std::vector<float>();
  history.known.reserve(history.times.size() * inputs_.users()->known_width);
  history.first = first;
}

Status UserRequest::Prepare(const ParsedChunk& events, const Stamps& of_events,
                            const ParsedChunk& candidates, const Stamps& of_candidates) {
  TakeKept(events.instances);
  kept_.reset();
  const size_t before = history_->times.size();
  PBX_RETURN_IF_ERROR(Append(events, of_events, &history_->features));
  PBX_RETURN_IF_ERROR(Append(candidates, of_candidates, &candidates_));
  const std::vector<int64_t>& times = of_events.times();
  const std::vector<float>& labels = of_events.labels();
  history_->times.insert(history_->times.end(), times.begin(), times.end());
  history_->labels.insert(history_->labels.end(), labels.begin(), labels.end());
  times_ = of_candidates.times();
  PBX_RETURN_IF_ERROR(CheckOrder(before));
  Cut();
  constexpr size_t kMost = std::numeric_limits<int32_t>::max();
  if (const size_t tokens = history_->times.size() + times_.size(); tokens > kMost) {
    return Error(Code::kInvalidArgument, "%zu events and candidates: expected at most %zu", tokens,
                 kMost);
  }
  MakeTensors();
  can_keep_ = true;
  return Status::Ok();
}

void UserRequest::MakeTensors() {
  const History& history = *history_;
  const size_t width = inputs_.width(), known_width = inputs_.users()->known_width;
  const size_t n = history.times.size(), known = history.known.size() / known_width;
  const size_t fresh = n - known, asked = times_.size();
  times_.insert(times_.begin(), history.times.begin(), history.times.end());
  offsets_ = {0, static_cast<int32_t>(n)};
  target_offsets_ = {0, static_cast<int32_t>(asked)};
  seen_.assign(n + asked, static_cast<int32_t>(n));
  std::iota(seen_.begin(), seen_.begin() + static_cast<std::ptrdiff_t>(n), 0);
  std::fill_n(seen_.begin(), known, 0);  // no result of a known event is used, so it sees nothing
  new_.resize(fresh + asked);
  std::iota(new_.begin(), new_.end(), static_cast<int32_t>(known));
  asked_.resize(asked);
  std::iota(asked_.begin(), asked_.end(), static_cast<int32_t>(fresh));
  tensors_ = {TensorOf("box_events", history.features.data() + known * width, fresh, width),
              TensorOf("box_label", history.labels.data() + known, fresh, 1),
              TensorOf("box_candidates", candidates_.data(), asked, width),
              TensorOf("box_known", history.known.data(), known, known_width),
              TensorOf("box_offsets", offsets_.data(), 2),
              TensorOf("box_target_offsets", target_offsets_.data(), 2),
              TensorOf("box_seen", seen_.data(), n + asked),
              TensorOf("box_time", times_.data(), n + asked),
              TensorOf("box_new", new_.data(), fresh + asked),
              TensorOf("box_asked", asked_.data(), asked)};
}

Status UserRequest::Keep(const float* made, size_t floats) {
  if (!can_keep_) {
    return Error(Code::kFailedPrecondition, "keep: expected one call for each request");
  }
  const size_t width = inputs_.users()->known_width;
  const size_t wanted = history_->times.size() * width - history_->known.size();
  if (floats < wanted) {
    return Error(Code::kInvalidArgument,
                 "keys and values: expected at least %zu floats, %zu for each new event, found %zu",
                 wanted, width, floats);
  }
  can_keep_ = false;
  if (user_.empty()) return Status::Ok();
  history_->known.insert(history_->known.end(), made, made + wanted);
  histories_->Put(user_, history_);
  return Status::Ok();
}

}  // namespace pbx
