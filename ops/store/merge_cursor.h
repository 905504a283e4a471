// MergeCursor: goes through the rows of several segments with keys in [low, high], in ascending
// order, each key once with its newest row.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

#include "base/status.h"
#include "store/segment_reader.h"

namespace pbx {

class MergeCursor {
 public:
  // segments: in any order. They must outlive the cursor.
  explicit MergeCursor(std::vector<const SegmentReader*> segments, uint64_t low = 0,
                       uint64_t high = UINT64_MAX);
  MergeCursor(const MergeCursor&) = delete;
  MergeCursor& operator=(const MergeCursor&) = delete;

  // Steps to the newest row of the next key and skips its older copies. There is no row before the
  // first Next, and none once done() is true.
  Status Next();
  bool done() const { return done_; }
  uint64_t key() const { return cursors_[at_].key(); }
  const char* row() const { return cursors_[at_].row(); }
  uint64_t copies() const { return copies_; }  // rows so far, including skipped ones and this one

 private:
  // The smallest key is on top. Among cursors with the same key, the newest (the one with the
  // highest index) is on top.
  struct Later {
    const std::vector<SegmentCursor>* cursors;
    bool operator()(size_t a, size_t b) const {
      const uint64_t left = (*cursors)[a].key(), right = (*cursors)[b].key();
      return left != right ? left > right : a < b;
    }
  };

  Status Settle();

  std::vector<SegmentCursor> cursors_;  // oldest first
  // All cursors except at_ and those that are done.
  std::priority_queue<size_t, std::vector<size_t>, Later> heap_;
  size_t at_ = 0;
  bool any_ = false;  // at_ is a cursor with a row
  bool done_ = false;
  uint64_t copies_ = 0;
};

}  // namespace pbx
