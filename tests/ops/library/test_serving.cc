// The serving library over small files: versions, threads, errors.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "library/lmdb_pages.h"
#include "library/paddlebox_serve.h"
#include "library/served_file.h"
#include "serve/lmdb_reader.h"

namespace pbx {
namespace {

using test::LmdbPages;
using test::Replace;
using test::Values;

std::string PathOf(const char* name) {
  return "/tmp/paddlebox_serving_" + std::to_string(getpid()) + "_" + name;
}

struct File {
  explicit File(const char* name) : path(PathOf(name)) {}
  ~File() { (void)std::remove(path.c_str()); }
  void Show(uint64_t version) const { Replace(path, LmdbPages::File(Values(version), 2)); }
  const std::string path;
};

paddlebox_options Options() {
  paddlebox_options options = PADDLEBOX_OPTIONS;
  options.follow_ms = 0;
  return options;
}

paddlebox_server* Opened(const std::string& path, const paddlebox_options& options) {
  paddlebox_server* server = nullptr;
  paddlebox_error error;
  CHECK_EQ(paddlebox_open(path.c_str(), &options, &server, &error), PADDLEBOX_OK);
  if (server == nullptr) std::cerr << error.message << std::endl;
  return server;
}

std::string Refused(const std::string& path, int code) {
  paddlebox_server* server = nullptr;
  paddlebox_error error;
  const paddlebox_options options = Options();
  CHECK_EQ(paddlebox_open(path.c_str(), &options, &server, &error), code);
  CHECK(server == nullptr);
  paddlebox_close(server);
  return error.message;
}

bool Has(const std::string& text, const char* part) {
  if (text.find(part) != text.npos) return true;
  std::cerr << "no '" << part << "' in: " << text << std::endl;
  return false;
}

// One instance: age, user "u", tags 7 with weight 1 and 8 with weight 3.
void SetInstance(paddlebox_batch* batch) {
  const char* const tags[] = {"7:1", "8:3"};
  const size_t bytes[] = {3, 3};
  paddlebox_batch_clear(batch);
  paddlebox_batch_next(batch);
  paddlebox_batch_real(batch, "age", 0.5);
  paddlebox_batch_text(batch, "user", "u", 1);
  paddlebox_batch_texts(batch, "tags", tags, bytes, 2);
}

// The message of a fill that fails with a code.
std::string Wrong(paddlebox_server* server, paddlebox_batch* batch, int code, size_t floats = 7) {
  paddlebox_version* version = nullptr;
  paddlebox_error error;
  float input[16];
  paddlebox_acquire(server, &version);
  CHECK_EQ(paddlebox_fill(version, batch, input, floats, &error), code);
  CHECK_EQ(error.code, code);
  paddlebox_release(version);
  return error.message;
}

TEST(an_instance_becomes_its_pooled_rows_and_dense_features) {
  const File file("fill");
  file.Show(4);
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_version* version = nullptr;
  paddlebox_about about;
  paddlebox_acquire(server, &version);
  paddlebox_describe(version, &about);
  CHECK_EQ(about.version, 4u);
  CHECK_EQ(about.width, 7u);
  CHECK_EQ(std::string(about.model), "small");
  CHECK_EQ(std::string(paddlebox_task(version, 0)), "click");
  CHECK(paddlebox_task(version, 1) == nullptr);
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  paddlebox_batch_next(batch);  // all fields are missing: age has the default
  float input[14];
  CHECK_EQ(paddlebox_fill(version, batch, input, 14, nullptr), PADDLEBOX_OK);
  const float expected[14] = {4, 0, 0, 4 * 0.25f + 8 * 0.75f, 0, 0, 0.5f, 0, 0, 0, 0, 0, 0, 3};
  for (int i = 0; i < 14; ++i) CHECK_EQ(input[i], expected[i]);
  const uint64_t ids[] = {FeasignOfString("u", 1), 7, 8};
  const int32_t offsets[] = {0, 1, 3};
  const float weights[] = {1, 1, 3}, age = 0.5f;
  float same[7];
  CHECK_EQ(paddlebox_fill_ids(version, ids, offsets, weights, &age, 1, same, 7, nullptr),
           PADDLEBOX_OK);
  for (int i = 0; i < 7; ++i) CHECK_EQ(same[i], expected[i]);
  const void* model = nullptr;
  size_t size = 0;
  CHECK_EQ(paddlebox_onnx(version, &model, &size, nullptr), PADDLEBOX_OK);
  CHECK_EQ(std::string(static_cast<const char*>(model), size), "model 4");
  CHECK_EQ(paddlebox_warm(version, nullptr), PADDLEBOX_OK);
  paddlebox_batch_free(batch);
  paddlebox_close(server);  // the version stays
  CHECK_EQ(paddlebox_fill_ids(version, ids, offsets, weights, &age, 1, same, 7, nullptr),
           PADDLEBOX_OK);
  paddlebox_release(version);
}

TEST(a_wrong_field_or_value_names_the_instance_and_the_field) {
  const File file("wrong");
  file.Show(1);
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  paddlebox_batch_next(batch);
  paddlebox_batch_text(batch, "usr", "u", 1);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_NOT_FOUND, 14),
            "instance 1: no slot reads a field 'usr'; expected one of age, user, tags"));
  SetInstance(batch);
  paddlebox_batch_text(batch, "late", "x", 1);  // a slot beside the features
  paddlebox_batch_real(batch, "tags", 1.5);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_INVALID_ARGUMENT),
            "instance 0: field 'tags': expected an integer, found the float 1.5"));
  SetInstance(batch);
  paddlebox_batch_text(batch, "tags", "a b", 3);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_INVALID_ARGUMENT), "instance 0: slot 'tags': 'a b'"));
  SetInstance(batch);
  paddlebox_batch_text(batch, "user", "a\nb", 3);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_INVALID_ARGUMENT),
            "field 'user': 'a\\nb' holds a line break"));
  SetInstance(batch);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_INVALID_ARGUMENT, 6),
            "input has room for 6 floats, expected 1 * 7"));
  paddlebox_batch_free(batch);
  paddlebox_close(server);
}

TEST(unknown_fields_are_counted_if_they_are_ignored) {
  const File file("ignored");
  file.Show(1);
  paddlebox_options options = Options();
  options.ignore_unknown_fields = 1;
  paddlebox_server* const server = Opened(file.path, options);
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  paddlebox_batch_integer(batch, "new", 4);
  CHECK_EQ(Wrong(server, batch, PADDLEBOX_OK), "");
  CHECK_EQ(paddlebox_ignored_fields(server), 1u);
  paddlebox_batch_free(batch);
  paddlebox_close(server);
}

TEST(ids_that_do_not_fit_the_slots_are_errors) {
  const File file("ids");
  file.Show(1);
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_version* version = nullptr;
  paddlebox_acquire(server, &version);
  const uint64_t ids[] = {1, 7, 8};
  const float age = 1;
  float input[7];
  const auto wrong = [&](std::vector<int32_t> offsets, const float* weights, const float* dense) {
    paddlebox_error error;
    CHECK_EQ(paddlebox_fill_ids(version, ids, offsets.data(), weights, dense, 1, input, 7, &error),
             PADDLEBOX_INVALID_ARGUMENT);
    return std::string(error.message);
  };
  const float ones[] = {1, 1, 1}, negative[] = {1, 1, -1}, other[] = {2, 1, 1};
  CHECK(Has(wrong({0, 2, 1}, ones, &age), "offsets: expected ascending values"));
  CHECK(Has(wrong({1, 2, 3}, ones, &age), "offsets: expected ascending values"));
  CHECK(Has(wrong({0, 1, 3}, nullptr, &age), "expected weights"));
  CHECK(Has(wrong({0, 1, 3}, negative, &age), "expected numbers in [0, 2^32]"));
  CHECK(Has(wrong({0, 1, 3}, other, &age), "expected 1 in slot 'user'"));
  CHECK(Has(wrong({0, 1, 3}, ones, nullptr), "dense: expected 1 floats"));
  paddlebox_release(version);
  paddlebox_close(server);
}

TEST(a_program_compiled_with_another_header_is_refused) {
  const File file("interface");
  file.Show(1);
  paddlebox_options options = Options();
  options.interface = PADDLEBOX_INTERFACE + 1;
  paddlebox_server* server = nullptr;
  paddlebox_error error;
  CHECK_EQ(paddlebox_open(file.path.c_str(), &options, &server, &error),
           PADDLEBOX_INVALID_ARGUMENT);
  CHECK(Has(error.message, "interface 2: expected 1"));
}

TEST(a_file_that_is_no_export_is_an_error) {
  const File file("other");
  CHECK(Has(Refused(file.path, PADDLEBOX_NOT_FOUND), "expected an export file, found none"));
  Replace(file.path, "");
  CHECK(Has(Refused(file.path, PADDLEBOX_CORRUPTION), "expected an export file"));
  Replace(file.path, LmdbPages::File({}, 2));
  CHECK(Has(Refused(file.path, PADDLEBOX_FAILED_PRECONDITION), "no version has been exported yet"));
  auto values = Values(1);
  values["head"] = test::Sealed(R"({"format": 5, "current": 1})");
  Replace(file.path, LmdbPages::File(values, 2));
  CHECK(Has(Refused(file.path, PADDLEBOX_FAILED_PRECONDITION), "has format 5, expected 6"));
}

// Every value missing, damaged or replaced by another JSON: an error, never another answer.
TEST(a_damaged_record_is_an_error_that_names_it) {
  const File file("records");
  for (const auto& [key, value] : Values(1)) {
    if (key.find("block") != key.npos || key.find("onnx") != key.npos) continue;
    auto values = Values(1);
    values[key].back() = static_cast<char>(values[key].back() ^ 1);
    Replace(file.path, LmdbPages::File(values, 2));
    CHECK(Has(Refused(file.path, PADDLEBOX_CORRUPTION), key.c_str()));
    values[key] = test::Sealed(R"({"format": 6, "current": 1})");
    Replace(file.path, LmdbPages::File(values, 2));
    const bool unread = key == "head" || key.find("filter") != key.npos;  // there is no filter
    if (!unread) CHECK(Has(Refused(file.path, PADDLEBOX_CORRUPTION), "export"));
    values.erase(key);
    if (key == "head") continue;
    Replace(file.path, LmdbPages::File(values, 2));
    CHECK(Has(Refused(file.path, PADDLEBOX_CORRUPTION), "export it again"));
  }
}

// Each byte of a page of the tree changed: an error, or the same answer, but no crash.
TEST(a_damaged_page_is_an_error_or_changes_nothing) {
  const File file("pages");
  const std::string whole = LmdbPages::File(Values(3), 2);
  const size_t step = test::kSanitized ? 61 : 7;
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  size_t opened = 0, refused = 0;
  for (size_t at = 0; at < whole.size(); at += step) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    Replace(file.path, changed);
    paddlebox_server* server = nullptr;
    const paddlebox_options options = Options();
    if (paddlebox_open(file.path.c_str(), &options, &server, nullptr) != PADDLEBOX_OK) {
      ++refused;
      continue;
    }
    ++opened;
    paddlebox_version* version = nullptr;
    float input[7];
    paddlebox_acquire(server, &version);
    if (paddlebox_fill(version, batch, input, 7, nullptr) == PADDLEBOX_OK) CHECK_EQ(input[0], 3.0f);
    paddlebox_release(version);
    paddlebox_close(server);
  }
  CHECK(opened > 100);
  CHECK(refused > 20);
  paddlebox_batch_free(batch);
}

TEST(pages_are_checked_before_lmdb_reads_them) {
  const File file("checked");
  const std::string whole = LmdbPages::File(Values(3), 2);
  const auto checked = [&](const std::string& bytes) {
    Replace(file.path, bytes);
    const auto reader = LmdbReader::Open(file.path);
    if (!reader.ok()) return reader.status();
    return reader.value()->Check(reader.value()->Newest().value(), true);
  };
  CHECK_OK(checked(whole));
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    const Status status = checked(changed);
    CHECK(status.ok() || status.code() == Code::kCorruption);
    refused += status.ok() ? 0 : 1;
  }
  CHECK(refused > 20);
  std::string moved = whole;
  moved[whole.find("model/000000000002/feed") + 19] = 'x';  // to behind "onnx"
  CHECK(Has(checked(moved).message(), "keys are out of order"));
  CHECK(Has(checked(whole.substr(0, 3 * LmdbPages::kPage)).message(), "the file ends before it"));
}

TEST(a_damaged_block_fails_the_requests_that_need_it) {
  const File file("block");
  auto values = Values(1);
  values["layer/000000000003/block/000000000000"][30] ^= 1;
  Replace(file.path, LmdbPages::File(values, 2));
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_CORRUPTION), "block 0 of layer 3"));
  paddlebox_batch_clear(batch);
  paddlebox_batch_next(batch);  // reads no row
  CHECK_EQ(Wrong(server, batch, PADDLEBOX_OK), "");
  paddlebox_batch_free(batch);
  paddlebox_close(server);
}

TEST(a_file_cut_short_is_an_error_and_the_process_goes_on) {
  const File file("cut");
  const std::string whole = LmdbPages::File(Values(1, true), 2);
  Replace(file.path, whole);
  paddlebox_server* const server = Opened(file.path, Options());
  CHECK_EQ(truncate(file.path.c_str(), LmdbPages::kPage), 0);
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  (void)Wrong(server, batch, PADDLEBOX_CORRUPTION);
  int changed = 1;
  CHECK(paddlebox_refresh(server, &changed, nullptr) != PADDLEBOX_OK);
  CHECK_EQ(changed, 0);
  CHECK(paddlebox_trouble(server, nullptr) != PADDLEBOX_OK);
  paddlebox_batch_free(batch);
  paddlebox_close(server);
}

struct Prepared {
  std::atomic<int> made{0}, ended{0};
  bool refuse = false;
};

int Prepare(void* context, paddlebox_version* version) {
  auto* const prepared = static_cast<Prepared*>(context);
  if (prepared->refuse) return 1;
  ++prepared->made;
  paddlebox_attach(version, prepared, [](void* data) { ++static_cast<Prepared*>(data)->ended; });
  return 0;
}

TEST(what_is_attached_lives_as_long_as_its_version) {
  const File file("attached");
  file.Show(1);
  Prepared prepared;
  paddlebox_options options = Options();
  options.on_version = &Prepare;
  options.context = &prepared;
  paddlebox_server* const server = Opened(file.path, options);
  paddlebox_version* old = nullptr;
  paddlebox_acquire(server, &old);
  CHECK(paddlebox_attached(old) == &prepared);
  file.Show(2);
  int changed = 0;
  CHECK_EQ(paddlebox_refresh(server, &changed, nullptr), PADDLEBOX_OK);
  CHECK_EQ(changed, 1);
  CHECK_EQ(paddlebox_refresh(server, &changed, nullptr), PADDLEBOX_OK);
  CHECK_EQ(changed, 0);
  CHECK_EQ(prepared.made, 2);
  CHECK_EQ(prepared.ended, 0);
  paddlebox_release(old);
  CHECK_EQ(prepared.ended, 1);
  prepared.refuse = true;
  file.Show(3);
  paddlebox_error error;
  CHECK_EQ(paddlebox_refresh(server, &changed, &error), PADDLEBOX_FAILED_PRECONDITION);
  CHECK(Has(error.message, "version 3: on_version refused it"));
  paddlebox_acquire(server, &old);
  paddlebox_about about;
  paddlebox_describe(old, &about);
  CHECK_EQ(about.version, 2u);
  paddlebox_close(server);
  CHECK_EQ(prepared.ended, 1);
  paddlebox_release(old);
  CHECK_EQ(prepared.ended, 2);
}

// Readers get answers of one version each, while the file is replaced and followed.
TEST(versions_are_swapped_under_load) {
  const File file("load");
  file.Show(1);
  paddlebox_options options = Options();
  options.follow_ms = 1;
  paddlebox_server* const server = Opened(file.path, options);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> newest{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      paddlebox_batch* const batch = paddlebox_batch_new();
      SetInstance(batch);
      while (!stop) {
        paddlebox_version* version = nullptr;
        paddlebox_about about;
        float input[7];
        paddlebox_error error;
        paddlebox_acquire(server, &version);
        paddlebox_describe(version, &about);
        const int code = paddlebox_fill(version, batch, input, 7, &error);
        if (code != PADDLEBOX_OK) test::Fail(__FILE__, __LINE__, error.message);
        CHECK_EQ(input[0], static_cast<float>(about.version));
        CHECK_EQ(input[3], 1.75f * static_cast<float>(about.version));
        const void* model = nullptr;
        size_t size = 0;
        CHECK_EQ(paddlebox_onnx(version, &model, &size, nullptr), PADDLEBOX_OK);
        CHECK_EQ(std::string(static_cast<const char*>(model), size),
                 "model " + std::to_string(about.version));
        newest = about.version;
        paddlebox_release(version);
      }
      paddlebox_batch_free(batch);
    });
  }
  const uint64_t last = test::kSanitized ? 60 : 600;
  for (uint64_t version = 2; version <= last; ++version) {
    file.Show(version);
    CHECK_EQ(paddlebox_refresh(server, nullptr, nullptr), PADDLEBOX_OK);
  }
  while (newest != last) std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  paddlebox_close(server);
}

// ---- histories of users

struct UserFile : File {
  explicit UserFile(const char* name) : File(name) {}
  void Show(uint64_t version) const {
    auto values = Values(version);
    values["model/000000000002/feed"] = test::Sealed(test::FeedOfUsers());
    Replace(path, LmdbPages::File(values, 2));
  }
};

// A request for a user with an event at each time, whose label is the time modulo 2. Candidates are
// at time 99.
struct Request {
  Request(const paddlebox_version* version, const std::string& user, uint64_t after,
          const std::vector<int64_t>& times, size_t candidates = 1)
      : events(paddlebox_batch_new()), asked(paddlebox_batch_new()) {
    for (const int64_t time : times) {
      Add(events, time);
      paddlebox_batch_integer(events, "click", time % 2);
    }
    for (size_t i = 0; i < candidates; ++i) Add(asked, 99);
    code = paddlebox_user_begin(version, user.data(), user.size(), after, events, asked, &request,
                                &error);
    if (code == PADDLEBOX_OK) paddlebox_user_inputs(request, &inputs, &n);
  }
  ~Request() {
    paddlebox_user_end(request);
    paddlebox_batch_free(events);
    paddlebox_batch_free(asked);
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  static void Add(paddlebox_batch* batch, int64_t time) {
    paddlebox_batch_next(batch);
    paddlebox_batch_text(batch, "user", "u", 1);
    paddlebox_batch_real(batch, "age", 0.5);
    paddlebox_batch_integer(batch, "ts", time);
  }

  template <typename T>
  std::vector<T> Input(const std::string& name) const {
    for (size_t i = 0; i < n; ++i) {
      if (inputs[i].name != name) continue;
      const auto* const data = static_cast<const T*>(inputs[i].data);
      return std::vector<T>(data, data + inputs[i].bytes / sizeof(T));
    }
    return {T(-1)};
  }

  // Keeps what a dense part could make of a token: its time, and twice that.
  void Keep() const {
    std::vector<float> made;
    const auto times = Input<int64_t>("box_time");
    for (const int32_t token : Input<int32_t>("box_new")) {
      const auto time = static_cast<float>(times[static_cast<size_t>(token)]);
      made.insert(made.end(), {time, 2 * time});
    }
    CHECK_EQ(paddlebox_user_keep(request, made.data(), made.size(), nullptr), PADDLEBOX_OK);
  }

  paddlebox_batch *events, *asked;
  int code = 0;
  paddlebox_error error{};
  paddlebox_user* request = nullptr;
  const paddlebox_tensor* inputs = nullptr;
  size_t n = 0;
};

using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;
using Floats = std::vector<float>;

TEST(candidates_follow_the_events_that_are_kept_and_the_new_ones) {
  const UserFile file("users");
  file.Show(4);
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_version* version = nullptr;
  paddlebox_about about;
  paddlebox_acquire(server, &version);
  paddlebox_describe(version, &about);
  CHECK_EQ(about.users, 1u);
  {
    const Request first(version, "u1", 0, {1, 2, 3}, 2);
    CHECK_EQ(std::string(first.error.message), "");
    const Floats event = {4, 0, 0, 0, 0, 0, 0.5f};
    Floats events;
    for (int i = 0; i < 3; ++i) events.insert(events.end(), event.begin(), event.end());
    CHECK(first.Input<float>("box_events") == events);
    CHECK((first.Input<float>("box_label") == Floats{1, 0, 1}));
    CHECK_EQ(first.Input<float>("box_candidates").size(), 14u);
    CHECK(first.Input<float>("box_known").empty());
    CHECK((first.Input<int32_t>("box_offsets") == Ints{0, 3}));
    CHECK((first.Input<int32_t>("box_target_offsets") == Ints{0, 2}));
    CHECK((first.Input<int32_t>("box_seen") == Ints{0, 1, 2, 3, 3}));
    CHECK((first.Input<int64_t>("box_time") == Longs{1, 2, 3, 99, 99}));
    CHECK((first.Input<int32_t>("box_new") == Ints{0, 1, 2, 3, 4}));
    CHECK((first.Input<int32_t>("box_asked") == Ints{3, 4}));
    CHECK_EQ(first.inputs[0].type, PADDLEBOX_FLOAT32);
    CHECK_EQ(first.inputs[0].shape[1], 7);
    first.Keep();
  }
  {
    const Request next(version, "u1", 3, {4});
    CHECK((next.Input<float>("box_known") == Floats{1, 2, 2, 4, 3, 6}));
    CHECK((next.Input<float>("box_label") == Floats{0}));
    CHECK((next.Input<int32_t>("box_seen") == Ints{0, 0, 0, 3, 4}));
    CHECK((next.Input<int64_t>("box_time") == Longs{1, 2, 3, 4, 99}));
    CHECK((next.Input<int32_t>("box_new") == Ints{3, 4}));
    CHECK((next.Input<int32_t>("box_asked") == Ints{1}));
    // It is not kept, so the next request has another fourth event.
  }
  CHECK_EQ(Request(version, "u1", 4, {}).code, PADDLEBOX_HISTORY_MISSING);
  Request(version, "u1", 3, {5}).Keep();
  {
    const Request repeated(version, "u1", 2, {3, 5});  // forgets the later ones
    CHECK((repeated.Input<float>("box_known") == Floats{1, 2, 2, 4}));
    repeated.Keep();
  }
  {
    const Request over(version, "u1", 4, {6}, 0);  // 5 events: the first two are left out
    CHECK((over.Input<int64_t>("box_time") == Longs{3, 5, 6}));
    CHECK((over.Input<float>("box_label") == Floats{1, 1, 0}));
    CHECK(over.Input<float>("box_known").empty());
    over.Keep();
  }
  const Request before(version, "u1", 4, {});
  CHECK_EQ(before.code, PADDLEBOX_HISTORY_MISSING);
  CHECK_EQ(before.error.code, PADDLEBOX_HISTORY_MISSING);
  CHECK_EQ(std::string(before.error.message),
           "after: expected at most 5, the events of user 'u1' that are kept here, found 4: send "
           "the whole history, and after 0");
  CHECK((Request(version, "u1", 5, {}).Input<float>("box_known") == Floats{3, 6, 5, 10, 6, 12}));
  // A new version starts without histories; the old one has its own as long as it is in use.
  file.Show(5);
  CHECK_EQ(paddlebox_refresh(server, nullptr, nullptr), PADDLEBOX_OK);
  paddlebox_version* newer = nullptr;
  paddlebox_acquire(server, &newer);
  CHECK_EQ(Request(newer, "u1", 5, {}).code, PADDLEBOX_HISTORY_MISSING);
  CHECK_EQ(Request(version, "u1", 5, {}).code, PADDLEBOX_OK);
  paddlebox_release(version);
  paddlebox_release(newer);
  paddlebox_close(server);
}

TEST(a_wrong_request_for_a_user_is_named) {
  const UserFile file("wrong_users");
  file.Show(1);
  const File other("no_users");
  other.Show(1);
  paddlebox_server* const server = Opened(file.path, Options());
  paddlebox_server* const without = Opened(other.path, Options());
  paddlebox_version *version = nullptr, *of_instances = nullptr;
  paddlebox_acquire(server, &version);
  paddlebox_acquire(without, &of_instances);
  const Request late(version, "u", 0, {4, 7, 6});
  CHECK_EQ(late.code, PADDLEBOX_INVALID_ARGUMENT);
  CHECK_EQ(std::string(late.error.message),
           "history 2: expected events in the order of time, found time 6 after 7");
  Request(version, "u", 0, {4}).Keep();
  CHECK(Has(Request(version, "u", 1, {3}).error.message,
            "history 0: expected events in the order "
            "of time, found time 3 after 4"));
  CHECK(Has(Request(version, "u", 0, {4, -1}).error.message,
            "history 1: field 'ts': expected a time, an integer from 0 to 2^63 - 1, found -1"));
  // 256 characters of two bytes, and one more.
  std::string name;
  for (int i = 0; i < 256; ++i) name += "\u00e9";
  CHECK_EQ(Request(version, name, 0, {}).code, PADDLEBOX_OK);
  const Request long_name(version, name + "x", 0, {});
  CHECK_EQ(long_name.code, PADDLEBOX_INVALID_ARGUMENT);
  CHECK(Has(long_name.error.message, "user: expected a name of at most 256 characters, found 257"));
  const Request once(version, "u", 0, {1, 2});
  const float made[4] = {};
  paddlebox_error error;
  CHECK_EQ(paddlebox_user_keep(once.request, made, 3, &error), PADDLEBOX_INVALID_ARGUMENT);
  CHECK(Has(error.message, "expected at least 4 floats, 2 for each new event, found 3"));
  once.Keep();
  CHECK_EQ(paddlebox_user_keep(once.request, made, 4, &error), PADDLEBOX_FAILED_PRECONDITION);
  // Without a name, nothing is kept.
  Request(version, "", 0, {1}).Keep();
  CHECK_EQ(Request(version, "", 1, {}).code, PADDLEBOX_HISTORY_MISSING);
  paddlebox_batch* const batch = paddlebox_batch_new();
  SetInstance(batch);
  CHECK(Has(Wrong(server, batch, PADDLEBOX_FAILED_PRECONDITION),
            "the model small reads the history of a user"));
  const Request instances(of_instances, "u", 0, {1});
  CHECK_EQ(instances.code, PADDLEBOX_FAILED_PRECONDITION);
  CHECK(Has(instances.error.message, "the model small reads no history: call paddlebox_fill"));
  // A candidate without a time; an unknown field.
  paddlebox_user* request = nullptr;
  CHECK_EQ(paddlebox_user_begin(version, "u", 1, 0, nullptr, batch, &request, &error),
           PADDLEBOX_INVALID_ARGUMENT);
  CHECK(Has(error.message, "candidate 0: field 'ts': expected a time"));
  paddlebox_batch_integer(batch, "new", 1);
  CHECK_EQ(paddlebox_user_begin(version, "u", 1, 0, batch, nullptr, &request, &error),
           PADDLEBOX_NOT_FOUND);
  CHECK(Has(error.message, "history 0: no slot reads a field 'new'"));
  CHECK(request == nullptr);
  paddlebox_batch_free(batch);
  paddlebox_release(version);
  paddlebox_release(of_instances);
  paddlebox_close(server);
  paddlebox_close(without);
}

// Threads ask for the same users, whose histories do not all fit, while versions are swapped.
TEST(histories_are_kept_and_dropped_under_load) {
  const UserFile file("load_users");
  file.Show(1);
  paddlebox_options options = Options();
  options.history_bytes = 3000;
  paddlebox_server* const server = Opened(file.path, options);
  std::atomic<uint64_t> continued{0}, missing{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < (test::kSanitized ? 100 : 1000); ++round) {
        paddlebox_version* version = nullptr;
        paddlebox_acquire(server, &version);
        const std::string user = std::to_string(round % 3 == 0 ? round % 8 : 0);
        for (uint64_t after = 2; after < 4; ++after) {
          const Request next(version, user, after, {7});
          if (next.code == PADDLEBOX_OK) {
            ++continued;
            const auto known = next.Input<float>("box_known");
            CHECK_EQ(known.size(), 2 * after);
            for (size_t at = 0; at < known.size(); at += 2) CHECK_EQ(known[at] * 2, known[at + 1]);
            next.Keep();
          } else {
            CHECK_EQ(next.code, PADDLEBOX_HISTORY_MISSING);
            ++missing;
            Request(version, user, 0, {1, 2}).Keep();
          }
        }
        paddlebox_release(version);
      }
    });
  }
  for (uint64_t version = 2; version < 20; ++version) {
    file.Show(version);
    CHECK_EQ(paddlebox_refresh(server, nullptr, nullptr), PADDLEBOX_OK);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(continued > 50);
  CHECK(missing > 50);
  paddlebox_close(server);
}

}  // namespace
}  // namespace pbx
