// Parser plugins: shared libraries with the C interface of plugin.h.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct pbx_row;

namespace pbx::feed {

class Plugin {
 public:
  // Runs the library's initialisers. InvalidArgument if the library cannot be loaded, lacks a
  // function, or was built for another PBX_PLUGIN_ABI. The library stays loaded until the process
  // ends, because threads may still run its code.
  static Result<std::shared_ptr<const Plugin>> Load(const std::string& path);

  int Parse(const char* line, size_t size, pbx_row* row) const { return parse_(line, size, row); }

 private:
  using ParseFn = int (*)(const char*, size_t, pbx_row*);
  explicit Plugin(ParseFn parse) : parse_(parse) {}
  ParseFn parse_;
};

}  // namespace pbx::feed
