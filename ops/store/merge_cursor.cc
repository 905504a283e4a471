#include "store/merge_cursor.h"

#include <algorithm>
#include <utility>

namespace pbx {

MergeCursor::MergeCursor(std::vector<const SegmentReader*> segments, uint64_t low, uint64_t high)
    : heap_(Later{&cursors_}) {
  std::sort(segments.begin(), segments.end(), [](const SegmentReader* a, const SegmentReader* b) {
    return a->shape().sequence < b->shape().sequence;
  });
  cursors_.reserve(segments.size());
  for (const SegmentReader* segment : segments) {
    SegmentCursor cursor(segment, low, high);
    if (!cursor.done()) cursors_.push_back(std::move(cursor));
  }
  for (size_t i = 0; i < cursors_.size(); ++i) heap_.push(i);
}

Status MergeCursor::Next() {
  if (any_) {
    const uint64_t last = cursors_[at_].key();
    while (!heap_.empty() && cursors_[heap_.top()].key() == last) {
      SegmentCursor& older = cursors_[heap_.top()];
      const size_t index = heap_.top();
      heap_.pop();
      // One that was not read yet may stand above its bound.
      if (!older.loaded()) PBX_RETURN_IF_ERROR(older.Next());
      if (!older.done() && older.key() == last) {
        ++copies_;
        PBX_RETURN_IF_ERROR(older.Next());
      }
      if (!older.done()) heap_.push(index);
    }
    PBX_RETURN_IF_ERROR(cursors_[at_].Next());
    any_ = !cursors_[at_].done();
  }
  return Settle();
}

// Makes at_ the cursor with the smallest key, and of one key the newest.
Status MergeCursor::Settle() {
  for (;;) {
    // Runs of rows from one segment, most of them from the oldest, go past the heap.
    if (!heap_.empty() && (!any_ || Later{&cursors_}(at_, heap_.top()))) {
      if (any_) heap_.push(at_);
      at_ = heap_.top();
      heap_.pop();
      any_ = true;
    }
    done_ = !any_;
    if (done_) return Status::Ok();
    if (cursors_[at_].loaded()) break;
    // A cursor stays unread until the merge gets there, so that range segments do not all hold a
    // buffer at once. Its first key may lie above its bound: look again.
    PBX_RETURN_IF_ERROR(cursors_[at_].Next());
    any_ = !cursors_[at_].done();
  }
  ++copies_;
  return Status::Ok();
}

}  // namespace pbx
