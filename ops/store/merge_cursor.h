// MergeCursor: the rows of several segments with keys in [low, high], each key once with its newest
// row, in ascending order.
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
  // segments: any order; they outlive the cursor.
  explicit MergeCursor(std::vector<const SegmentReader*> segments, uint64_t low = 0,
                       uint64_t high = UINT64_MAX);
  MergeCursor(const MergeCursor&) = delete;
  MergeCursor& operator=(const MergeCursor&) = delete;

  // Steps to the newest row of the next key, over its older copies. Before the first Next there is
  // no row. At the end done() is true and the row is gone.
  Status Next();
  bool done() const { return done_; }
  uint64_t key() const { return cursors_[at_].key(); }
  const char* row() const { return cursors_[at_].row(); }
  uint64_t copies() const { return copies_; }  // rows stepped over so far, this one included

 private:
  // Smallest key on top; of one key the newest, which is the cursor with the highest index.
  struct Later {
    const std::vector<SegmentCursor>* cursors;
    bool operator()(size_t a, size_t b) const {
      const uint64_t left = (*cursors)[a].key(), right = (*cursors)[b].key();
      return left != right ? left > right : a < b;
    }
  };

  Status Settle();

  std::vector<SegmentCursor> cursors_;                            // oldest first
  std::priority_queue<size_t, std::vector<size_t>, Later> heap_;  // all but at_ and those at an end
  size_t at_ = 0;
  bool any_ = false;  // at_ stands on a row
  bool done_ = false;
  uint64_t copies_ = 0;
};

}  // namespace pbx
