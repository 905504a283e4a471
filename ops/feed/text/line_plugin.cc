#include "feed/text/line_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>

#include "feed/text/line_parser.h"
#include "feed/text/plugin.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

class PluginParser : public LineParser {
 public:
  explicit PluginParser(const FeedSchema& schema) : schema_(schema) {}

  bool Parse(const char* p, const char* end, LineValues* out, LineError* error) override {
    std::fill(out->dense.begin(), out->dense.end(), 0.0f);
    std::fill(out->lengths.begin(), out->lengths.end(), 0u);
    values_ = out;
    last_slot_ = 0;
    wrong_slot_ = false;
    pbx_row row = {};
    row.dense = out->dense.data();
    row.dense_width = out->dense.size();
    row.sparse_slots = out->lengths.size();
    row.add = &Add;
    row.owner = this;
    const int code = schema_.plugin->Parse(p, static_cast<size_t>(end - p), &row);
    row.error[PBX_PLUGIN_ERROR_BYTES - 1] = '\0';
    if (code != 0) return error->Set("the parser plugin: %s", Reason(row.error, code).c_str());
    if (wrong_slot_) {
      return error->Set("the parser plugin: slot %zu, expected slots in ascending order below %zu",
                        last_slot_, out->lengths.size());
    }
    if (!(row.label >= 0 && row.label <= 1)) {
      return error->Set("the parser plugin: label %g, expected [0, 1]",
                        static_cast<double>(row.label));
    }
    out->label = row.label + 0.0f;
    for (const float value : out->dense) {
      if (!std::isfinite(value))
        return error->Set("the parser plugin: a dense value is not finite");
    }
    return true;
  }

 private:
  static std::string Reason(const char* text, int code) {
    return *text != '\0' ? std::string(text) : "code " + std::to_string(code);
  }

  static int Add(pbx_row* row, size_t slot, uint64_t feasign) {
    auto* const self = static_cast<PluginParser*>(row->owner);
    LineValues* const out = self->values_;
    if (slot >= out->lengths.size() || slot < self->last_slot_) {
      self->wrong_slot_ = true;
      self->last_slot_ = slot;
      return 1;
    }
    self->last_slot_ = slot;
    feasign = self->schema_.Keyed(feasign, slot);
    if (feasign == 0) return 0;
    // A plugin may add more feasigns than the bytes of the line suggest.
    if (out->count == out->feasigns.size()) out->feasigns.resize(2 * out->count + 1);
    out->feasigns[out->count++] = feasign;
    ++out->lengths[slot];
    return 0;
  }

  const FeedSchema& schema_;
  LineValues* values_ = nullptr;
  size_t last_slot_ = 0;
  bool wrong_slot_ = false;
};

template <typename Function>
Function Symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

Result<std::shared_ptr<const Plugin>> Plugin::Load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(Code::kInvalidArgument, "%s: cannot be loaded as a parser plugin: %s",
                 path.c_str(), dlerror());
  }
  const auto abi = Symbol<int (*)()>(library, "pbx_plugin_abi");
  const auto parse = Symbol<ParseFn>(library, "pbx_plugin_parse");
  if (abi == nullptr || parse == nullptr) {
    return Error(Code::kInvalidArgument,
                 "%s: not a parser plugin: it does not export %s; see ops/feed/text/plugin.h",
                 path.c_str(), abi == nullptr ? "pbx_plugin_abi" : "pbx_plugin_parse");
  }
  if (const int found = abi(); found != PBX_PLUGIN_ABI) {
    return Error(Code::kInvalidArgument, "%s: built for plugin ABI %d, expected %d; build it again",
                 path.c_str(), found, PBX_PLUGIN_ABI);
  }
  return std::shared_ptr<const Plugin>(new Plugin(parse));
}

std::unique_ptr<LineParser> NewPluginParser(const FeedSchema& schema) {
  return std::make_unique<PluginParser>(schema);
}

}  // namespace pbx::feed
