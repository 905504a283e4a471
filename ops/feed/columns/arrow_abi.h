// The Arrow C data interface, a stable ABI by which pyarrow and others pass columns without a copy.
// https://arrow.apache.org/docs/format/CDataInterface.html
#pragma once

#include <cstdint>

extern "C" {

struct ArrowSchema {
  const char* format;  // the type: "L" is uint64, "+l" a list of children[0], ...
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;  // [0]: validity, one bit per value; a null pointer: all are valid
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

}  // extern "C"
