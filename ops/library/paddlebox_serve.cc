#include "library/paddlebox_serve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "feed/text/parser.h"
#include "library/batch.h"
#include "library/export_file.h"
#include "library/fields.h"
#include "library/users.h"

using pbx::Code;
using pbx::Error;
using pbx::Status;

// A snapshot with the number of its users: those who acquired it, and the server that shows it.
struct paddlebox_version {
  std::shared_ptr<const pbx::ServedVersion> served;
  std::shared_ptr<std::atomic<uint64_t>> ignored;
  bool ignore_unknown = false;
  std::unique_ptr<pbx::Histories> histories;
  std::atomic<int64_t> users{1};
  void* data = nullptr;
  void (*end)(void*) = nullptr;
};

struct paddlebox_server {
  paddlebox_server(std::string path, const paddlebox_options& with)
      : options(with), file(std::move(path), with.resident_bytes) {}

  paddlebox_options options;
  pbx::ServedFile file;
  std::shared_ptr<std::atomic<uint64_t>> ignored = std::make_shared<std::atomic<uint64_t>>(0);
  std::mutex looking;  // held during a look for a new version
  std::mutex mutex;    // of the members below
  paddlebox_version* now = nullptr;
  Status trouble;
  bool closing = false;
  std::condition_variable wake;
  std::thread follower;
};

struct paddlebox_user {
  std::unique_ptr<pbx::UserRequest> request;
};

struct paddlebox_batch {
  pbx::Batch fields;
  bool full = false;  // out of memory
};

namespace {

int CodeOf(Code code) {
  switch (code) {
    case Code::kOk: return PADDLEBOX_OK;
    case Code::kInvalidArgument: return PADDLEBOX_INVALID_ARGUMENT;
    case Code::kNotFound: return PADDLEBOX_NOT_FOUND;
    case Code::kCorruption: return PADDLEBOX_CORRUPTION;
    case Code::kIOError: return PADDLEBOX_IO_ERROR;
    case Code::kOutOfSpace: return PADDLEBOX_OUT_OF_SPACE;
    case Code::kFailedPrecondition: return PADDLEBOX_FAILED_PRECONDITION;
    default: return PADDLEBOX_INTERNAL;
  }
}

int Report(int code, const char* message, paddlebox_error* error) {
  if (error == nullptr) return code;
  error->code = code;
  const size_t bytes = std::min(std::strlen(message), sizeof(error->message) - 1);
  std::memcpy(error->message, message, bytes);
  error->message[bytes] = '\0';
  return code;
}

// Runs a function that returns a Status. No exception leaves it.
template <typename Function>
int Guarded(paddlebox_error* error, const Function& function) noexcept {
  try {
    const Status status = function();
    return Report(CodeOf(status.code()), status.message().c_str(), error);
  } catch (const std::bad_alloc&) {
    return Report(PADDLEBOX_OUT_OF_SPACE, "not enough memory", error);
  } catch (const std::exception& thrown) {
    return Report(PADDLEBOX_INTERNAL, thrown.what(), error);
  } catch (...) { return Report(PADDLEBOX_INTERNAL, "an unknown error", error); }
}

void Drop(paddlebox_version* version) {
  if (version == nullptr || version->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (version->end != nullptr) version->end(version->data);
  delete version;
}

// Looks for a new version, and shows it.
Status Look(paddlebox_server* server, bool* changed) {
  *changed = false;
  const std::lock_guard<std::mutex> looking(server->looking);
  const std::optional<uint64_t> pin =
      server->options.pin == 0 ? std::nullopt : std::optional(server->options.pin);
  const auto before = server->now == nullptr ? nullptr : server->now->served;
  const auto opened = server->file.OpenNewest(pin, before);
  PBX_RETURN_IF_ERROR(opened.status());
  if (opened.value() == nullptr) return Status::Ok();
  auto* const version = new paddlebox_version();
  version->served = opened.value();
  version->ignored = server->ignored;
  version->ignore_unknown = server->options.ignore_unknown_fields != 0;
  version->histories = std::make_unique<pbx::Histories>(server->options.history_bytes);
  const paddlebox_on_version hook = server->options.on_version;
  if (hook != nullptr && hook(server->options.context, version) != 0) {
    const uint64_t number = version->served->version();
    Drop(version);
    return Error(Code::kFailedPrecondition, "version %llu: on_version refused it",
                 static_cast<unsigned long long>(number));
  }
  paddlebox_version* old = version;
  {
    const std::lock_guard<std::mutex> lock(server->mutex);
    std::swap(old, server->now);
  }
  Drop(old);
  *changed = true;
  return Status::Ok();
}

int LookGuarded(paddlebox_server* server, int* changed, paddlebox_error* error) {
  bool switched = false;
  const int code = Guarded(error, [&] {
    Status status = Look(server, &switched);
    const std::lock_guard<std::mutex> lock(server->mutex);
    server->trouble = status;
    return status;
  });
  if (changed != nullptr) *changed = switched ? 1 : 0;
  return code;
}

void Follow(paddlebox_server* server) {
  const auto wait = std::chrono::milliseconds(server->options.follow_ms);
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(server->mutex);
      if (server->wake.wait_for(lock, wait, [&] { return server->closing; })) return;
    }
    (void)LookGuarded(server, nullptr, nullptr);
  }
}

Status CheckOptions(const paddlebox_options& options) {
  if (options.interface == PADDLEBOX_INTERFACE) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "interface %u: expected %d, that of this library: compile the program with the "
               "header paddlebox_serve.h beside the library, or load the library of its own header",
               options.interface, PADDLEBOX_INTERFACE);
}

// ---- batches

template <typename Function>
void Extend(paddlebox_batch* batch, const Function& function) noexcept {
  try {
    if (!batch->full) function();
  } catch (...) { batch->full = true; }
}

// Adds a field whose values `add` adds, one for each number below n.
template <typename Add>
void SetField(paddlebox_batch* batch, const char* field, size_t n, bool list, const Add& add) {
  Extend(batch, [&] {
    batch->fields.BeginField(field, n, list);
    for (size_t i = 0; i < n; ++i) add(i);
  });
}

template <typename Integer>
void SetIntegers(paddlebox_batch* batch, const char* field, const Integer* values, size_t n,
                 bool list) {
  SetField(batch, field, n, list,
           [&](size_t i) { batch->fields.AddDigits(std::to_string(values[i])); });
}

// ---- lookups

Status CheckRoom(const paddlebox_version& version, size_t instances, size_t floats) {
  const size_t width = version.served->inputs().width();
  if (floats / std::max<size_t>(width, 1) >= instances) return Status::Ok();
  return Error(Code::kInvalidArgument, "input has room for %zu floats, expected %zu * %zu", floats,
               instances, width);
}

// FailedPrecondition unless the model reads the histories of users, or instances.
Status CheckReads(const paddlebox_version& version, bool users) {
  if ((version.served->inputs().users() != nullptr) == users) return Status::Ok();
  return Error(Code::kFailedPrecondition, "the model %s reads %s", version.served->model().c_str(),
               users ? "no history: call paddlebox_fill with instances"
                     : "the history of a user, which instances do not have: call "
                       "paddlebox_user_begin with events and candidates");
}

// what: an instance, for errors. stamps: as for Batch::Lines.
Status Parse(const paddlebox_version& version, paddlebox_batch* batch, const char* what,
             pbx::Stamps* stamps, pbx::ParsedChunk* chunk) {
  if (batch->full) return {Code::kOutOfSpace, "the batch does not fit into memory"};
  const pbx::ModelInputs& inputs = version.served->inputs();
  const auto lines = batch->fields.Lines(
      inputs.fields(), version.ignore_unknown ? version.ignored.get() : nullptr, what, stamps);
  PBX_RETURN_IF_ERROR(lines.status());
  PBX_RETURN_IF_ERROR(
      pbx::ParseChunk(inputs.schema(), lines.value().data(), lines.value().size(), chunk));
  if (!chunk->first_bad.empty()) {
    const pbx::BadLine& bad = chunk->first_bad.front();
    return Error(Code::kInvalidArgument, "%s %llu: %s", what,
                 static_cast<unsigned long long>(bad.line),
                 pbx::Fields::Reworded(bad.reason).c_str());
  }
  if (chunk->instances == batch->fields.instances()) return Status::Ok();
  return Error(Code::kInvalidArgument, "%zu instances became %zu lines", batch->fields.instances(),
               chunk->instances);
}

Status FillFrom(const paddlebox_version& version, paddlebox_batch* batch, float* input,
                size_t floats) {
  PBX_RETURN_IF_ERROR(CheckReads(version, false));
  PBX_RETURN_IF_ERROR(CheckRoom(version, batch->fields.instances(), floats));
  pbx::ParsedChunk chunk;
  PBX_RETURN_IF_ERROR(Parse(version, batch, "instance", nullptr, &chunk));
  PBX_RETURN_IF_ERROR(version.served->inputs().Fill(chunk, input));
  return version.served->CheckMap();
}

Status BeginUser(const paddlebox_version& version, std::string user, uint64_t after,
                 paddlebox_batch* events, paddlebox_batch* candidates, bool* missing,
                 paddlebox_user** out) {
  PBX_RETURN_IF_ERROR(CheckReads(version, true));
  const pbx::ModelInputs& inputs = version.served->inputs();
  auto begun = pbx::UserRequest::Begin(inputs, version.histories.get(), std::move(user), after);
  *missing = begun.status().code() == Code::kNotFound;
  PBX_RETURN_IF_ERROR(begun.status());
  pbx::Stamps of_events(*inputs.users(), true), of_candidates(*inputs.users(), false);
  pbx::ParsedChunk parsed_events, parsed_candidates;
  if (events != nullptr) {
    PBX_RETURN_IF_ERROR(Parse(version, events, "history", &of_events, &parsed_events));
  }
  if (candidates != nullptr) {
    PBX_RETURN_IF_ERROR(
        Parse(version, candidates, "candidate", &of_candidates, &parsed_candidates));
  }
  PBX_RETURN_IF_ERROR(
      begun.value()->Prepare(parsed_events, of_events, parsed_candidates, of_candidates));
  PBX_RETURN_IF_ERROR(version.served->CheckMap());
  *out = new paddlebox_user{std::move(begun.value())};
  return Status::Ok();
}

}  // namespace

extern "C" {

uint32_t paddlebox_interface(void) { return PADDLEBOX_INTERFACE; }

int paddlebox_open(const char* path, const paddlebox_options* options, paddlebox_server** server,
                   paddlebox_error* error) {
  *server = nullptr;
  std::unique_ptr<paddlebox_server> opened;
  const int made = Guarded(error, [&] {
    const paddlebox_options defaults = PADDLEBOX_OPTIONS;
    const paddlebox_options& with = options == nullptr ? defaults : *options;
    PBX_RETURN_IF_ERROR(CheckOptions(with));
    opened = std::make_unique<paddlebox_server>(path, with);
    return Status::Ok();
  });
  if (made != PADDLEBOX_OK) return made;
  const int found = LookGuarded(opened.get(), nullptr, error);
  if (found != PADDLEBOX_OK) return found;
  const int started = Guarded(error, [&] {
    if (opened->options.follow_ms != 0 && opened->options.pin == 0) {
      opened->follower = std::thread(Follow, opened.get());
    }
    return Status::Ok();
  });
  if (started != PADDLEBOX_OK) {
    Drop(opened->now);
    return started;
  }
  *server = opened.release();
  return PADDLEBOX_OK;
}

void paddlebox_close(paddlebox_server* server) {
  if (server == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(server->mutex);
    server->closing = true;
  }
  server->wake.notify_all();
  if (server->follower.joinable()) server->follower.join();
  Drop(server->now);
  delete server;
}

int paddlebox_refresh(paddlebox_server* server, int* changed, paddlebox_error* error) {
  return LookGuarded(server, changed, error);
}

int paddlebox_trouble(paddlebox_server* server, paddlebox_error* error) {
  return Guarded(error, [&] {
    const std::lock_guard<std::mutex> lock(server->mutex);
    return server->trouble;
  });
}

uint64_t paddlebox_ignored_fields(paddlebox_server* server) { return server->ignored->load(); }

void paddlebox_acquire(paddlebox_server* server, paddlebox_version** version) {
  const std::lock_guard<std::mutex> lock(server->mutex);
  server->now->users.fetch_add(1, std::memory_order_relaxed);
  *version = server->now;
}

void paddlebox_release(paddlebox_version* version) { Drop(version); }

void paddlebox_describe(const paddlebox_version* version, paddlebox_about* about) {
  const pbx::ServedVersion& served = *version->served;
  about->version = served.version();
  about->generation = served.generation();
  about->day = served.day();
  about->pass_number = served.pass_number();
  about->width = served.inputs().width();
  about->sparse_slots = served.inputs().slots();
  about->dense_width = served.inputs().dense_width();
  about->tasks = served.tasks().size();
  about->users = served.inputs().users() != nullptr ? 1 : 0;
  about->model = served.model().c_str();
  about->created_at = served.created_at().c_str();
}

const char* paddlebox_task(const paddlebox_version* version, uint64_t number) {
  const std::vector<std::string>& tasks = version->served->tasks();
  return number < tasks.size() ? tasks[number].c_str() : nullptr;
}

int paddlebox_onnx(const paddlebox_version* version, const void** bytes, size_t* size,
                   paddlebox_error* error) {
  *bytes = nullptr;
  *size = 0;
  return Guarded(error, [&]() -> Status {
    const std::string_view onnx = version->served->onnx();
    if (onnx.empty()) {
      return Error(Code::kFailedPrecondition,
                   "version %llu of the model %s has no ONNX model: export it with `paddlebox "
                   "export --onnx`",
                   static_cast<unsigned long long>(version->served->version()),
                   version->served->model().c_str());
    }
    *bytes = onnx.data();
    *size = onnx.size();
    return version->served->CheckMap();
  });
}

void paddlebox_attach(paddlebox_version* version, void* data, void (*end)(void* data)) {
  version->data = data;
  version->end = end;
}

void* paddlebox_attached(const paddlebox_version* version) { return version->data; }

int paddlebox_warm(const paddlebox_version* version, paddlebox_error* error) {
  return Guarded(error, [&] {
    PBX_RETURN_IF_ERROR(version->served->TestAll());
    return version->served->CheckMap();
  });
}

paddlebox_batch* paddlebox_batch_new(void) { return new (std::nothrow) paddlebox_batch(); }

void paddlebox_batch_free(paddlebox_batch* batch) { delete batch; }

void paddlebox_batch_clear(paddlebox_batch* batch) {
  batch->fields.Clear();
  batch->full = false;
}

void paddlebox_batch_next(paddlebox_batch* batch) { batch->fields.Next(); }

void paddlebox_batch_text(paddlebox_batch* batch, const char* field, const char* text,
                          size_t bytes) {
  SetField(batch, field, 1, false, [&](size_t) { batch->fields.AddText(text, bytes); });
}

void paddlebox_batch_integer(paddlebox_batch* batch, const char* field, int64_t value) {
  SetIntegers(batch, field, &value, 1, false);
}

void paddlebox_batch_id(paddlebox_batch* batch, const char* field, uint64_t value) {
  SetIntegers(batch, field, &value, 1, false);
}

void paddlebox_batch_real(paddlebox_batch* batch, const char* field, double value) {
  SetField(batch, field, 1, false, [&](size_t) { batch->fields.AddReal(value); });
}

void paddlebox_batch_texts(paddlebox_batch* batch, const char* field, const char* const* texts,
                           const size_t* bytes, size_t n) {
  SetField(batch, field, n, true, [&](size_t i) { batch->fields.AddText(texts[i], bytes[i]); });
}

void paddlebox_batch_integers(paddlebox_batch* batch, const char* field, const int64_t* values,
                              size_t n) {
  SetIntegers(batch, field, values, n, true);
}

void paddlebox_batch_ids(paddlebox_batch* batch, const char* field, const uint64_t* values,
                         size_t n) {
  SetIntegers(batch, field, values, n, true);
}

void paddlebox_batch_reals(paddlebox_batch* batch, const char* field, const double* values,
                           size_t n) {
  SetField(batch, field, n, true, [&](size_t i) { batch->fields.AddReal(values[i]); });
}

int paddlebox_fill(const paddlebox_version* version, paddlebox_batch* batch, float* input,
                   size_t floats, paddlebox_error* error) {
  return Guarded(error, [&] { return FillFrom(*version, batch, input, floats); });
}

int paddlebox_fill_ids(const paddlebox_version* version, const uint64_t* ids,
                       const int32_t* offsets, const float* weights, const float* dense,
                       size_t instances, float* input, size_t floats, paddlebox_error* error) {
  return Guarded(error, [&] {
    PBX_RETURN_IF_ERROR(CheckReads(*version, false));
    PBX_RETURN_IF_ERROR(CheckRoom(*version, instances, floats));
    const pbx::ModelInputs& inputs = version->served->inputs();
    const size_t lists = instances * inputs.slots();
    const pbx::ModelInputs::Lists given = {ids, offsets, weights, dense};
    PBX_RETURN_IF_ERROR(inputs.Check(given, instances, static_cast<size_t>(offsets[lists])));
    PBX_RETURN_IF_ERROR(inputs.Fill(given, instances, input));
    return version->served->CheckMap();
  });
}

int paddlebox_user_begin(const paddlebox_version* version, const char* user, size_t user_bytes,
                         uint64_t after, paddlebox_batch* events, paddlebox_batch* candidates,
                         paddlebox_user** request, paddlebox_error* error) {
  *request = nullptr;
  bool missing = false;
  const int code = Guarded(error, [&] {
    std::string name;
    if (user_bytes != 0) name.assign(user, user_bytes);
    return BeginUser(*version, std::move(name), after, events, candidates, &missing, request);
  });
  if (!missing) return code;
  if (error != nullptr) error->code = PADDLEBOX_HISTORY_MISSING;
  return PADDLEBOX_HISTORY_MISSING;
}

void paddlebox_user_inputs(const paddlebox_user* request, const paddlebox_tensor** inputs,
                           size_t* n) {
  *inputs = request->request->tensors().data();
  *n = request->request->tensors().size();
}

int paddlebox_user_keep(paddlebox_user* request, const float* known, size_t floats,
                        paddlebox_error* error) {
  return Guarded(error, [&] { return request->request->Keep(known, floats); });
}

void paddlebox_user_end(paddlebox_user* request) { delete request; }

}  // extern "C"
