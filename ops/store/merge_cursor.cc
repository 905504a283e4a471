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
      // The first key of an unread cursor may be above its bound.
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

// Makes at_ the cursor with the smallest key; of cursors with the same key, the newest.
Status MergeCursor::Settle() {
  for (;;) {
    // Long runs of rows come from one segment, usually the oldest. Such a run does not use the
    // heap.
    if (!heap_.empty() && (!any_ || Later{&cursors_}(at_, heap_.top()))) {
      if (any_) heap_.push(at_);
      at_ = heap_.top();
      heap_.pop();
      any_ = true;
    }
    done_ = !any_;
    if (done_) return Status::Ok();
    if (cursors_[at_].loaded()) break;
    // A cursor is read only when the merge reaches it, so that range segments do not all hold a
    // buffer at once. Its first key may be above its bound, so the loop compares again.
    PBX_RETURN_IF_ERROR(cursors_[at_].Next());
    any_ = !cursors_[at_].done();
  }
  ++copies_;
  return Status::Ok();
}

}  // namespace pbx
